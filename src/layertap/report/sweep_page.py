"""A sweep as one HTML file, and as a fragment for notebooks: no scripts, opens anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape as _escape
from itertools import chain

from layertap.messages import language, printable, tr
from layertap.report.ladder import LadderEntry, ladder_css, ladder_html, ladder_js
from layertap.report.sweep import closing, groups_line, modes_cells, verdict_line
from layertap.report.sweep_layers import answer_lines, layer_lines, token_cells
from layertap.report.values import number
from layertap.sweeping.result import ModeResult, Sweep

_STYLE = """
.lt-sweep { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 1rem auto; }
.lt-sweep h1 { font-size: 1.3rem; } .lt-sweep h2 { font-size: 1.05rem; margin-top: 1.5rem; }
.lt-sweep .fault { color: #d33; } .lt-sweep .inconclusive { color: #b80; }
.lt-sweep :is(.identical, .noise) { color: #2a7; }
.lt-sweep .note { border-left: 3px solid #b80; padding-left: .6rem; }
.lt-sweep .wide { overflow-x: auto; }
.lt-sweep table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.lt-sweep :is(th, td) { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid #8884; white-space: nowrap; }
.lt-sweep :is(th, td):first-child { text-align: left; font-family: ui-monospace, monospace; }
.lt-sweep pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def sweep_page(sweep: Sweep) -> str:
    """The whole page."""
    title = f"layertap sweep: {sweep.verdict}"
    ladders = "".join(_ladder(mode) for mode in sweep.modes.values() if mode.rows)
    script = f"<script>{ladder_js()}</script>" if ladders else ""
    return (
        f"<!doctype html><html lang='{language()}'><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{_text(title)}</title>"
        f"<style>{ladder_css()}</style>{_body(sweep, ladders)}{script}</html>"
    )


def sweep_fragment(sweep: Sweep) -> str:
    """For a notebook: the same without the sites one by one."""
    return _body(sweep, "")


def _body(sweep: Sweep, ladders: str) -> str:
    parts = [
        f"<style>{_STYLE}</style><div class='lt-sweep'>",
        f"<h1 class='{sweep.verdict}'>{_text(groups_line(sweep))}</h1>",
        f"<p class='{sweep.verdict}'>{_text(verdict_line(sweep))}</p>",
    ]
    failed = [tr("sweep.failed", mode=mode.name, error=mode.error) for mode in sweep.failed]
    parts += [f"<p class='fault'>{_text(line)}</p>" for line in failed]
    parts += [f"<p class='note'>{_text(note)}</p>" for note in sweep.notes]
    parts += [
        f"<p class='note'>{_text(f'{mode.name}: {note}')}</p>" for mode in sweep.modes.values() for note in mode.notes
    ]
    titles, rows = modes_cells(sweep)
    parts.append(_table(titles, rows, [mode.verdict for mode in sweep.modes.values()]))
    parts.append(f"<p>{_text(tr('sweep.legend'))}</p>")
    parts += _depth(sweep)
    titles, rows = token_cells(sweep)
    if rows:
        parts += [f"<h2>{_text(tr('sweep.tokens_title', reference=sweep.reference, positions=_positions(sweep)))}</h2>"]
        parts.append(_table(titles, rows))
    told = [*layer_lines(sweep, verbose=True), *answer_lines(sweep)]
    parts += [f"<pre>{_text(chr(10).join(told))}</pre>"] if any(told) else []
    parts += [ladders, *(f"<p>{_text(line)}</p>" for line in closing(sweep)), "</div>"]
    return "\n".join(parts)


def _positions(sweep: Sweep) -> int:
    return next((mode.tokens.positions for mode in sweep.modes.values() if mode.tokens), 0)


def _depth(sweep: Sweep) -> Iterable[str]:
    modes = [mode for mode in sweep.modes.values() if any(row.error for row in mode.rows)]
    if not modes:
        return []
    errors = {mode.name: {row.site: row.error for row in mode.rows} for mode in modes}
    sites = dict.fromkeys(chain.from_iterable(errors.values()))
    rows = [[site, *(number(errors[mode.name].get(site, math.nan), 3) for mode in modes)] for site in sites]
    title = tr("sweep.depth_title", reference=sweep.reference)
    return [f"<h2>{_text(title)}</h2>", _table([tr("sweep.col_site"), *(mode.name for mode in modes)], rows)]


def _ladder(mode: ModeResult) -> str:
    if not any(row.error for row in mode.rows):
        return ""
    first = mode.first
    entries = [
        LadderEntry(
            site=row.site,
            path=row.site.partition(":")[0],
            kind=row.kind,
            state=row.verdict,
            error=row.error,
            floor=row.floor,
            ratio=row.ratio,
            title=row.why,
            first=row is first,
        )
        for row in mode.rows
    ]
    return f"<details><summary>{_text(mode.name)}</summary>{ladder_html(entries)}</details>"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], classes: Sequence[str] = ()) -> str:
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = []
    for place, row in enumerate(rows):
        kind = f" class='{classes[place]}'" if classes else ""
        body.append(f"<tr{kind}>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"


def _text(text: object) -> str:
    return _escape(printable(str(text)))
