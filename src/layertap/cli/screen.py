"""What every verb prints through: screens for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from layertap.report.values import jsonable


class _Screen(Console):
    """A console that `| head` leaves unharmed: the exit code stays the verdict's, where rich would say 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


out = _Screen(emoji=False)  # `net.py:x:` is no picture
err = Console(stderr=True, emoji=False)
PIPE = 10_000


def show_json(value: Any) -> None:
    """Prints JSON that any parser takes, NaN and infinities as strings."""
    print(json.dumps(jsonable(value), indent=2, allow_nan=False))


def show_screen(view: RenderableType) -> None:
    """Prints for people; a pipe gets full width, so that no column is cut."""
    if out.is_terminal:
        out.print(view)
    else:
        _Screen(width=PIPE, emoji=False).print(view)


def progress() -> Progress:
    """A bar for long work, on the error stream; gone when the work is done."""
    shown = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*shown, console=err, transient=True, disable=not err.is_terminal)


def problem(text: str) -> None:
    """Says what went wrong, on the error stream."""
    # The terminal wraps it, so that a path can be copied and a log be searched.
    err.print(Text.assemble(("layertap:", "bold red"), " ", text), highlight=False, soft_wrap=True)
