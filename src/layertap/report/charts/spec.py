"""The charts as Vega-Lite specifications: plain dictionaries that any Vega-Lite renderer takes.

JSON has no NaN and a log axis no zero: what has no place on an axis is written at its end in words, never left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layertap.messages import tr
from layertap.report.charts.palette import BLUE, GREY, INK, RAMP, VERDICTS, VERMILLION
from layertap.report.charts.scales import log_domain
from layertap.report.values import number

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH = 720
WIDE = 20
"""Values that are spread by more than this factor are drawn on a log axis, where that is asked for."""
NAMED = 64
"""More sites than this are drawn over depth, fewer with a line and a name each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a site has on the chart of errors."""

    name: str
    total: float
    """The error seen at the site; NaN where it could not be measured."""
    own: float | None = None
    """The module's own error, where it is known."""
    floor: float = math.nan
    verdict: str = ""


def base(title: str, **more: Any) -> Spec:
    return {"$schema": SCHEMA, "title": title, "width": WIDTH, "config": {"view": {"stroke": None}}, **more}


def quantity(field: str, title: str = "", **scale: Any) -> Spec:
    return {"field": field, "type": "quantitative", "axis": {"title": title}, "scale": scale or {"zero": False}}


def counted(field: str, title: str, **scale: Any) -> Spec:
    """A quantity that is counted: steps, layers."""
    found = quantity(field, title, **scale)
    found["axis"]["tickMinStep"] = 1
    return found


