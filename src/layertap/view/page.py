"""The first page: the verdict, the ladder, and the chosen site beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layertap.compare.columns import column
from layertap.errors import LayertapError
from layertap.messages import tr
from layertap.report.diff import headline
from layertap.report.ladder import Axis, Drawing, ladder_html
from layertap.view.html import clean, document, link, options, text, verdict_section
from layertap.view.ladders import ComparedLadder, Ladder, SingleLadder
from layertap.view.query import Query
from layertap.view.sides import PATIENCE, Comparison, Session, Side
from layertap.view.strip import coloured, strip_part

if TYPE_CHECKING:
    from layertap.compare import Report

WHOLE = 3000
"""A ladder with more rows than this is sent part by part."""
PART = 200
"""Rows of such a part."""


def main_page(session: Session, query: Query) -> str:
    """The page of a comparison, or of one run."""
    if query.b is not None:
        session.report(query.a, query.b, patience=PATIENCE)
    version = version_of(session, query)  # before the rest: what comes in between is loaded again
    ladder, verdict = ladder_and_verdict(session, query)
    chosen = query.site
    if ladder is None:
        left = f"<p class='empty'>{text('view.starting', **_names(session, query))}</p>"
    else:
        left = ladder_part(coloured(session, query, ladder), query)
    from layertap.view.panel import site_panel

    panel = site_panel(session, query) if chosen else _unasked(session, query, ladder)
    steps = ladder.steps if ladder is not None else []
    step = ladder.step if ladder is not None else None
    body = (
        f"{top(session, query, steps=steps, step=step, here='compare')}{verdict}{strip_part(session, query, ladder)}"
        f"<main id='main' class='panes' data-version='{clean(version)}'>"
        f"<section id='ladder' aria-label='{text('ladder.caption')}'>{left}</section>"
        f"<section id='site' aria-live='polite' aria-label='{text('ladder.site')}'>{panel}</section></main>{keys()}"
    )
    return document(_title(session, query), body, scripts=("viewer.js",), here="compare")


def _unasked(session: Session, query: Query, ladder: Ladder | None) -> str:
    """Where no site is chosen: the first departure's panel, if there is one that is quickly found."""
    from layertap.view.panel import site_panel

    hint = f"<p class='empty'>{text('view.choose')}</p>"
    if ladder is None or len(ladder) > WHOLE or ladder.first < 0:
        return hint
    (entry,) = ladder.entries(ladder.first, ladder.first + 1)
    try:
        return f"{hint}{site_panel(session, replace(query, site=entry.site, step=ladder.step))}"
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


def ladder_and_verdict(session: Session, query: Query) -> tuple[Ladder | None, str]:
    """What the left side shows, and the sentence above it."""
    if query.b is None:
        side = session.sides[query.a]
        with side.lock:
            ladder = SingleLadder(side.run, query.step)
            return ladder, _single_verdict(session, query, ladder)
    report, comparison = session.report(query.a, query.b)
    sides = session.sides[query.a], session.sides[query.b]
    if report is None:
        return None, _pending(session, query, comparison)
    ladder = session.cached(
        ("ladder", query.a, query.b, query.step, id(report)), lambda: ComparedLadder(report, sides, query.step)
    )
    return ladder, _verdict(session, query, report, comparison)


def ladder_part(ladder: Ladder, query: Query) -> str:
    """The ladder, or its head where it is long; the script loads the rest as it comes into view."""
    draw = _drawing(ladder, query)
    if len(ladder) <= WHOLE:
        return ladder_html(ladder.entries(), draw)
    html = ladder_html(ladder.entries(0, PART), draw, fold=False)
    first = ladder.first
    return f"<div class='long' data-total='{len(ladder)}' data-part='{PART}' data-place='{first}'>{html}</div>"


def rows_part(ladder: Ladder, query: Query, start: int, count: int, places: Sequence[int] | None = None) -> str:
    """Rows of a long ladder; of those at `places` where a filter is on."""
    draw = _drawing(ladder, query)
    if places is None:
        return "".join(draw.row(entry) for entry in ladder.entries(start, start + count))
    wanted = places[start : start + count]
    return "".join(draw.row(entry) for place in wanted for entry in ladder.entries(place, place + 1))


def _drawing(ladder: Ladder, query: Query) -> Drawing:
    return Drawing(
        columns=ladder.columns,
        link=lambda site: link("/", {**query.moment(), "site": site}),
        selected=query.site,
        axis=axis_of(ladder),
    )


def axis_of(ladder: Ladder) -> Axis:
    """One axis for all parts of a ladder."""
    if isinstance(ladder, SingleLadder):
        return Axis.of(())
    rows = ladder.report.rows
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
    told = text("view.comparing", **_names(session, query), done=comparison.done, total=comparison.total or "?")
    value = f" value='{comparison.done}' max='{comparison.total}'" if comparison.total else ""
    return f"<p class='progress'><progress{value} aria-label='{told}'></progress> <span>{told}</span></p>"


def _single_verdict(session: Session, query: Query, ladder: SingleLadder) -> str:
    side = session.sides[query.a]
    run = side.run
    told = text("view.single", name=side.name, sites=len(run.sites), records=run.count, steps=len(ladder.steps))
    parts = [f"<h1>{told}</h1>"]
    first = ladder.first
    state = "none"
    if first >= 0:
        (entry,) = ladder.entries(first, first + 1)
        state = "nonfinite"
        parts.append(f"<p class='problem'>{text('view.single_bad', site=entry.site, step=ladder.step)}</p>")
    elif len(ladder):
        parts.append(f"<p>{text('view.single_good', step=ladder.step)}</p>")
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
