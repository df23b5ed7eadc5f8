"""A comparison as one HTML file: no scripts to fetch, opens anywhere, prints well."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from layertap.compare.result import Report, Row
from layertap.report.diff import headline, pair_name, scale
from layertap.report.values import number
from layertap.words import language, say

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
td.bar { width: 14rem; position: relative; padding: 0; }
td.bar i { display: block; height: .8rem; background: var(--good); }
tr.fault td.bar i { background: var(--fault); }
tr.inconclusive td.bar i { background: var(--doubt); }
td.bar b { position: absolute; top: 0; bottom: 0; width: 2px; background: currentColor; opacity: .6; }
td.why { text-align: left; white-space: normal; font-size: 13px; min-width: 14rem; }
@media (min-width: 82rem) { .wide { overflow-x: visible; } thead th { position: sticky; top: 0; background: Canvas; } }
"""


def report_page(report: Report) -> str:
    """The page; the tick on each bar is the floor."""
    head, *rest = (line for line, _ in headline(report))
    place = scale(report)
    titles = (
        "site",
        "verdict",
        "error",
        "floor",
        "ratio",
        "max |d|",
        "cosine",
        "error against floor, log scale",
        "why",
    )
    parts = [
        f"<!doctype html><html lang='{language()}'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>layertap: {report.verdict}</title><style>{_STYLE}</style>",
        f"<h1 class='{report.verdict}'>{escape(head)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in rest),
        *(f"<p class='note'>{escape(note)}</p>" for note in report.notes),
        *_tools(report),
        "<div class='wide'><table><thead><tr>",
        *(f"<th>{title}</th>" for title in titles),
        "</tr></thead><tbody>",
        *(_line(row, place, first=row is report.first) for row in report.rows),
        "</tbody></table></div>",
        *(f"<p>only in the {escape(side)}: <code>{escape(site)}</code></p>" for side, site in report.unmatched),
        "</html>",
    ]
    return "\n".join(parts)


def _tools(report: Report) -> list[str]:
    """For a long table: the way to the first departure, and to the rows that are not good. No script is needed."""
    bad = sum(row.verdict not in ("identical", "noise") for row in report.rows)
    if len(report.rows) <= LONG or not bad:
        return []
    link = "" if report.first is None else f" · <a href='#first'>{say('to the first departure')}</a>"
    label = say("only the {count} rows that are no noise", count=bad)
    return [f"<input type='checkbox' id='bad'><label for='bad'> {label}</label>{link}"]


def _line(row: Row, place: Callable[[float], float], *, first: bool) -> str:
    found = row.difference
    about = "≈" if row.estimated else ""
    cells = [
        escape(pair_name(row)),
        row.verdict,
        about + number(row.error, 3),
        number(row.floor, 3),
        number(row.ratio, 3),
        "" if found is None else number(found.max_abs, 3),
        "" if found is None else f"{found.cosine:.6f}",
    ]
    bar = f"<i style='width:{place(row.error):.1%}'></i><b style='left:{place(row.floor):.1%}'></b>"
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    if first:
        body = body.replace("<td>", "<td id='first'>", 1)
    return f"<tr class='{row.verdict}'>{body}<td class='bar'>{bar}</td><td class='why'>{escape(row.why)}</td></tr>"
