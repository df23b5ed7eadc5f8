"""A comparison, or a finding, as one HTML file: no scripts to fetch, opens anywhere, prints well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape as _escape
from typing import TYPE_CHECKING

from layertap.compare.columns import column
from layertap.messages import language, printable, tr
from layertap.report.diff import LEGEND, headline, pair_name, scale
from layertap.report.finding import words
from layertap.report.values import number

if TYPE_CHECKING:
    from layertap.compare.result import Report, Row
    from layertap.fault.result import Finding, ModuleRow

LONG = 30
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --fault: #d33; --doubt: #b80; --good: #2a7; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
p { margin: .3rem 0; }
h1.fault { color: var(--fault); } h1.inconclusive { color: var(--doubt); }
h1.identical, h1.noise { color: var(--good); }
.note { border-left: 3px solid var(--doubt); padding-left: .6rem; }
.wide { overflow-x: auto; margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
#bad:checked ~ .wide :is(tr.identical, tr.noise) { display: none; }
#first { scroll-margin-top: 30vh; }
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; font-family: ui-monospace, monospace; }
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; max-width: 32rem; }
th:last-child { text-align: left; }
tr.fault td:first-child, tr.fault td:nth-child(2) { color: var(--fault); font-weight: 600; }
tr.inconclusive td:nth-child(2) { color: var(--doubt); }
td.bar { width: 10rem; min-width: 6rem; position: relative; padding: 0; }
td.bar i { display: block; height: .8rem; background: var(--good); }
tr.fault td.bar i { background: var(--fault); }
tr.inconclusive td.bar i { background: var(--doubt); }
td.bar b { position: absolute; top: 0; bottom: 0; width: 2px; background: currentColor; opacity: .6; }
td.why { text-align: left; white-space: normal; font-size: 13px; min-width: 9rem; overflow-wrap: anywhere; }
@media (min-width: 82rem) { .wide { overflow-x: visible; } thead th { position: sticky; top: 0; background: Canvas; } }
"""


def escape(text: str) -> str:
    """The text for a page: neither markup, nor marks that turn the direction of writing around."""
    return _escape(printable(text))


def report_page(report: Report) -> str:
    """A comparison; the tick on each bar is the floor."""
    head, *rest = (line for line, _ in headline(report))
    place = scale(value for name in ("error", "floor") for value in column(report.rows, name))
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
    verdicts = list(column(report.rows, "verdict"))
    first = verdicts.index("fault") if "fault" in verdicts else -1
    rows = [_line(row, place, first=number == first) for number, row in enumerate(report.rows)]
    unmatched = [tr("report.only_in", side=side, site=site) for side, site in report.unmatched]
    unmatched += [tr(LEGEND)] if report.rows else []
    return _page(report.verdict, head, rest, report.notes, titles, rows, tools=_tools(report), after=unmatched)


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
    tools: Iterable[str] = (),
    after: Iterable[str] = (),
) -> str:
    parts = [
        f"<!doctype html><html lang='{language()}'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>layertap: {verdict}</title><style>{_STYLE}</style>",
        f"<h1 class='{verdict}'>{escape(head)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in rest),
        *(f"<p class='note'>{escape(note)}</p>" for note in notes),
        *tools,
        "<div class='wide'><table><thead><tr>",
        *(f"<th>{escape(title)}</th>" for title in titles),
        "</tr></thead><tbody>",
        *rows,
        "</tbody></table></div>",
        *(f"<p>{escape(line)}</p>" for line in after),
        "</html>",
    ]
    return "\n".join(parts)


def _tools(report: Report) -> list[str]:
    """For a long table: the way to the first departure, and to the rows that are not good. No script is needed."""
    bad = sum(verdict not in ("identical", "noise") for verdict in column(report.rows, "verdict"))
    if len(report.rows) <= LONG or not bad:
        return []
    link = "" if report.first is None else f" · <a href='#first'>{tr('report.to_first')}</a>"
    label = tr("report.only_not_noise", count=bad)
    return [f"<input type='checkbox' id='bad'><label for='bad'> {label}</label>{link}"]


def _line(row: Row, place: Callable[[float], float], *, first: bool) -> str:
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
    return _row(row.verdict, cells, _bar(row.error, row.floor, place), row.why, first=first)


def _module(row: ModuleRow, verdict: str, place: Callable[[float], float]) -> str:
    # Of a compiled model the total is all there is: what is above the floor may come from further up.
    totals_only = math.isnan(row.local)
    own = "" if totals_only else number(row.local, 3)
    numbers = (number(row.total, 3), own, number(row.floor, 3), number(row.ratio, 3))
    bar = _bar(row.total if totals_only else row.local, row.floor, place)
    doubtful = totals_only and row.total > row.floor
    colour = verdict or ("inconclusive" if doubtful else "")
    return _row(colour, (row.path or tr("report.the_model"), row.kind, *numbers), bar, row.where)


def _bar(error: float, floor: float, place: Callable[[float], float]) -> str:
    return f"<i style='width:{place(error):.1%}'></i><b style='left:{place(floor):.1%}'></b>"


def _row(verdict: str, cells: Iterable[str], bar: str, why: str, *, first: bool = False) -> str:
    body = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    if first:
        body = body.replace("<td>", "<td id='first'>", 1)
    return f"<tr class='{verdict}'>{body}<td class='bar'>{bar}</td><td class='why'>{escape(why)}</td></tr>"
