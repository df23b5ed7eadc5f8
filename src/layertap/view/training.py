"""The page of a training: what triggered, the loss, and every site over the steps; two trainings side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layertap.errors import LayertapError
from layertap.messages import tr
from layertap.report.charts.draw import svg
from layertap.report.charts.frame import Frame
from layertap.report.document import Block, Chart, Heading, Verbatim
from layertap.report.html import block_html
from layertap.report.steps import losses, pair_blocks, step_grid, training_blocks
from layertap.view.html import clean, document, link, text, verdict_section
from layertap.view.page import alive, keys, top
from layertap.view.query import Query
from layertap.view.sides import Session, Side

if TYPE_CHECKING:
    from layertap.watching.trigger_report import TriggerReport

CELLS = 200_000
"""Numbers of a grid that its JSON form has at once; `from` and `count` choose other sites."""


def training_page(session: Session, query: Query) -> str:
    """One training, or two over the same steps and then each by itself."""
    numbers = [query.a] if query.b is None else [query.a, query.b]
    sides = [session.sides[number] for number in numbers]
    names = " · ".join(side.name for side in sides)
    parts = []
    if len(sides) == 2:
        key = ("apart", *numbers, *(side.version for side in sides))
        blocks = session.cached(key, lambda: _apart(sides))
        parts.append(f"<h2>{clean(names)}</h2>{_blocks(blocks, query, query.b)}" if blocks else "")
    for side in sides:
        triggers, problem = _triggers(side)
        name = clean(side.name)
        parts.append(f"<section class='about' data-run='{side.number}'><h2>{name}</h2>")
        parts.append(f"<p class='problem'>{clean(problem)}</p>" if problem else "")
        parts += [_trigger(side, report) for report in triggers]
        found = session.cached(("training", side.number, side.version), lambda s=side, t=triggers: _own(s, t))
        parts.append(_blocks(found, query, None, side.number))
        if not found:
            parts.append(f"<p class='soft'>{text('view.one_step')}</p>")
        parts.append("</section>")
    title = f"<h1>{text('view.training_title', names=names)}</h1>{''.join(alive(sides))}"
    version = clean(session.version)
    body = (
        f"{top(session, query, here='training')}{verdict_section('none', title)}"
        f"<main id='main' tabindex='0' class='wide training' data-version='{version}' data-page='training'>"
        f"<p class='legend'><output class='cell' id='cell'></output></p>{''.join(parts)}</main>{keys()}"
    )
    return document(f"{names} · layertap", body, scripts=("follow.js", "grid.js"), here="training")


def training_dict(session: Session, query: Query) -> dict[str, Any]:
    """The JSON form: for each run its losses, its triggers, and a statistic for each site and step."""
    numbers = [query.a] if query.b is None else [query.a, query.b]
    found = []
    for side in (session.sides[number] for number in numbers):
        triggers, problem = _triggers(side)
        with side.lock:
            grid = session.cached(("grid", side.number, side.version), lambda s=side: step_grid(s.run))
            curve = losses(side.run)
        most = max(1, CELLS // max(1, len(grid.steps)))
        start = max(0, query.number("from", 0))
        part = slice(start, start + min(most, max(0, query.number("count", most))))
        values = np.where(grid.bad[part], np.nan, grid.values[part])
        found.append(
            {
                "run": side.name,
                "loss": curve,
                "triggers": [report.to_dict() for report in triggers],
                "problem": problem,
                "statistic": "abs_mean",
                "steps": grid.steps,
                "total_sites": len(grid.sites),
                "sites": grid.sites[part],
                "values": [
                    [None if v != v and not b else v for v, b in zip(*pair, strict=True)]
                    for pair in zip(values.tolist(), grid.bad[part].tolist(), strict=True)
                ],
            }
        )
    return {"runs": found}


def _triggers(side: Side) -> tuple[Sequence[TriggerReport], str]:
    from layertap.watching.trigger_report import read_reports

    if side.run.path is None:
        return (), ""
    try:
        return read_reports(side.run.path), ""
    except LayertapError as error:
        return (), str(error)


def _own(side: Side, triggers: Sequence[TriggerReport]) -> list[Block]:
    marks = {report.step: tr("page.trigger_at", rule=report.rule, step=report.step) for report in triggers}
    with side.lock:
        return training_blocks(side.run, marks)


def _apart(sides: Sequence[Side]) -> list[Block]:
    one, two = sides
    with one.lock, two.lock:
        return pair_blocks(one.run, two.run)


def _trigger(side: Side, report: TriggerReport) -> str:
    site = report.birth.site if report.birth is not None else report.site
    shown = block_html(Verbatim(text=str(report)))
    if site not in side.run:
        return shown
    where = link("/", {"a": side.number, "b": "none", "site": site, "step": report.step})
    return f"{shown}<p><a href='{clean(where)}'>{text('view.open_site', site=site, step=report.step)}</a></p>"


def _blocks(blocks: Sequence[Block], query: Query, second: int | None, first: int | None = None) -> str:
    pair = {"a": query.a if first is None else first, "b": "none" if second is None else second}
    return "".join(
        _grid(block, pair) if isinstance(block, Chart) and block.spec.get("mark") == "rect" else _drawn(block)
        for block in blocks
    )


def _drawn(block: Block) -> str:
    return f"<h3>{clean(block.text)}</h3>" if isinstance(block, Heading) else block_html(block)


def _grid(chart: Chart, pair: dict[str, Any]) -> str:
    """A heat map whose cells lead to the site at that step."""
    encoding = chart.spec["encoding"]
    steps, sites = encoding["x"]["sort"], encoding["y"]["sort"]
    frame = Frame.of(chart.spec, sites)
    plot = [frame.left, frame.top, frame.width, frame.height, frame.outer_width, frame.outer_height]
    data = {"steps": steps, "sites": sites, "plot": plot, **pair}
    shown = clean(json.dumps(data, separators=(",", ":")))
    return (
        f"<figure class='grid' data-grid='{shown}'>{svg(chart.spec)}"
        f"<figcaption>{clean(chart.caption)} · {text('view.grid_click')}</figcaption></figure>"
    )
