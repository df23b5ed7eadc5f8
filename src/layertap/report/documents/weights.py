"""Results about weights as documents: an audit, a knock-out, a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from layertap.files import format_bytes
from layertap.messages import tr
from layertap.report.charts.spec import intervals
from layertap.report.document import Block, Chart, Document, Heading, Paragraph, Table, TableRow
from layertap.report.values import number
from layertap.site import natural_key

if TYPE_CHECKING:
    from layertap.weights.doctor import Diagnosis
    from layertap.weights.knockout import Knockout, KnockoutRow
    from layertap.weights.result import Audit, AuditRow

LISTED = 3000
SHARE = 24
"""Characters of the bar beside a share."""
STATES = {"healthy": "identical", "inconclusive": "inconclusive"}
"""What an answer of the doctor is among the verdicts; the others are faults."""


def audit_document(audit: Audit, extra: Sequence[Block] = ()) -> Document:
    """The counts by status, then every tensor: what weighs in the verdict first."""
    head = str(audit).partition("\n")[0]
    counts = audit.by_status
    most = max(counts.values(), default=1)
    statuses = [
        TableRow(cells=[status, str(count), _bar(count / most)], state=_state(audit.rows, status))
        for status, count in counts.items()
    ]
    ordered = sorted(audit.rows, key=lambda row: row.weighs not in ("fault", "inconclusive"))
    rows = [_audit_row(row) for row in ordered[:LISTED]]
    titles = [tr(f"page.audit.{title}") for title in ("tensor", "status", "from", "rule", "detail", "shape", "dtype")]
    blocks: list[Block] = [
        Table(
            titles=[tr("page.audit.status"), tr("page.audit.tensors"), ""],
            rows=statuses,
            left=(0, 2),
            bars=(2,),
            caption=tr("page.audit.by_status"),
        ),
        *extra,
        Heading(text=tr("page.audit.all")),
        Table(titles=titles, rows=rows, left=(0, 1, 2, 3, 4, 5, 6), total=len(audit.rows)),
    ]
    read = (
        tr("page.audit.read", size=format_bytes(audit.bytes), seconds=number(audit.seconds, 3)) if audit.bytes else ""
    )
    return Document(
        title=tr("page.title", what=audit.model, verdict=tr(f"result.{audit.verdict}")),
        verdict=audit.verdict,
        headline=head,
        lines=[*audit.faults, *([read] if read else [])],
        notes=audit.notes,
        blocks=blocks,
    )


def _audit_row(row: AuditRow) -> TableRow:
    shape = "×".join(map(str, row.shape))
    name = row.name or row.other
    state = row.weighs if row.weighs in ("fault", "inconclusive") else ""
    cells = [name, row.status, row.other if row.other != name else "", row.rule, row.detail, shape, row.dtype]
    return TableRow(cells=cells, state=state)


def _state(rows: Iterable[AuditRow], status: str) -> str:
    found = {row.weighs for row in rows if row.status == status}
    return next((state for state in ("fault", "inconclusive") if state in found), "")


def _bar(share: float) -> str:
    return "█" * max(round(share * SHARE), 1)


def knockout_document(found: Knockout, extra: Sequence[Block] = ()) -> Document:
    """The harm that leaving out each part does, in order of the layers, with its interval."""
    head = tr("page.knockout.head", count=len(found.rows), tokens=found.tokens, perplexity=number(found.perplexity))
    least = found.rows[0] if found.rows else None
    lines = [tr("page.knockout.least", site=least.site, kl=number(least.kl, 3))] if least else []
    blocks = [*_harm(found.rows, tr("page.knockout.ranked")), *extra, Paragraph(text=tr("page.knockout.legend"))]
    return Document(title=tr("page.knockout.title"), verdict="", headline=head, lines=lines, blocks=blocks)


def _harm(rows: Sequence[KnockoutRow], caption: str) -> list[Block]:
    if not rows:
        return []
    placed = sorted(rows, key=lambda row: natural_key(row.site))
    spans = [(row.site, row.kl, row.kl_low, row.kl_high, tr(f"page.part.{row.kind}")) for row in placed]
    chart = intervals(spans, tr("chart.harm"), across=tr("chart.kl"))
    titles = ("part", "kind", "kl", "interval", "top1", "perplexity", "cosine", "change", "share")
    table = Table(
        titles=[tr(f"page.knockout.{title}") for title in titles],
        rows=[TableRow(cells=_harm_cells(row)) for row in rows],
        left=(0, 1),
        caption=caption,
    )
    return [Chart(spec=chart, opening=True), table]


def _harm_cells(row: KnockoutRow) -> list[str]:
    return [
        row.site,
        tr(f"page.part.{row.kind}"),
        number(row.kl, 3),
        f"{number(row.kl_low, 3)} … {number(row.kl_high, 3)}",
        f"{row.top1:.1%}",
        number(row.perplexity),
        f"{row.cosine:.4f}",
        number(row.change, 3),
        f"{row.share:.1%}",
    ]


def diagnosis_document(found: Diagnosis, extra: Sequence[Block] = ()) -> Document:
    """The answer, the questions in their order, the harm of the cuts, and the audit behind it."""
    head, *asked = str(found).splitlines()
    state = STATES.get(found.answer, "fault")
    rows = [TableRow(cells=[str(number), line.removeprefix("- ")]) for number, line in enumerate(asked, start=1)]
    blocks: list[Block] = [Table(titles=["", tr("page.doctor.asked")], rows=rows, left=(1,))]
    if found.cuts:
        blocks.append(Paragraph(text=tr("page.doctor.cuts", cuts=", ".join(found.cuts))))
    blocks += [*_harm(found.harm, tr("page.doctor.harm")), *extra]
    weights = audit_document(found.audit)
    blocks += [Heading(text=tr("page.doctor.audit")), Paragraph(text=weights.headline), *weights.blocks]
    return Document(
        title=tr("page.title", what="layertap doctor", verdict=found.answer),
        verdict=state,
        headline=head,
        lines=[tr("page.doctor.site", site=found.site)] if found.site else [],
        blocks=blocks,
    )
