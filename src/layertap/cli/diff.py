"""`layertap diff A B`: two runs, one verdict; its exit code is the verdict's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertap.cli.screen import progress, show_json, show_screen, show_text


def diff(
    reference: Annotated[str, typer.Argument(help="a run, or what another tool left (docs/comparing.md)")],
    candidate: Annotated[str, typer.Argument(help="the same, of the variant in question")],
    floor: Annotated[list[str] | None, typer.Option(help="a run of the reference in the candidate's dtype")] = None,
    mapping: Annotated[Path | None, typer.Option(help="JSON, TOML or YAML: {regex: replacement}")] = None,
    sites: Annotated[list[str] | None, typer.Option(help="judge only what matches; may be given again")] = None,
    rtol: Annotated[float | None, typer.Option(help="judge by tolerance, not by rounding (with --atol)")] = None,
    atol: Annotated[float | None, typer.Option(help="|d| <= atol + rtol × |reference|, everywhere")] = None,
    html: Annotated[Path | None, typer.Option(help="also write a page")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show how the runs were aligned")] = False,
    json: Annotated[bool, typer.Option("--json", help="the same as JSON")] = False,
) -> None:
    """Compare two runs, or two watched trainings: identical or noise (0), fault (1), inconclusive (3)."""
    from layertap.compare import diff as compare
    from layertap.compare.training import diff_training, is_training
    from layertap.formats import open_run
    from layertap.report.diff import report_view

    sides = open_run(reference), open_run(candidate)
    if all(map(is_training, sides)) and not (floor or mapping or html or sites or rtol is not None or atol is not None):
        # Thousands of steps: not a table of layers, but the first step and site where they part.
        with progress() as bar:
            task = bar.add_task("comparing", total=None)
            trainings = diff_training(
                *sides, progress=lambda done, total: bar.update(task, completed=done, total=total)
            )
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
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if html is not None:
        report.to_html(html)
    if json:
        show_json(report.to_dict())
    else:
        show_screen(report_view(report, verbose=verbose))
    raise typer.Exit(report.exit_code)
