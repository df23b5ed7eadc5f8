"""An audit as text: the verdict, then what stands out, repeated layers folded into one line."""

from __future__ import annotations

from collections import defaultdict

from layertap.select.collapse import collapse
from layertap.weights.result import STATUSES, Audit, AuditRow
from layertap.words import say

SHOWN = 40
"""Lines in the table; the rest is counted."""
_QUIET = ("exact", "converted", "cast")


def audit_text(audit: Audit) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in audit.by_status.items())
    head = say(
        "{verdict}: {model} against {other}: {counts}",
        verdict=say(audit.verdict.upper()),
        model=audit.model,
        other=audit.other,
        counts=counts or say("no tensors"),
    )
    lines = [head, *(f"fault: {text}" for text in audit.faults), *(f"note: {text}" for text in audit.notes), ""]
    table = [line for loud in (True, False) for line in _lines(audit, loud)]
    lines += table[:SHOWN]
    if len(table) > SHOWN:
        lines.append(say("… and {count} more lines; to_json has every tensor", count=len(table) - SHOWN))
    return "\n".join(lines).rstrip()


def _lines(audit: Audit, loud: bool) -> list[str]:
    groups: dict[tuple[str, str, str], list[AuditRow]] = defaultdict(list)
    for row in audit.rows:
        if (row.status not in _QUIET) == loud:
            groups[row.status, row.rule, row.detail].append(row)
    found = []
    for (status, rule, detail), rows in sorted(groups.items(), key=lambda item: STATUSES.index(item[0][0])):
        by_name = {row.name or row.other: row for row in rows}
        for pattern, members in collapse(by_name).items():
            row = by_name[members[0]]
            others = " + ".join(collapse([by_name[member].other for member in members if by_name[member].other]))
            times = f" ({len(members)} ×)" if len(members) > 1 else ""
            source = f" ← {others}" if others and others != pattern and row.name else ""
            ways = ": ".join(part for part in (rule if rule != "same" else "", detail) if part)
            found.append(f"{status:<10} {pattern}{times}{source}" + (f"  {ways}" if ways else ""))
    return found
