"""A comparison of two runs as a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from layertap.compare.columns import column
from layertap.messages import tr
from layertap.report.charts.spec import Point, errors
from layertap.report.diff import headline, pair_name, row_namer
from layertap.report.document import Block, Chart, Document, Heading, Paragraph, SiteTable, Table, TableRow, Verbatim
from layertap.report.rows import chosen
from layertap.report.site_entries import report_entries
from layertap.report.values import number

if TYPE_CHECKING:
    from layertap.compare.result import Report, Row

LISTED = 4000
"""Rows that a document holds; those that depart go first."""
DRAWN = 800
"""Rows that a chart holds."""
DETAILED = 100
"""Rows whose metrics are all listed."""


def report_document(report: Report, extra: Sequence[Block] = ()) -> Document:
    """`extra` blocks, made from the runs themselves, come after the site table."""
    head, *rest = (line for line, _ in headline(report))
    states = list(column(report.rows, "verdict"))
    places, left = chosen(range(len(states)), LISTED, states)
    rows = [report.rows[place] for place in places]
    blocks: list[Block] = []
    if rows:
        blocks += [_chart(report, rows), SiteTable(entries=report_entries(report, rows), left_out=left)]
        blocks += [*extra, *_details(rows, row_namer(report)), Paragraph(text=tr("page.legend"))]
    else:
        blocks += extra
    if report.plan:
        blocks += [Heading(text=tr("page.plan")), Verbatim(text="\n".join(report.plan))]
    title = f"{report.candidate} ~ {report.reference}"
    return Document(
        title=tr("page.title", what=title, verdict=tr(f"result.{report.verdict}")),
        verdict=report.verdict,
        headline=head,
        lines=rest,
        notes=report.notes,
        blocks=blocks,
    )


def _chart(report: Report, rows: Sequence[Row]) -> Chart:
    shown, _ = chosen(rows, DRAWN, [row.verdict for row in rows])
    points = [Point(name=pair_name(row), total=row.error, floor=row.floor, verdict=row.verdict) for row in shown]
    first = report.first
    title = tr("chart.errors") if first is None else tr("chart.errors_first", site=row_namer(report)(first))
    return Chart(spec=errors(points, title), opening=True, page=False)


def _details(rows: Sequence[Row], name: Callable[[Row], str]) -> list[Block]:
    """All metrics of the rows that are no noise, else of the rows that come closest to a fault."""
    loud = [row for row in rows if row.verdict not in ("identical", "noise")]
    measured = [row for row in loud or sorted(rows, key=lambda row: -row.ratio)[:10] if row.difference is not None]
    if not measured:
        return []
    titles = ("site", "max", "mean", "p99", "relative", "cosine", "sqnr", "ulp", "nonfinite", "close", "why")
    listed = [
        TableRow(cells=[name(row), *_metrics(row)], state=row.verdict, title=row.why) for row in measured[:DETAILED]
    ]
    table = Table(
        titles=[tr(f"page.metric.{title}") for title in titles],
        rows=listed,
        left=(0, len(titles) - 1),
        total=len(measured),
    )
    return [Heading(text=tr("page.metrics" if loud else "page.metrics_closest")), table]


def _metrics(row: Row) -> list[str]:
    found = row.difference
    assert found is not None

    def known(value: float) -> str:
        return number(value, 3) if found.exact else ""  # estimated from sketches: error and cosine alone

    return [
        known(found.max_abs),
        known(found.mean_abs),
        known(found.percentiles[3]),
        ("≈" if row.estimated else "") + number(row.error, 3),
        f"{found.cosine:.6f}",
        known(found.sqnr),
        known(found.max_ulp),
        str(found.nan_mismatch + found.inf_mismatch or ""),
        f"{found.close:.2%}" if found.exact else "",
        row.why,
    ]
