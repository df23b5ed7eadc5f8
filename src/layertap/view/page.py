"""The first page: the verdict, the site table, and the chosen site beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layertap.compare.columns import column
from layertap.errors import LayertapError
from layertap.messages import tr
from layertap.report.diff import headline
from layertap.report.site_table import Axis, Drawing, site_table_html
from layertap.view.html import clean, document, link, options, text, verdict_section
from layertap.view.query import Query
from layertap.view.sides import PATIENCE, Comparison, Session, Side
from layertap.view.site_tables import ComparedSites, RunSites, SiteTable
from layertap.view.strip import coloured, strip_part

if TYPE_CHECKING:
    from layertap.compare import Report

WHOLE = 3000
"""A site table with more rows than this is sent part by part."""
PART = 200
"""Rows of such a part."""


def main_page(session: Session, query: Query) -> str:
    """The page of a comparison, or of one run."""
    if query.b is not None:
        session.report(query.a, query.b, patience=PATIENCE)
    version = version_of(session, query)  # before the rest: what comes in between is loaded again
    site_table, verdict = sites_and_verdict(session, query)
    chosen = query.site
    if site_table is None:
        left = f"<p class='empty'>{text('view.starting', **_names(session, query))}</p>"
    else:
        left = sites_part(coloured(session, query, site_table), query)
    from layertap.view.panel import site_panel

    panel = site_panel(session, query) if chosen else _unasked(session, query, site_table)
    steps = site_table.steps if site_table is not None else []
    step = site_table.step if site_table is not None else None
    head = top(session, query, steps=steps, step=step, here="compare")
    body = (
        f"{head}{verdict}{strip_part(session, query, site_table)}"
        f"<main id='main' class='panes' data-version='{clean(version)}'>"
        f"<section id='sites' aria-label='{text('site_table.caption')}'>{left}</section>"
        f"<section id='site' aria-live='polite' aria-label='{text('site_table.site')}'>{panel}</section></main>{keys()}"
    )
    return document(_title(session, query), body, scripts=("viewer.js",), here="compare")


def _unasked(session: Session, query: Query, site_table: SiteTable | None) -> str:
    """Where no site is chosen: the first departure's panel, if there is one that is quickly found."""
    from layertap.view.panel import site_panel

    hint = f"<p class='empty'>{text('view.choose')}</p>"
    if site_table is None or len(site_table) > WHOLE or site_table.first < 0:
        return hint
    (entry,) = site_table.entries(site_table.first, site_table.first + 1)
    try:
        return f"{hint}{site_panel(session, replace(query, site=entry.site, step=site_table.step))}"
    except LayertapError as error:
        return f"{hint}<p class='problem'>{clean(error)}</p>"


def version_of(session: Session, query: Query) -> str:
    """What changes when the page is to be loaded again: snapshots, and the report that is shown."""
    if not session.sides:
        return ""
    numbers = [query.a] if query.b is None else [query.a, query.b]
    parts = [str(session.sides[number].version) for number in numbers]
    if query.b is not None:
        report, comparison = session.report(query.a, query.b, patience=0.0)
        parts += [str(id(report)), str(bool(comparison.error))]
    return ".".join(parts)


def sites_and_verdict(session: Session, query: Query) -> tuple[SiteTable | None, str]:
    """What the left side shows, and the sentence above it."""
    if query.b is None:
        side = session.sides[query.a]
        with side.lock:
            site_table = RunSites(side.run, query.step)
            return site_table, _single_verdict(session, query, site_table)
    report, comparison = session.report(query.a, query.b)
    sides = session.sides[query.a], session.sides[query.b]
    if report is None:
        return None, _pending(session, query, comparison)
    site_table = session.cached(
        ("sites", query.a, query.b, query.step, id(report)), lambda: ComparedSites(report, sides, query.step)
    )
    return site_table, _verdict(session, query, report, comparison)


