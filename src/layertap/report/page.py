"""A comparison, or a finding, as one HTML file: no scripts to fetch, opens anywhere, prints well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING

from layertap.report.diff import headline, pair_name, scale
from layertap.report.finding import words
from layertap.report.values import number

if TYPE_CHECKING:
    from layertap.compare.result import Report, Row
    from layertap.fault.result import Finding, ModuleRow

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --fault: #d33; --doubt: #b80; --good: #2a7; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
p { margin: .3rem 0; }
h1.fault { color: var(--fault); } h1.inconclusive { color: var(--doubt); }
h1.identical, h1.noise { color: var(--good); }
.note { border-left: 3px solid var(--doubt); padding-left: .6rem; }
table { border-collapse: collapse; width: 100%; margin-top: 1rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; font-family: ui-monospace, monospace; }
th:last-child { text-align: left; }
tr.fault td:first-child, tr.fault td:nth-child(2) { color: var(--fault); font-weight: 600; }
tr.inconclusive td:nth-child(2) { color: var(--doubt); }
td.bar { width: 10rem; min-width: 6rem; position: relative; padding: 0; }
td.bar i { display: block; height: .8rem; background: var(--good); }
tr.fault td.bar i { background: var(--fault); }
tr.inconclusive td.bar i { background: var(--doubt); }
td.bar b { position: absolute; top: 0; bottom: 0; width: 2px; background: currentColor; opacity: .6; }
td.why { text-align: left; min-width: 9rem; overflow-wrap: anywhere; white-space: normal; font-size: 13px; }
"""


def report_page(report: Report) -> str:
    """A comparison; the tick on each bar is the floor."""
    head, *rest = (line for line, _ in headline(report))
    place = scale(value for row in report.rows for value in (row.error, row.floor))
    titles = (
        "site",
        "verdict",
        "error",
        "floor",
        "ratio",
        "max |d|",
        "cosine",
        "error, floor (log)",
        "why",
    )
    unmatched = [f"only in the {side}: {site}" for side, site in report.unmatched]
    return _page(
        report.verdict, head, rest, report.notes, titles, [_line(row, place) for row in report.rows], unmatched
    )


def finding_page(finding: Finding) -> str:
    """A finding; each bar is a module's own error, its tick the floor, the modules in order of execution."""
    head, *rest = words(finding)
    rows = sorted(finding.table, key=lambda row: row.order)
    place = scale(value for row in rows for value in (row.local, row.total, row.floor))
    guilty = {one.site for one in (finding, *finding.others)} if finding.verdict == "fault" else set()
    titles = (
        "module",
        "kind",
        "total error",
        "own error",
        "floor",
        "ratio",
        "own error, floor (log)",
        "where",
    )
    body = [_module(row, "fault" if row.path in guilty else "", place) for row in rows]
    return _page(finding.verdict, head, rest, finding.notes, titles, body)


def _page(
    verdict: str,
    head: str,
    rest: Iterable[str],
    notes: Iterable[str],
    titles: Iterable[str],
    rows: Iterable[str],
    after: Iterable[str] = (),
) -> str:
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>layertap: {verdict}</title><style>{_STYLE}</style>",
        f"<h1 class='{verdict}'>{escape(head)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in rest),
        *(f"<p class='note'>{escape(note)}</p>" for note in notes),
        "<table><thead><tr>",
        *(f"<th>{escape(title)}</th>" for title in titles),
        "</tr></thead><tbody>",
        *rows,
        "</tbody></table>",
        *(f"<p>{escape(line)}</p>" for line in after),
        "</html>",
    ]
    return "\n".join(parts)


def _line(row: Row, place: Callable[[float], float]) -> str:
    found = row.difference
    about = "≈" if row.estimated else ""
    cells = (
        pair_name(row),
        row.verdict,
        about + number(row.error, 3),
        number(row.floor, 3),
        number(row.ratio, 3),
        "" if found is None else number(found.max_abs, 3),
        "" if found is None else f"{found.cosine:.6f}",
    )
    return _row(row.verdict, cells, _bar(row.error, row.floor, place), row.why)


def _module(row: ModuleRow, verdict: str, place: Callable[[float], float]) -> str:
    own = row.total if math.isnan(row.local) else row.local  # of a compiled model the total is all there is
    numbers = (number(value, 3) for value in (row.total, row.local, row.floor, row.ratio))
    return _row(verdict, (row.path or "(the model)", row.kind, *numbers), _bar(own, row.floor, place), row.where)


def _bar(error: float, floor: float, place: Callable[[float], float]) -> str:
    return f"<i style='width:{place(error):.1%}'></i><b style='left:{place(floor):.1%}'></b>"


def _row(verdict: str, cells: Iterable[str], bar: str, why: str) -> str:
    body = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f"<tr class='{verdict}'>{body}<td class='bar'>{bar}</td><td class='why'>{escape(why)}</td></tr>"
