"""`layertap show RUN [SITE]`: a run in tables, in order of execution; or what a compiled file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import import_extension, show_json, show_screen, show_text
from layertap.errors import BadArgument
from layertap.formats import open_run
from layertap.messages import tr
from layertap.report.receipt import receipt_view
from layertap.report.show import run_rows, run_view, site_rows, site_view, telling_step
from layertap.targets import ARTEFACTS, open_target
from layertap.targets.opening import layout_of
from layertap.watching.trigger_report import read_reports


def show(
    run: Annotated[
        str,
        typer.Argument(help=tr("cli.show_run")),
    ],
    site: Annotated[str | None, typer.Argument(help=tr("cli.show_site"))] = None,
    step: Annotated[int | None, typer.Option(help=tr("cli.show_step"))] = None,
    rank: Annotated[int | None, typer.Option(help=tr("cli.show_rank"))] = None,
    imports: Annotated[list[str] | None, typer.Option("--import", help=tr("cli.import"))] = None,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Show what a run holds, or what of a compiled file can be recorded."""
    for name in imports or ():
        import_extension(name)
    path = Path(run)
    if path.is_file() and (path.suffix in ARTEFACTS or layout_of(path) is not None):
        described = open_target(path).describe()
        show_json(described) if json else show_text(described)
        return
    opened = open_run(run)
    if site is not None:
        found = opened[site].at(step=step, rank=rank)
        show_json(site_rows(found)) if json else show_screen(site_view(found))
        return
    triggers = read_reports(path) if opened.path else ()
    only = telling_step(opened, rank) if step is None and not json else None
    rows = run_rows(opened, step=step if only is None else only, rank=rank)
    moment = _moment(step, rank)
    if moment and not rows:
        raise BadArgument(tr("cli.show_none", moment=moment, opened=opened))
    if json:
        receipt = opened.receipt
        show_json(
            {
                "run": run,
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
        show_text(report)


def _moment(step: int | None, rank: int | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (("step", step), ("rank", rank)) if value is not None)
