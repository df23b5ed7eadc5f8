"""A comparison as one HTML file: no scripts to fetch, opens anywhere, prints well."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from layertap.compare.result import Report, Row
from layertap.report.diff import headline, pair_name, scale
from layertap.report.values import number

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
td.bar { width: 14rem; position: relative; padding: 0; }
td.bar i { display: block; height: .8rem; background: var(--good); }
tr.fault td.bar i { background: var(--fault); }
tr.inconclusive td.bar i { background: var(--doubt); }
td.bar b { position: absolute; top: 0; bottom: 0; width: 2px; background: currentColor; opacity: .6; }
td.why { text-align: left; white-space: normal; font-size: 13px; }
"""


def report_page(report: Report) -> str:
    """The page; the tick on each bar is the floor."""
    head, *rest = (line for line, _ in headline(report))
    place = scale(report)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>layertap: {report.verdict}</title><style>{_STYLE}</style>",
        f"<h1 class='{report.verdict}'>{escape(head)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in rest),
        *(f"<p class='note'>{escape(note)}</p>" for note in report.notes),
        "<table><thead><tr>",
        *(f"<th>{title}</th>" for title in ("site", "verdict", "error", "floor", "ratio", "max |d|", "cosine")),
        "<th>error against floor, log scale</th><th>why</th></tr></thead><tbody>",
        *(_line(row, place) for row in report.rows),
        "</tbody></table>",
        *(f"<p>only in the {escape(side)}: <code>{escape(site)}</code></p>" for side, site in report.unmatched),
        "</html>",
    ]
    return "\n".join(parts)


def _line(row: Row, place: Callable[[float], float]) -> str:
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
    return f"<tr class='{row.verdict}'>{body}<td class='bar'>{bar}</td><td class='why'>{escape(row.why)}</td></tr>"
