"""What every verb prints through: screens for people, JSON for programs."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.text import Text

from layertap.errors import BadArgument
from layertap.messages import printable
from layertap.report.screen import Screen
from layertap.result import jsonable


class _PipedScreen(Screen):
    """A console that `| head` leaves unharmed: the exit code stays the verdict's, where rich would say 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


out = _PipedScreen(emoji=False)  # `net.py:x:` is no picture
err = Screen(stderr=True, emoji=False)
PIPE = 10_000


def show_json(value: Any, file: TextIO | None = None) -> None:
    """Prints JSON that any parser takes, NaN and infinities as strings, all that is not ASCII escaped."""
    print(json.dumps(jsonable(value), indent=2, allow_nan=False), file=file)


def show_text(value: object) -> None:
    """Prints a text for people as it is, unwrapped and without styles."""
    print(printable(str(value)))


def show_screen(view: RenderableType) -> None:
    """Prints for people; a pipe gets full width, so that no column is cut."""
    if out.is_terminal:
        out.print(view)
    else:
        _PipedScreen(width=PIPE, emoji=False).print(view)


def status(text: str) -> Status:
    """What is being done, on the error stream while it lasts. Names are no markup."""
    return err.status(Text(text))


def progress() -> Progress:
    """A bar for long work, on the error stream; gone when the work is done."""
    shown = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*shown, console=err, transient=True, disable=not err.is_terminal)


def import_extension(name: str) -> None:
    """Imports a module that the user named with `--import`: it runs, and registers operators or classes."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: mostly it is beside the file
    try:
        importlib.import_module(name)
    except Exception as error:
        raise BadArgument(f"--import {name}: {type(error).__name__}: {error}") from error


def problem(text: str) -> None:
    """Says what went wrong, on the error stream."""
    # The terminal wraps it, so that a path can be copied and a log be searched.
    err.print(Text.assemble(("layertap:", "bold red"), " ", text), highlight=False, soft_wrap=True)
