"""What `find_fault` found, as a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layertap.files import format_bytes
from layertap.messages import tr
from layertap.report.charts.spec import Point, errors
from layertap.report.document import Block, Chart, Document, Heading, Paragraph, SiteTable, Table, TableRow
from layertap.report.finding import words
from layertap.report.rows import chosen
from layertap.report.site_entries import finding_entries, finding_state
from layertap.report.values import number

if TYPE_CHECKING:
    from layertap.fault.result import Finding, ModuleRow

DRAWN = 800
LISTED = 4000
STANDING_OUT = 20


def finding_document(finding: Finding, extra: Sequence[Block] = ()) -> Document:
    """The sentence, every module with its own error over its floor, and what was run for it."""
    head, *rest = words(finding)
    blocks: list[Block] = []
    if finding.table:
        rows = sorted(finding.table, key=lambda row: row.order)
        blamed = {one.site for one in (finding, *finding.others)} if finding.verdict == "fault" else set()
        states = [finding_state(row, blamed) for row in rows]
        shown, _ = chosen(list(zip(rows, states, strict=True)), DRAWN, states)
        entries, left = chosen(finding_entries(finding), LISTED, states)
        points = [_point(row, state) for row, state in shown]
        title = tr("chart.own_errors")
        blocks = [
            Chart(spec=errors(points, title), opening=True, page=False),
            SiteTable(entries=entries, left_out=left),
            *extra,
            Heading(text=tr("page.standing_out")),
            _worst(rows, blamed),
            Paragraph(text=tr("page.finding_legend")),
        ]
    cost = _cost(finding)
    return Document(
        title=tr("page.title", what=finding.site or tr("page.find_fault"), verdict=tr(f"result.{finding.verdict}")),
        verdict=finding.verdict,
        headline=head,
        lines=rest,
        notes=finding.notes,
        blocks=[*blocks, *([Paragraph(text=cost)] if cost else [])],
    )


def _point(row: ModuleRow, state: str) -> Point:
    # Of a compiled model the total is all there is.
    own = None if math.isnan(row.local) and not math.isnan(row.total) else row.local
    name = row.path or tr("page.the_model")
    return Point(name=name, total=row.total, own=own, floor=row.floor, verdict=state)


def _worst(rows: Sequence[ModuleRow], blamed: set[str]) -> Table:
    found = [row for row in rows if row.ratio > 0 or row.path in blamed] or rows[:1]
    worst = sorted(found, key=lambda row: -row.ratio if row.ratio == row.ratio else 0.0)[:STANDING_OUT]
    titles = ("module", "kind", "where", "total", "own", "floor", "ratio")
    listed = [
        TableRow(
            cells=[
                row.path or tr("page.the_model"),
                row.kind,
                row.where,
                number(row.total, 3),
                "" if math.isnan(row.local) else number(row.local, 3),
                number(row.floor, 3),
                number(row.ratio, 3),
            ],
            state="fault" if row.path in blamed else "",
        )
        for row in worst
    ]
    return Table(titles=[tr(f"page.module.{title}") for title in titles], rows=listed, left=(0, 1, 2))


def _cost(finding: Finding) -> str:
    parts = [tr("page.passes", side=side, count=count) for side, count in finding.forwards.items()]
    parts += [f"{name}: {format_bytes(count)}" for name, count in finding.memory.items() if count]
    return "; ".join(parts)