def sites_part(site_table: SiteTable, query: Query) -> str:
    """The site table, or its head where it is long; the script loads the rest as it comes into view."""
    draw = _drawing(site_table, query)
    if len(site_table) <= WHOLE:
        return site_table_html(site_table.entries(), draw)
    html = site_table_html(site_table.entries(0, PART), draw, fold=False)
    first = site_table.first
    return f"<div class='long' data-total='{len(site_table)}' data-part='{PART}' data-place='{first}'>{html}</div>"


def rows_part(site_table: SiteTable, query: Query, start: int, count: int, places: Sequence[int] | None = None) -> str:
    """Rows of a long site table; of those at `places` where a filter is on."""
    draw = _drawing(site_table, query)
    if places is None:
        return "".join(draw.row(entry) for entry in site_table.entries(start, start + count))
    wanted = places[start : start + count]
    return "".join(draw.row(entry) for place in wanted for entry in site_table.entries(place, place + 1))


def _drawing(site_table: SiteTable, query: Query) -> Drawing:
    return Drawing(
        columns=site_table.columns,
        link=lambda site: link("/", {**query.moment(), "site": site}),
        selected=query.site,
        axis=axis_of(site_table),
    )


def axis_of(site_table: SiteTable) -> Axis:
    """One axis for all parts of a site table."""
    if isinstance(site_table, RunSites):
        return Axis.of(())
    rows = site_table.report.rows
    values = [np.fromiter(column(rows, name), np.float64, len(rows)) for name in ("error", "floor")]
    every = np.concatenate(values)
    every = every[np.isfinite(every) & (every > 0)]
    return Axis.of((float(every.min()), float(every.max())) if len(every) else ())


def top(session: Session, query: Query, *, here: str, steps: Sequence[int] = (), step: int | None = None) -> str:
    """The head of every page: what is compared with what, and the other pages."""
    runs = [(side.number, side.name) for side in session.sides]
    parts = ["<header class='top'><a class='brand' href='/'>layertap</a>"]
    if runs:
        action = "/training" if here == "training" else "/"
        parts.append(f"<form method='get' action='{action}' class='choose'>")
        parts.append(f"<label>{text('view.reference')} <select name='a'>{options(runs, query.a)}</select></label>")
        others = [*runs, ("none", tr("view.nothing_else"))]
        second = "none" if query.b is None else query.b
        parts.append(f"<label>{text('view.candidate')} <select name='b'>{options(others, second)}</select></label>")
        if len(steps) > 1:
            shown = [(one, str(one)) for one in steps]
            parts.append(f"<label>{text('view.step')} <select name='step'>{options(shown, step)}</select></label>")
        parts.append(f"<button>{text('view.show')}</button></form>")
    tabs = pages(session)
    links = "".join(
        f"<a href='{clean(link(path, query.pair()))}'{' aria-current=page' if name == here else ''}>"
        f"{text('view.tab_' + name)}</a>"
        for name, path in tabs
    )
    parts.append(f"<nav>{links}<button type='button' class='help' aria-label='{text('view.keys')}'>?</button></nav>")
    return "".join([*parts, "</header>"])


def pages(session: Session) -> list[tuple[str, str]]:
    """The pages that this viewer has."""
    found = []
    if session.sides:
        found += [("compare", "/")]
        if any(len(side.run.index.steps()) > 1 for side in session.sides):
            found += [("training", "/training")]
        found += [("runs", "/runs")]
    if session.results:
        found += [("results", "/results")]
    if session.scanner is not None:
        found += [("scanner", "/scanner")]
    return found


def keys() -> str:
    """The list of keys."""
    shown = {"j": "down", "k": "up", "/": "find", "f": "first", "Enter": "enter", "Esc": "escape", "?": "help"}
    rows = "".join(f"<dt><kbd>{key}</kbd></dt><dd>{text('view.key_' + name)}</dd>" for key, name in shown.items())
    close = f"<form method='dialog'><button>{text('view.close')}</button></form>"
    title = text("view.keys")
    return f"<dialog id='keys' aria-label='{title}'><h2>{title}</h2><dl>{rows}</dl>{close}</dialog>"