def names(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", "sort": None, "axis": {"title": None}, **more}


def finite(value: float | None) -> float | None:
    """The value as JSON has it; None for NaN and the infinities."""
    return None if value is None or not math.isfinite(value) else float(value)


def errors(points: Sequence[Point], title: str, *, compact: bool = False) -> Spec:
    """Errors as dots on a log axis over a grey band that is the floor; a site with NaN or Inf says so at the end."""
    shown = [value for p in points for value in (p.total, p.own or 0.0, p.floor)]
    domain = log_domain(shown)
    by_name = len(points) <= NAMED and not compact
    rows = [_error_row(place, point, domain) for place, point in enumerate(points)]
    along, across = ("y", "x") if by_name else ("x", "y")
    if by_name:
        order: Spec = {**names("site"), "sort": [row["site"] for row in rows], "scale": {"paddingInner": 0}}
        size: Spec = {"height": {"step": 18}}
    else:
        order = counted("place", tr("chart.depth"), domain=[-0.5, max(len(points) - 0.5, 0.5)])
        size = {"height": 260}
    error = quantity("total", tr("chart.error"), type="log", domain=domain)
    floor = {along: order, across: {**error, "field": "floor"}, f"{across}2": {"datum": domain[0]}}
    grey = {"color": GREY, "opacity": 0.28, "aria": tr("chart.floor")}
    colours = {"field": "verdict", "type": "nominal", "scale": _verdict_colours(), "legend": {"title": None}}
    tip = {"tooltip": {"field": "tip"}}
    layers: list[Spec] = [
        {"mark": {"type": "bar" if by_name else "area", **grey}, "encoding": floor},
        {
            "mark": {"type": "point", "filled": True, "size": 46 if len(points) < 400 else 12},
            "encoding": {along: order, across: error, "color": colours, **tip},
        },
    ]
    if any(p.own is not None for p in points):
        own = {**error, "field": "own"}
        mark = {"type": "point", "filled": False, "shape": "diamond", "size": 60, "color": INK, "aria": tr("chart.own")}
        layers.append({"mark": mark, "encoding": {along: order, across: own, **tip}})
    said = {along: order, across: {"value": "width" if by_name else 0}, "text": {"field": "said"}, **tip}
    beyond = {"type": "text", "color": VERMILLION, "fontWeight": "bold", **({"dx": -14} if by_name else {"dy": -6})}
    layers.append({"mark": beyond, "encoding": said})
    none = {along: order, across: {"value": 0 if by_name else "height"}, "text": {"field": "none"}, **tip}
    layers.append({"mark": {"type": "text", "color": GREY, "dx": 8 if by_name else 0}, "encoding": none})
    return base(title, data={"values": rows}, layer=layers, **size)


def _error_row(place: int, point: Point, domain: Sequence[float]) -> Spec:
    beyond = [value for value in (point.total, point.own) if value is not None and not math.isfinite(value)]
    tip = f"{point.name}: {tr('chart.error')} {number(point.total, 3)}"
    tip += "" if point.own is None else f", {tr('chart.own')} {number(point.own, 3)}"
    return {
        "place": place,
        "site": point.name,
        "total": finite(point.total) or None,
        "own": finite(point.own) or None,
        "floor": max(finite(point.floor) or domain[0], domain[0]),
        "verdict": tr(f"site_table.{point.verdict}") if point.verdict else "",
        "said": number(beyond[0]) if beyond else "",
        "none": "0" if point.total == 0 else "",
        "tip": f"{tip}, {tr('chart.floor')} {number(point.floor, 3)}",
    }


def _verdict_colours() -> Spec:
    shown = ("noise", "fault", "inconclusive")
    return {"domain": [tr(f"site_table.{name}") for name in shown], "range": [VERDICTS[name] for name in shown]}


def histogram(edges: Sequence[float], counts: Sequence[int], title: str, said: str = "") -> Spec:
    """How many values each bin has; `said` names those that are not finite."""
    rows: list[Spec] = [
        {"from": low, "to": high, "count": int(count), "tip": f"{number(low, 3)} … {number(high, 3)}: {int(count)}"}
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if math.isfinite(low) and math.isfinite(high) and count
    ]
    most = max((row["count"] for row in rows), default=1)
    bar = {
        "x": quantity("from", said or tr("chart.difference"), domain=[_least(edges), _most(edges)]),
        "x2": {"field": "to"},
        "y": quantity("count", tr("chart.count"), type="symlog", domain=[0, most]),
        "tooltip": {"field": "tip"},
    }
    return base(title, height=180, data={"values": rows}, mark={"type": "bar", "color": BLUE}, encoding=bar)


def _least(edges: Sequence[float]) -> float:
    return min(filter(math.isfinite, edges), default=0.0)


def _most(edges: Sequence[float]) -> float:
    return max(filter(math.isfinite, edges), default=1.0)


def lines(
    series: Mapping[str, Iterable[tuple[float, float]]],
    title: str,
    *,
    across: str,
    log: bool = False,
    height: int = 160,
    marks: Mapping[int, str] | None = None,
) -> Spec:
    """Some quantities over steps; values that are not finite are marked at the top, `marks` by a line across."""
    rows: list[Spec] = []
    for name, points in series.items():
        fine = True
        for at, value in points:
            # One word where a stretch without numbers begins, not one a step.
            said = number(value) if fine and not math.isfinite(value) else ""
            fine = math.isfinite(value)
            rows.append({"x": at, "y": finite(value), "series": name, "said": said})
    known = [row["y"] for row in rows if row["y"] is not None]
    log = log and bool(known) and min(known) > 0 and max(known) > WIDE * min(known)
    y = quantity("y", type="log", domain=log_domain(known)) if log else quantity("y")
    x = counted("x", across)
    colour: Spec = {"field": "series", "type": "nominal", "sort": None}
    if len(series) == 1:
        colour["legend"] = None
    beyond = {"x": x, "y": {"value": 0}, "text": {"field": "said"}}
    across_all = [{"x": step, "tip": f"{step}: {said}"} for step, said in (marks or {}).items()]
    mark = {"type": "rule", "color": VERMILLION, "strokeDash": [4, 3]}
    dash = {**colour, "legend": None}
    layers: list[Spec] = [
        {"mark": mark, "data": {"values": across_all}, "encoding": {"x": x, "tooltip": {"field": "tip"}}},
        {"mark": {"type": "line"}, "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash}},
        {
            "mark": {"type": "text", "color": VERMILLION, "fontWeight": "bold", "dy": 6, "align": "left"},
            "encoding": beyond,
        },
    ]
    return base(title, height=height, data={"values": rows}, layer=layers)


def heat_map(
    cells: Iterable[tuple[str, str, float | str]],
    title: str,
    *,
    columns: Sequence[str],
    rows: Sequence[str],
    domain: tuple[float, float],
    across: str = "",
    ends: tuple[str, str] | None = None,
) -> Spec:
    """Names × names in colours; a value that is a text (NaN, Inf) has a colour of its own.

    `ends` say what the palest and the darkest colour mean.
    """
    values = [{"column": column, "row": row, "value": value} for column, row, value in cells]
    x: Spec = {"field": "column", "type": "ordinal", "sort": list(columns), "axis": {"title": across or None}}
    y: Spec = {"field": "row", "type": "ordinal", "sort": list(rows), "axis": {"title": None}}
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"domain": list(domain), "range": list(RAMP)},
        "legend": None,
    }
    for channel in (x, y):
        channel["scale"] = {"paddingInner": 0}
    legend = [[ends[0], RAMP[0]], [ends[1], RAMP[-1]]] if ends else []
    if any(isinstance(value["value"], str) for value in values):
        legend.append([tr("chart.nonfinite"), VERMILLION])
    whole = base(title, data={"values": values}, mark="rect", encoding={"x": x, "y": y, "color": colour})
    return {**whole, "height": {"step": 14}, "usermeta": {"legend": legend}}


