"""`layertap report A [B] -o FILE`: one run, two runs or two trainings as a page, Markdown or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layertap.cli.screen import progress, show_json, show_text, status
from layertap.errors import BadArgument
from layertap.files import format_bytes
from layertap.messages import tr
from layertap.report.page import SUFFIXES, markdown_of, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layertap.report.document import Block
    from layertap.store import Run

STDOUT = "-"


def report(
    run: Annotated[str, typer.Argument(help=tr("cli.run_or_foreign"))],
    candidate: Annotated[str | None, typer.Argument(help=tr("cli.report_second"))] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help=tr("cli.report_out"))] = Path("report.html"),
    floor: Annotated[list[str] | None, typer.Option(help=tr("cli.floor"))] = None,
    mapping: Annotated[Path | None, typer.Option(help=tr("cli.mapping"))] = None,
    sites: Annotated[list[str] | None, typer.Option(help=tr("cli.diff_sites"))] = None,
    rtol: Annotated[float | None, typer.Option(help=tr("cli.rtol"))] = None,
    atol: Annotated[float | None, typer.Option(help=tr("cli.atol"))] = None,
    json: Annotated[bool, typer.Option("--json", help=tr("cli.report_json"))] = False,
) -> None:
    """Write a report that opens anywhere; of two runs the exit code is the verdict's."""
    if str(output) != STDOUT and output.suffix.lower() not in SUFFIXES:
        raise BadArgument(tr("page.suffix", path=output, known=", ".join(SUFFIXES)))
    from layertap.formats import open_run

    with status(tr("page.opening", path=run)):
        ours = open_run(run)
        theirs = None if candidate is None else open_run(candidate)
    result: Any
    extra: Sequence[Block] = ()
    if theirs is None:
        given = {"--floor": floor, "--mapping": mapping, "--sites": sites, "--rtol": rtol, "--atol": atol}
        named = [name for name, value in given.items() if value]
        if named:
            raise BadArgument(tr("page.one_run", options=", ".join(named)))
        result, code = _one(ours, run), 0
    else:
        judging = {"floor": floor or None, "mapping": mapping, "sites": sites or None, "rtol": rtol, "atol": atol}
        result, extra, code = _two(ours, theirs, judging)
    with status(tr("page.writing", path=output)):
        text = markdown_of(result, extra) if str(output) == STDOUT else ""
        path = None if text else write(result, output, extra)
    if json:
        found = result.to_dict() if theirs is not None else {"run": run}
        show_json({"written": None if path is None else str(path), "result": found})
    elif path is None:
        show_text(text)
    else:
        show_text(result.headline if theirs is None else str(result).partition("\n")[0])
        show_text(tr("page.written", path=path, size=format_bytes(path.stat().st_size)))
    raise typer.Exit(code)


def _one(run: Run, name: str) -> Any:
    from layertap.report.documents.run import run_document
    from layertap.watching.trigger_report import read_reports

    with status(tr("page.reading", path=name)):
        return run_document(run, read_reports(run.path) if run.path else ())


def _two(ours: Run, theirs: Run, judging: dict[str, Any]) -> tuple[Any, Sequence[Block], int]:
    """The comparison, and what only the runs themselves can show."""
    from layertap.compare import diff
    from layertap.compare.training import diff_training, is_training
    from layertap.report.differences import difference_blocks
    from layertap.report.documents.run import receipt_blocks
    from layertap.report.steps import pair_blocks

    with progress() as bar:
        task = bar.add_task(tr("page.comparing"), total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if is_training(ours) and is_training(theirs) and not any(judging.values()):
            trainings = diff_training(ours, theirs, progress=tell)
            return trainings, [*pair_blocks(ours, theirs), *receipt_blocks(ours, theirs)], trainings.exit_code
        found = diff(ours, theirs, **judging, progress=tell)
    return found, [*difference_blocks(found, ours, theirs), *receipt_blocks(ours, theirs)], found.exit_code
