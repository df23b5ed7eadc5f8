"""What every verb prints through: screens for people, JSON for programs."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from layertap.report.values import jsonable

out = Console(emoji=False)  # `net.py:x:` is no picture
err = Console(stderr=True, emoji=False)


def show_json(value: Any) -> None:
    """Prints JSON that any parser takes, NaN and infinities as strings."""
    print(json.dumps(jsonable(value), indent=2, allow_nan=False))


def show_screen(view: RenderableType) -> None:
    """Prints for people; a pipe gets full width, so that no column is cut."""
    if out.is_terminal:
        out.print(view)
    else:
        Console(width=220, emoji=False).print(view)


def progress() -> Progress:
    """A bar for long work, on the error stream; gone when the work is done."""
    shown = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*shown, console=err, transient=True)


def problem(text: str) -> None:
    """Says what went wrong, on the error stream."""
    err.print(f"[bold red]layertap:[/] {_plain(text)}", highlight=False)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
