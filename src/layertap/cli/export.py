"""`layertap export RUN -o PATH --layout layers|monitor|npz`: a run in the layout of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import progress, show_json, show_text, status
from layertap.errors import BadArgument


def export(
    run: Annotated[str, typer.Argument(help="a run, a foreign folder, or an .npz (file.npz#mode)")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the folder, or the .npz, to write")] = None,
    layout: Annotated[str, typer.Option(help="layers, monitor or npz")] = "layers",
    step: Annotated[int | None, typer.Option(help="for layouts of one step: this one, not the first")] = None,
    mode: Annotated[str | None, typer.Option(help="npz: what the run's mode is called")] = None,
    name: Annotated[list[str] | None, typer.Option(help="PATH=NAME in the layout; repeat for more")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="replace an export that is there")] = False,
    json: Annotated[bool, typer.Option("--json", help="what was written and what was left out, as JSON")] = False,
) -> None:
    """Write a run in the layout of another tool, and say what has no place there."""
    if output is None:
        raise BadArgument("where to? give the folder, or the .npz: -o PATH")
    from layertap.formats import export as write
    from layertap.formats import open_run

    names = dict(_pair(text) for text in name or ())
    with status(f"opening {run}"):
        opened = open_run(run)
    with progress() as bar:
        task = bar.add_task(f"exporting {len(opened)} sites", total=None)
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
        show_text(f"problem: {problem}")
    show_text(done)


def _pair(text: str) -> tuple[str, str]:
    path, sign, name = text.rpartition("=")
    if not sign:
        raise BadArgument(f"--name {text!r}: expected PATH=NAME, for instance model.layers.0=layer_1")
    return path, name
