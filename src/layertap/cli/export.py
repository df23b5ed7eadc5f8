"""`layertap export RUN -o PATH --layout layers|monitor|npz`: a run in the layout of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import progress, show_json, show_text, status
from layertap.errors import BadArgument
from layertap.messages import tr


def export(
    run: Annotated[str, typer.Argument(help=tr("cli.export_run"))],
    output: Annotated[Path | None, typer.Option("--output", "-o", help=tr("cli.export_to"))] = None,
    layout: Annotated[str, typer.Option(help=tr("cli.export_layout"))] = "layers",
    step: Annotated[int | None, typer.Option(help=tr("cli.export_step"))] = None,
    mode: Annotated[str | None, typer.Option(help=tr("cli.export_mode"))] = None,
    name: Annotated[list[str] | None, typer.Option(help=tr("cli.export_name"))] = None,
    replace: Annotated[bool, typer.Option("--replace", help=tr("cli.export_replace"))] = False,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.export_json"))] = False,
) -> None:
    """Write a run in the layout of another tool, and say what has no place there."""
    if output is None:
        raise BadArgument(tr("cli.export_where"))
    from layertap.formats import export as write
    from layertap.formats import open_run

    names = dict(_pair(text) for text in name or ())
    with status(tr("cli.opening_run", run=run)):
        opened = open_run(run)
    with progress() as bar:
        task = bar.add_task(tr("cli.exporting", count=len(opened)), total=None)
        done = write(
            opened,
            output,
            layout,  # type: ignore[arg-type]
            exists="replace" if replace else "error",
            names=names,
            step=step,
            mode=mode,
            progress=lambda number, total: bar.update(task, completed=number, total=total),
        )
    if json:
        show_json({"run": run, "problems": list(opened.problems), "exported": done})
        return
    for problem in opened.problems:
        show_text(tr("cli.problem", problem=problem))
    show_text(done)


def _pair(text: str) -> tuple[str, str]:
    path, sign, name = text.rpartition("=")
    if not sign:
        raise BadArgument(tr("cli.export_pair", text=text))
    return path, name
