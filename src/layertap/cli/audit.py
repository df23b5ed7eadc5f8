"""`layertap audit A B`: is this model what that checkpoint says? The exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from layertap.cli.screen import progress, show_json, show_text
from layertap.errors import BadArgument

EXIT = {"identical": 0, "noise": 0, "fault": 1, "inconclusive": 3}


def audit(
    model: Annotated[str, typer.Argument(help="a model (hf:PATH, file.py:factory), a checkpoint, or fingerprints")],
    other: Annotated[str | None, typer.Argument(help="the same, of the other side")] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="also write every tensor as JSON")] = None,
    fingerprints: Annotated[
        Path | None, typer.Option(help="in place of OTHER: write what MODEL's tensors are recognised by (.json)")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="also write a page")] = None,
    json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Compare two sets of weights by their values: identical or casts alone (0), fault (1), inconclusive (3)."""
    from layertap.weights import audit as compare
    from layertap.weights import fingerprints as taken

    if (other is None) == (fingerprints is None):
        raise BadArgument("give two sides: layertap audit MODEL OTHER (or one, and --fingerprints FILE.json)")
    if other is None and fingerprints is not None:
        if fingerprints.suffix != ".json":
            raise BadArgument(f"--fingerprints {fingerprints}: the name must end in .json")
        with progress() as bar:
            task = bar.add_task("reading weights", total=None)
            held = taken(_opened(model), progress=lambda done, total: bar.update(task, completed=done, total=total))
        held.to_json(fingerprints)
        known = {"output": str(fingerprints), "tensors": len(held.tensors)}
        show_json(known) if json else show_text(f"wrote {fingerprints}: {held}")
        return
    sides = _opened(model), _opened(str(other))
    with progress() as bar:
        task = bar.add_task("reading weights", total=None)
        found = compare(*sides, progress=lambda done, total: bar.update(task, completed=done, total=total))
    if html is not None:
        found.to_html(html)
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
