"""An audit as text: the verdict, then what stands out, repeated layers folded into one line."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

from layertap.messages import tr
from layertap.result import Note, code_of
from layertap.select.collapse import collapse
from layertap.weights.hints import kind_of
from layertap.weights.result import STATUSES, Audit, AuditRow

SHOWN = 40
"""Lines in the table; the rest is counted."""
APART = 3.0
"""A number that is so many times its fellows' median, or so small a part of it, stands by itself."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")
_MEASURED = frozenset(
    f"audit.{code}"
    for code in (
        *("relative_error", "lora", "scales", "rounded_scales", "rounded_as", "cast", "cast_through", "cut"),
        *("init_normal", "init_uniform", "mean_std"),
    )
)
"""Details whose numbers were measured, so that layers which differ in them alone are one line."""
_VALUES = "audit.values_of"
_QUIET = ("exact", "converted", "cast")


def audit_text(audit: Audit) -> str:
    counts = ", ".join(f"{count} {tr(f'audit.status_{status}')}" for status, count in audit.by_status.items())
    head = tr(
        "audit.head",
        verdict=tr(f"result.{audit.verdict}"),
        model=audit.model,
        other=audit.other,
        counts=counts or tr("audit.no_tensors"),
    )
    lines = [head, *(tr("audit.fault_line", text=text) for text in audit.faults)]
    lines += [*(tr("audit.note_line", text=text) for text in audit.notes), ""]
    table = [line for loud in (True, False) for line in _lines(audit, loud)]
    lines += table[:SHOWN]
    if len(table) > SHOWN:
        lines.append(tr("audit.more_lines", count=len(table) - SHOWN))
    return "\n".join(lines).rstrip()


def rule_name(rule: str) -> str:
    """What a rule is called in the user's language."""
    return tr(f"audit.rule_{rule.replace(' ', '_').lower()}") if rule else ""


def _lines(audit: Audit, loud: bool) -> list[str]:
    rows = [row for row in audit.rows if (row.status not in _QUIET) == loud]
    found = []
    for (status, rule, _), group in sorted(_grouped(rows).items(), key=lambda item: STATUSES.index(item[0][0])):
        by_name = {row.name or row.other: row for row in group}
        for pattern, members in collapse(by_name).items():
            row = by_name[members[0]]
            others = " + ".join(collapse([by_name[member].other for member in members if by_name[member].other]))
            times = f" ({len(members)} ×)" if len(members) > 1 else ""
            source = f" ← {others}" if others and others != pattern and row.name else ""
            detail = _spanned([by_name[member].detail for member in members])
            ways = ": ".join(part for part in (rule_name(rule) if rule != "same" else "", detail) if part)
            found.append(f"{tr(f'audit.status_{status}'):<10} {pattern}{times}{source}" + (f"  {ways}" if ways else ""))
    return found


def _grouped(rows: Iterable[AuditRow]) -> dict[tuple[str, str, object], list[AuditRow]]:
    """Rows that say the same but for their numbers; one whose number stands out from its fellows' is by itself."""
    groups: dict[tuple[str, str, object], list[AuditRow]] = defaultdict(list)
    for row in rows:
        groups[row.status, row.rule, (kind_of(row.name or row.other), _NUMBER.sub("#", kind_of(row.detail)))].append(
            row
        )
    found: dict[tuple[str, str, object], list[AuditRow]] = {}
    for (status, rule, template), group in groups.items():
        usual = statistics.median(_first(row.detail) for row in group)
        for row in group:
            size = _first(row.detail)
            apart = size > APART * usual or size < usual / APART
            key: object = (template, row.detail) if apart or not _folds(group) else template
            found.setdefault((status, rule, key), []).append(row)
    return found


def _folds(group: list[AuditRow]) -> bool:
    """Whether their details differ in numbers that are measured, and not in places or names."""
    detail = group[0].detail
    first = detail.values["first"] if isinstance(detail, Note) and detail.code == "audit.and" else detail
    return code_of(first) in (*_MEASURED, _VALUES) or len({row.detail for row in group}) == 1


def _first(detail: str) -> float:
    found = _NUMBER.search(detail)
    return float(found.group()) if found else 0.0


def _spanned(details: list[str]) -> str:
    """One line for details that differ in their numbers: from the least to the largest of each."""
    if len(set(details)) == 1:
        return details[0]
    if code_of(details[0]) == _VALUES:
        return tr(_VALUES, owners=", ".join(collapse(str(detail.values["owners"]) for detail in details)))  # type: ignore[attr-defined]
    columns = list(zip(*(_NUMBER.findall(detail) for detail in details), strict=True))
    parts = _NUMBER.split(details[0])
    spans = []
    for column in columns:
        low, high = min(column, key=float), max(column, key=float)
        spans.append(low if low == high else tr("audit.range", low=low, high=high))
    return "".join(part + span for part, span in zip(parts, [*spans, ""], strict=True))
