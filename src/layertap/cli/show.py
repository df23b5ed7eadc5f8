"""`layertap show RUN [SITE]`: a run in tables, in order of execution; or what a compiled file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import show_json, show_screen
from layertap.report.receipt import receipt_view
from layertap.report.show import run_rows, run_view, site_rows, site_view, telling_step
from layertap.store import Run
from layertap.targets import ARTEFACTS, open_target
from layertap.training.trigger_birth import read_reports


def show(
    run: Annotated[Path, typer.Argument(help="the run's folder, or a compiled file (.pt, .pt2, .onnx, .xml)")],
    site: Annotated[str | None, typer.Argument(help="one site, for instance model.layers.3")] = None,
    step: Annotated[int | None, typer.Option(help="this step only")] = None,
    rank: Annotated[int | None, typer.Option(help="this rank only")] = None,
    json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Show what a run holds, or what of a compiled file can be recorded."""
    if run.is_file() and run.suffix in ARTEFACTS:
        described = open_target(run).describe()
        show_json(described) if json else print(described)
        return
    opened = Run(run)
    if site is not None:
        found = opened[site].at(step=step, rank=rank)
        show_json(site_rows(found)) if json else show_screen(site_view(found))
        return
    triggers = read_reports(run)
    only = telling_step(opened, rank) if step is None and not json else None
    rows = run_rows(opened, step=step if only is None else only, rank=rank)
    if json:
        receipt = opened.receipt
        show_json(
            {
                "run": str(run),
                "partial": opened.partial,
                "problems": list(opened.problems),
                "receipt": receipt.to_dict() if receipt else None,
                "triggers": [report.to_dict() for report in triggers],
                "rows": rows,
            }
        )
        return
    show_screen(run_view(opened, rows, only))
    if opened.receipt is not None:
        show_screen(receipt_view(opened.receipt))
    for report in triggers:
        print(report)