def _verdict(session: Session, query: Query, report: Report, comparison: Comparison) -> str:
    lines = [clean(line) for line, _ in headline(report)]
    parts = [f"<h1>{lines[0]}</h1>"]
    parts += [f"<p>{line}</p>" for line in lines[1:]]
    parts += alive(_shown(session, query))
    if not comparison.ended:
        parts.append(_progress(session, query, comparison))
    elif comparison.error:
        parts.append(f"<p class='problem'>{text('view.failed', error=comparison.error)}</p>")
    notes = [*report.notes, *(tr("view.plan_step", step=step) for step in report.plan)]
    if notes:
        listed = "".join(f"<li>{clean(note)}</li>" for note in notes)
        opened = " open" if report.notes and len(notes) <= 3 else ""
        parts.append(
            f"<details{opened}><summary>{text('view.notes')} ({len(notes)})</summary><ul>{listed}</ul></details>"
        )
    return verdict_section(report.verdict, "".join(parts))


def _pending(session: Session, query: Query, comparison: Comparison) -> str:
    if comparison.error:
        why = text("view.failed", error=comparison.error)
        return verdict_section("inconclusive", f"<h1>{why}</h1>")
    progress = _progress(session, query, comparison)
    return verdict_section("pending", f"<h1>{text('view.starting', **_names(session, query))}</h1>{progress}")


def _progress(session: Session, query: Query, comparison: Comparison) -> str:
    message = text("view.comparing", **_names(session, query), done=comparison.done, total=comparison.total or "?")
    value = f" value='{comparison.done}' max='{comparison.total}'" if comparison.total else ""
    return f"<p class='progress'><progress{value} aria-label='{message}'></progress> <span>{message}</span></p>"


def _single_verdict(session: Session, query: Query, site_table: RunSites) -> str:
    side = session.sides[query.a]
    run = side.run
    message = text("view.single", name=side.name, sites=len(run.sites), records=run.count, steps=len(site_table.steps))
    parts = [f"<h1>{message}</h1>"]
    first = site_table.first
    state = "none"
    if first >= 0:
        (entry,) = site_table.entries(first, first + 1)
        state = "nonfinite"
        parts.append(f"<p class='problem'>{text('view.single_bad', site=entry.site, step=site_table.step)}</p>")
    elif len(site_table):
        parts.append(f"<p>{text('view.single_good', step=site_table.step)}</p>")
    else:
        parts.append(f"<p class='problem'>{text('view.empty_run')}</p>")
    parts += alive(_shown(session, query))
    problems = run.problems
    if problems:
        listed = "".join(f"<li>{clean(problem)}</li>" for problem in problems)
        parts.append(
            f"<details><summary>{text('view.problems', count=len(problems))}</summary><ul>{listed}</ul></details>"
        )
    return verdict_section(state, "".join(parts))


def alive(sides: Sequence[Side]) -> list[str]:
    """A line for each run that is still being written, or that has gone."""
    return [
        f"<p class='problem'>{clean(side.gone)}</p>"
        if side.gone
        else f"<p class='live'><i></i>{clean(side.name)}: {text('view.live')}</p>"
        for side in sides
        if side.gone or side.live
    ]


def _shown(session: Session, query: Query) -> list[Side]:
    return [session.sides[number] for number in (query.a, query.b) if number is not None]


def _names(session: Session, query: Query) -> dict[str, str]:
    return {
        "reference": session.sides[query.a].name,
        "candidate": "" if query.b is None else session.sides[query.b].name,
    }


def _title(session: Session, query: Query) -> str:
    names = [name for name in _names(session, query).values() if name]
    return f"{' · '.join(names)} · layertap"
