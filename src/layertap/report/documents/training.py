"""Two trainings, laid side by side, as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from layertap.messages import tr
from layertap.report.document import Block, Document, Table, TableRow
from layertap.report.training import training_text
from layertap.report.values import number

if TYPE_CHECKING:
    from layertap.compare.training import Parting, TrainingReport


def training_document(report: TrainingReport, extra: Sequence[Block] = ()) -> Document:
    """Where they part, by a bit and by more than rounding; `extra` holds what the runs themselves show."""
    head, *rest = training_text(report).splitlines()
    other_lines = [line for line in rest if line not in {tr("report.note_line", note=note) for note in report.notes}]
    rows = [
        _row(tr(f"page.training.{name}"), parting, state)
        for name, parting, state in (("first", report.first, ""), ("above", report.above, report.verdict))
        if parting is not None
    ]
    titles = [tr(f"page.training.{name}") for name in ("what", "step", "site", "kind", "error", "ratio", "why")]
    blocks: list[Block] = [Table(titles=titles, rows=rows, left=(0, 2, 3, 6))] if rows else []
    title = f"{report.candidate} ~ {report.reference}"
    return Document(
        title=tr("page.title", what=title, verdict=tr(f"result.{report.verdict}")),
        verdict=report.verdict,
        headline=head,
        lines=other_lines,
        notes=report.notes,
        blocks=[*blocks, *extra],
    )


def _row(name: str, parting: Parting, state: str) -> TableRow:
    numbers = (number(parting.error, 3), number(parting.ratio, 3))
    cells = [name, str(parting.step), str(parting.site), parting.kind, *numbers, parting.why]
    site = str(parting.site) if name == tr("page.training.above") else ""
    return TableRow(cells=cells, state=state, site=site, first=bool(site) and state == "fault")
