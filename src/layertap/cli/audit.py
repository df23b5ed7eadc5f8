"""`layertap audit A B`: is this model what that checkpoint says? The exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from layertap.cli.screen import progress, show_json, show_text

EXIT = {"identical": 0, "noise": 0, "fault": 1, "inconclusive": 3}


def audit(
    model: Annotated[str, typer.Argument(help="a model (hf:PATH, file.py:factory) or a checkpoint file or folder")],
    other: Annotated[str, typer.Argument(help="the same, of the other side")],
    out: Annotated[Path | None, typer.Option("--output", "-o", help="also write every tensor as JSON")] = None,
    json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Compare two sets of weights by their values: identical or casts alone (0), fault (1), inconclusive (3)."""
    from layertap.weights import audit as compare

    sides = _opened(model), _opened(other)
    with progress() as bar:
        task = bar.add_task("reading weights", total=None)
        found = compare(*sides, progress=lambda done, total: bar.update(task, completed=done, total=total))
    if out is not None:
        found.to_json(out)
    show_json(found.to_dict()) if json else show_text(found)
    raise typer.Exit(EXIT[found.verdict])


def _opened(text: str) -> Any:
    from layertap.targets import open_target

    path, _, factory = text.rpartition(":")
    if text.startswith("hf:") or (path.endswith(".py") and factory):
        return open_target(text).model
    return Path(text)
