"""A finding in words first, then the modules, worst first."""

from __future__ import annotations

import io

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from layertap.fault.result import Finding
from layertap.report.values import number

SHOWN = 8


def finding_text(finding: Finding) -> str:
    """As plain text, for `print`."""
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(finding_view(finding))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def finding_view(finding: Finding) -> Group:
    """For a terminal."""
    lines = [
        Text(line, style="bold red" if finding.verdict == "fault" and not i else "")
        for i, line in enumerate(_words(finding))
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("module", overflow="fold")
    for title in ("kind", "own error", "floor", "ratio", "where"):
        table.add_column(title, justify="right")
    for row in sorted(finding.table, key=lambda row: -row.ratio)[:SHOWN]:
        cells = (row.kind, number(row.local, 3), number(row.floor, 3), number(row.ratio, 3), row.where)
        table.add_row(row.path or "the model", *cells)
    return Group(*lines, Text(""), table)


def _words(finding: Finding) -> list[str]:
    if finding.verdict != "fault":
        more = f" ({finding.cause}: {'; '.join(finding.evidence)})" if finding.cause else ""
        error = number(finding.total, 3)
        return [f"{finding.verdict.upper()}: no module does more than rounding explains{more}; output error {error}"]
    lines = [f"{finding.site or 'the model'} is wrong: {finding.cause}: {'; '.join(finding.evidence)}."]
    lines.append(
        f"Putting the reference's output back removes {finding.explained:.1%} of the final error. "
        f"Rounding explains {number(finding.floor, 3)} of the {number(finding.local, 3)} seen."
    )
    lines += [f"also: {other.site}: {other.cause}: {'; '.join(other.evidence)}" for other in finding.others]
    return lines + [f"note: {note}" for note in finding.notes[:3]]