def without_names(heat: Spec, side: int) -> Spec:
    """A heat map as a square picture of a matrix: no names, no legend."""
    bare = {channel: {**heat["encoding"][channel], "axis": None} for channel in ("x", "y")}
    picture = {"width": side, "height": side, "usermeta": {"legend": []}}
    return {**heat, "encoding": {**heat["encoding"], **bare}, **picture}


def matrix(
    cells: Iterable[tuple[str, str, float]], title: str, *, names: Sequence[str], equal: str, across: str = ""
) -> Spec:
    """Each of some names against each other: errors on a log scale as colours, and as numbers in the cells."""
    found = list(cells)
    low, high = (math.log10(value) for value in log_domain([value for _, _, value in found]))
    rows = []
    for row, column, value in found:
        known = math.isfinite(value)
        share = max(math.log10(value), low) if known and value > 0 else low
        text = equal if value == 0 else number(value, 2)
        dark = not known or share > (low + high) / 2
        rows.append({"row": row, "column": column, "value": share if known else "NaN", "text": text, "dark": dark})
    y = {"field": "row", "type": "ordinal", "sort": list(names), "axis": {"title": None}, "scale": {"paddingInner": 0}}
    x = {**y, "field": "column", "axis": {"title": across or None}}
    colour = {"field": "value", "type": "quantitative", "scale": {"domain": [low, high], "range": list(RAMP)}}
    layers: list[Spec] = [{"mark": "rect", "encoding": {"x": x, "y": y, "color": {**colour, "legend": None}}}]
    for dark, ink in ((True, "#ffffff"), (False, "#111111")):
        data = {"values": [row for row in rows if row["dark"] == dark]}
        mark = {"type": "text", "color": ink}
        layers.append({"mark": mark, "data": data, "encoding": {"x": x, "y": y, "text": {"field": "text"}}})
    whole = base(title, data={"values": rows}, layer=layers, height={"step": 26})
    return {**whole, "width": max(min(76 * len(names), WIDTH), 180)}


def intervals(rows: Iterable[tuple[str, float, float, float, str]], title: str, *, across: str) -> Spec:
    """A value with its interval for each name, on a log axis: (name, value, low, high, series)."""
    found = list(rows)
    domain = log_domain([value for row in found for value in row[1:3]] + [row[3] for row in found])
    values = [
        {
            "name": name,
            "value": finite(max(value, domain[0])),
            "low": finite(max(low, domain[0])),
            "high": finite(max(high, domain[0])),
            "series": series,
            "said": "" if math.isfinite(value) else number(value),
            "tip": f"{name}: {number(value, 3)} ({number(low, 3)} … {number(high, 3)})",
        }
        for name, value, low, high, series in found
    ]
    y = {**names("name"), "sort": [row["name"] for row in values]}
    x = quantity("value", across, type="log", domain=domain)
    colour = {"field": "series", "type": "nominal", "sort": None, "legend": {"title": None}}
    tip = {"tooltip": {"field": "tip"}}
    span = {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": {**colour, "legend": None}, **tip}
    layers = [
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": span},
        {"mark": {"type": "point", "filled": True, "size": 46}, "encoding": {"y": y, "x": x, "color": colour, **tip}},
        {
            "mark": {"type": "text", "color": VERMILLION, "dx": -14},
            "encoding": {"y": y, "x": {"value": "width"}, "text": {"field": "said"}},
        },
    ]
    return base(title, height={"step": 18}, data={"values": values}, layer=layers)
