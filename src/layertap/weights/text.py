"""An audit as text: the verdict, then what stands out, repeated layers folded into one line."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size

from layertap.messages import tr
from layertap.result import Note
from layertap.select.collapse import collapse
from layertap.weights.hints import kind_of
from layertap.weights.result import STATUSES, Audit, AuditRow

SHOWN = 40
"""Lines in the table; the rest is counted."""
APART = 3.0
"""A number that is so many times the median of the others, or so small a part of it, is shown by itself."""
_QUIET = ("exact", "converted", "cast")


def audit_text(audit: Audit) -> str:
    counts = ", ".join(f"{count} {tr(f'audit.status_{status}')}" for status, count in audit.by_status.items())
    verdict = tr(f"result.{audit.verdict}")
    known = {"model": audit.model, "other": audit.other, "counts": counts or tr("audit.no_tensors")}
    lines = [tr("audit.head", verdict=verdict, **known)]
    lines += [tr("audit.fault", text=text) for text in audit.faults]
    lines += [tr("audit.note", text=text) for text in audit.notes]
    table = [line for loud in (True, False) for line in _lines(audit, loud)]
    lines += ["", *table[:SHOWN]]
    if len(table) > SHOWN:
        lines.append(tr("audit.more", count=len(table) - SHOWN))
    return "\n".join(lines).rstrip()


def _lines(audit: Audit, loud: bool) -> list[str]:
    rows = [row for row in audit.rows if (row.status not in _QUIET or row.partial) == loud]
    found = []
    for (status, rule, _), group in sorted(_grouped(rows).items(), key=lambda item: STATUSES.index(item[0][0])):
        by_name = {row.name or row.other: row for row in group}
        for pattern, members in collapse(by_name).items():
            row = by_name[members[0]]
            others = " + ".join(collapse([by_name[member].other for member in members if by_name[member].other]))
            times = f" ({len(members)} ×)" if len(members) > 1 else ""
            source = f" ← {others}" if others and others != pattern and row.name else ""
            detail = _spanned([by_name[member].detail for member in members])
            ways = ": ".join(part for part in (rule if rule != "same" else "", detail) if part)
            found.append(
                f"{set_cell_size(tr(f'audit.status_{status}'), 10)} {pattern}{times}{source}"
                + (f"  {ways}" if ways else "")
            )
    return found


def _grouped(rows: Iterable[AuditRow]) -> dict[tuple[str, str, object], list[AuditRow]]:
    """Rows that say the same but for what was measured; one whose number stands out from the others is by itself."""
    alike: defaultdict[tuple[str, str, object], list[AuditRow]] = defaultdict(list)
    for row in rows:
        alike[row.status, row.rule, (kind_of(row.name or row.other), _template(row.detail))].append(row)
    found: defaultdict[tuple[str, str, object], list[AuditRow]] = defaultdict(list)
    for (status, rule, template), group in alike.items():
        sizes = [next(_measured(row.detail), 0.0) for row in group]
        usual = statistics.median(sizes)
        for row, size in zip(group, sizes, strict=True):
            apart = size > APART * usual or size < usual / APART
            found[status, rule, (template, size if apart else None)].append(row)
    return found


def _template(detail: object) -> object:
    """What has to agree for two details to be shown as one: all of it but names and what was measured."""
    if not isinstance(detail, Note):
        return detail
    kept = {key: _template(value) for key, value in detail.values.items() if key != "names"}
    return detail.code, tuple((key, value) for key, value in kept.items() if not isinstance(value, float))


def _measured(detail: object) -> Iterator[float]:
    for value in detail.values.values() if isinstance(detail, Note) else ():
        if isinstance(value, Note):
            yield from _measured(value)
        elif isinstance(value, float):
            yield value


def _spanned(details: Sequence[str]) -> str:
    """One text for details of one template: names folded, numbers from the least to the largest."""
    notes = [detail for detail in details if isinstance(detail, Note)]
    if len(set(details)) == 1 or len(notes) < len(details):
        return details[0]
    values = {}
    for key, value in notes[0].values.items():
        column = [note.values[key] for note in notes]
        if key == "names":
            value = ", ".join(collapse(dict.fromkeys(column)))
        elif isinstance(value, Note):
            value = _spanned(column)
        elif isinstance(value, float) and min(column) != max(column):
            value = _TextSpan(min(column), max(column))
        values[key] = value
    return tr(notes[0].code, **values)


@dataclass(frozen=True, slots=True)
class _TextSpan:
    """Takes the place of a number in a sentence."""

    low: float
    high: float

    def __format__(self, spec: str) -> str:
        low, high = format(self.low, spec), format(self.high, spec)
        return low if low == high else tr("audit.span", low=low, high=high)
