"""`layertap diff A B`: two runs, one verdict; its exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.engines import AddressOption, EngineOption
from layertap.cli.screen import progress, show_json, show_screen, show_text
from layertap.errors import BadArgument
from layertap.messages import tr


def diff(
    reference: Annotated[str, typer.Argument(help=tr("cli.run_or_foreign"))],
    candidate: Annotated[str, typer.Argument(help=tr("cli.diff_candidate"))],
    floor: Annotated[list[str] | None, typer.Option(help=tr("cli.floor"))] = None,
    mapping: Annotated[Path | None, typer.Option(help=tr("cli.mapping"))] = None,
    sites: Annotated[list[str] | None, typer.Option(help=tr("cli.diff_sites"))] = None,
    rtol: Annotated[float | None, typer.Option(help=tr("cli.rtol"))] = None,
    atol: Annotated[float | None, typer.Option(help=tr("cli.atol"))] = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    html: Annotated[Path | None, typer.Option(help=tr("cli.html"))] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=tr("cli.diff_verbose"))] = False,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.json"))] = False,
) -> None:
    """Compare two runs, or two watched trainings: identical or noise (0), fault (1), inconclusive (3)."""
    from layertap.compare import diff as compare
    from layertap.compare.training import diff_training, is_training
    from layertap.formats import open_run
    from layertap.report.diff import report_view
    from layertap.report.differences import difference_blocks
    from layertap.report.page import html_of
    from layertap.report.steps import pair_blocks
    from layertap.result import write_text

    sides = open_run(reference), open_run(candidate)
    if all(map(is_training, sides)) and not (floor or mapping or sites or rtol is not None or atol is not None):
        if engine not in (None, "in-process"):
            raise BadArgument(tr("engine.trainings"))
        # Thousands of steps: not a table of layers, but the first step and site where they part.
        with progress() as bar:
            task = bar.add_task("comparing", total=None)
            trainings = diff_training(
                *sides, progress=lambda done, total: bar.update(task, completed=done, total=total)
            )
        if html is not None:
            write_text(html, html_of(trainings, pair_blocks(*sides)))
        show_json(trainings.to_dict()) if json else show_text(trainings)
        raise typer.Exit(trainings.exit_code)
    with progress() as bar:
        task = bar.add_task("comparing", total=None)
        report = compare(
            *sides,
            floor=floor or None,
            mapping=mapping,
            sites=sites or None,
            rtol=rtol,
            atol=atol,
            engine=engine,
            address=address,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if html is not None:
        write_text(html, html_of(report, difference_blocks(report, *sides)))
    if json:
        show_json(report.to_dict())
    else:
        show_screen(report_view(report, verbose=verbose))
    raise typer.Exit(report.exit_code)
