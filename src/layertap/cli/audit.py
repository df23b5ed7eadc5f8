"""`layertap audit A B`: is this model what that checkpoint says? The exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from layertap.cli.engines import AddressOption, EngineOption
from layertap.cli.screen import progress, show_json, show_text
from layertap.errors import BadArgument
from layertap.messages import tr

EXIT = {"identical": 0, "noise": 0, "fault": 1, "inconclusive": 3}


def audit(
    model: Annotated[str, typer.Argument(help=tr("cli.audit_model"))],
    other: Annotated[str | None, typer.Argument(help=tr("cli.audit_other"))] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help=tr("cli.audit_json_path"))] = None,
    fingerprints: Annotated[Path | None, typer.Option(help=tr("cli.audit_fingerprints"))] = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    html: Annotated[Path | None, typer.Option(help=tr("cli.html"))] = None,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Compare two sets of weights by their values: identical or casts alone (0), fault (1), inconclusive (3)."""
    from layertap.weights import audit as compare
    from layertap.weights import fingerprints as taken

    if (other is None) == (fingerprints is None):
        raise BadArgument(tr("cli.audit_sides"))
    if other is None and fingerprints is not None:
        if engine not in (None, "in-process"):
            raise BadArgument(tr("engine.fingerprints"))
        if fingerprints.suffix != ".json":
            raise BadArgument(tr("cli.audit_suffix", fingerprints=fingerprints))
        with progress() as bar:
            task = bar.add_task(tr("cli.reading_weights"), total=None)
            held = taken(_opened(model), progress=lambda done, total: bar.update(task, completed=done, total=total))
        held.to_json(fingerprints)
        known = {"output": str(fingerprints), "tensors": len(held.tensors)}
        show_json(known) if json else show_text(tr("cli.wrote", fingerprints=fingerprints, held=held))
        return
    sides = _opened(model), _opened(str(other))
    with progress() as bar:
        task = bar.add_task(tr("cli.reading_weights"), total=None)
        found = compare(
            *sides,
            engine=engine,
            address=address,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
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
