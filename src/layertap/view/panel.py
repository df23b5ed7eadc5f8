"""The chosen site: what it is, how A and B differ, maps, histograms, the worst places, statistics over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from layertap.messages import tr
from layertap.report.values import number
from layertap.view.charts import histogram, over_steps
from layertap.view.html import clean, link, options, table, text
from layertap.view.query import Query
from layertap.view.sides import Session
from layertap.view.site import Chosen, chosen, worst
from layertap.view.tensors import Kept, step_records

HEADS = 32
"""Attention maps that are shown at once."""
_STATISTICS = ("count", "mean", "std", "min", "max", "abs_mean", "abs_max", "l2", "zero", "nan", "pos_inf", "neg_inf")
_METRICS = ("max_abs", "mean_abs", "relative_l2", "cosine", "sqnr", "max_ulp", "close", "nan_mismatch", "inf_mismatch")


def site_panel(session: Session, query: Query) -> str:
    """The panel of the address's site."""
    one = chosen(session, query)
    record = one.either.record
    about = f"{_shape(record.shape)} {record.dtype}, {record.device}, {tr('view.at_step', step=record.step)}"
    site = clean(query.site)
    parts = [
        f"<h2 tabindex='-1' data-panel='{site}'>{site} <small>{clean(record.kind)}</small></h2>",
        f"<p class='soft'>{clean(about)}</p>",
    ]
    if one.row is not None:
        other = one.row.candidate_site
        if other != one.row.site:
            parts.append(f"<p>{text('view.paired', site=other, way=one.row.rung)}</p>")
        parts.append(f"<p class='why {one.row.verdict}'>{text('result.' + one.row.verdict)}: {clean(one.row.why)}</p>")
    elif query.b is not None:
        parts.append(f"<p class='why inconclusive'>{text('view.one_side', side='A' if one.a else 'B')}</p>")
    parts += _maps(one, query)
    parts += _difference(one)
    parts.append(_statistics(one))
    parts += _histogram(one)
    parts += _worst(one)
    parts += _over_steps(one)
    return "".join(parts)


def _maps(one: Chosen, query: Query) -> list[str]:
    names = one.maps()
    if not names:
        reasons = list(dict.fromkeys(side.why for _, side in one.sides() if side.why))
        if len([side for _, side in one.sides() if side.values is not None]) == 2:
            reasons.append(tr("view.shapes_differ"))
        return [f"<p class='soft'>{clean(why)}</p>" for why in reasons]
    plane = one.plane
    parts = [f"<h3>{text('view.maps')}</h3>", _choices(one)]
    ask = {**query.moment(), "site": query.site, "step": one.step, "index": query.given.get("index", "")}
    if not plane.whole:
        window = f"{plane.top},{plane.left},{plane.height},{plane.width}"
        ask["window"] = window
        parts.append(
            f"<p class='soft'>{text('view.window', top=plane.top, bottom=plane.top + plane.height - 1)} "
            f"{text('view.window_columns', left=plane.left, right=plane.left + plane.width - 1)} "
            f"<a data-put='window=' href='{clean(link('/', {**ask, 'window': ''}))}'>{text('view.whole')}</a></p>"
        )
    titles = {"a": "view.map_a", "b": "view.map_b", "d": "view.map_d"}
    for name, values in names.items():
        part = plane.cut(values)
        finite = np.abs(part[np.isfinite(part)])
        limit = number(float(finite.max()), 3) if finite.size else "0"
        odd = _odd(part)
        label = tr(titles[name], run=_run_name(one, name))
        title = clean(label)
        parts.append(
            f"<figure class='map' data-map='{name}' data-rows='{plane.rows}' data-columns='{plane.columns}'>"
            f"<figcaption><b>{title}</b> <span>± {limit}</span>{odd}</figcaption>"
            f"{_image({**ask, 'map': name}, label + ', ' + tr('view.rows_columns'))}"
            f"</figure>"
        )
    parts.append(
        f"<p class='legend'><span class='soft'>{text('view.legend')}</span> <i class='nan'></i>NaN "
        f"<i class='plus'></i>+Inf <i class='minus'></i>-Inf <output class='cell' aria-live='off'></output></p>"
    )
    return parts + _heads(one, ask)


def _image(ask: dict[str, Any], label: str) -> str:
    light, dark = (clean(link("/tile.png", {**ask, "dark": flag})) for flag in ("", "1"))
    return (
        f"<picture><source media='(prefers-color-scheme: dark)' srcset='{dark}'>"
        f"<img src='{light}' alt='{clean(label)}' draggable='false'></picture>"
    )


def _choices(one: Chosen) -> str:
    """Selects for the leading axes: batch, head."""
    leading = one.plane.shape[:-2]
    if not any(size > 1 for size in leading):
        return ""
    here = list(one.plane.index)
    parts = []
    for axis, size in enumerate(leading):
        if size < 2:
            continue
        values = [
            (",".join(map(str, [*here[:axis], place, *here[axis + 1 :]])), str(place))
            for place in range(min(size, 512))
        ]
        chosen_now = ",".join(map(str, here))
        label = text("view.axis", axis=axis, size=size)
        parts.append(f"<label>{label} <select data-name='index'>{options(values, chosen_now)}</select></label>")
    return f"<p class='choices'>{' '.join(parts)}</p>"


def _heads(one: Chosen, ask: dict[str, Any]) -> list[str]:
    """Attention maps by head, where the last two axes are tokens by tokens."""
    shape = one.plane.shape
    attention = "attn" in one.query.site.lower() or "attention" in one.query.site.lower()
    if len(shape) < 3 or shape[-3] < 2 or not (attention and (shape[-1] == shape[-2] or len(shape) == 4)):
        return []
    before = list(one.plane.index[:-1])
    figures = []
    for head in range(min(shape[-3], HEADS)):
        index = ",".join(map(str, [*before, head]))
        for name in one.maps():
            asked = {**ask, "index": index, "map": name, "window": ""}
            label = tr("view.head", head=head) + (f" {name.upper()}" if name != "d" else " B−A")
            figures.append(
                f"<figure><a data-put='index={index}' href='{clean(link('/', {**ask, 'index': index}))}'>"
                f"{_image(asked, label)}</a><figcaption>{clean(label)}</figcaption></figure>"
            )
    return [f"<h3>{text('view.heads')}</h3><div class='heads n{len(one.maps())}'>{''.join(figures)}</div>"]


def _difference(one: Chosen) -> list[str]:
    if one.row is None:
        return []
    about = "≈ " if one.row.estimated else ""
    rows = [
        (tr("site_table.error"), about + number(one.row.error, 4)),
        (tr("site_table.floor"), f"{number(one.row.floor, 4)} ({one.row.floor_kind})"),
        (tr("site_table.ratio"), number(one.row.ratio, 4)),
    ]
    found = one.row.difference
    if found is not None:
        rows += [(tr(f"view.metric_{name}"), number(float(getattr(found, name)), 5)) for name in _METRICS]
        for name in ("row", "column"):
            part = getattr(found, name)
            if part is not None:
                place = ", ".join(map(str, part.index))
                rows.append((tr(f"view.worst_{name}"), tr("view.carries", place=place, share=f"{part.share:.1%}")))
    return [f"<h3>{text('view.difference')}</h3>{table(('', ''), rows, css='plain pairs')}"]


def _statistics(one: Chosen) -> str:
    sides = one.sides()
    rows: list[list[object]] = []
    for name in _STATISTICS:
        values = [getattr(side.record.statistics, name) for _, side in sides]
        rows.append([tr(f"view.stat_{name}"), *(_stat(value) for value in values)])
    rows.append([tr("view.stat_dtype"), *(side.record.dtype for _, side in sides)])
    rows.append([tr("view.stat_fingerprint"), *(f"{side.record.fingerprint:016x}" for _, side in sides)])
    first = [" ".join(number(value, 4) for value in side.record.statistics.first[:5]) for _, side in sides]
    rows.append([tr("view.stat_first"), *first])
    titles = ["", *(f"{name} {side.side.name}" for name, side in sides)]
    return f"<h3>{text('view.statistics')}</h3>{table(titles, rows)}"


def _histogram(one: Chosen) -> list[str]:
    sides = [(f"{name} {side.side.name}", side.values) for name, side in one.sides() if side.values is not None]
    if not sides:
        return []
    chart = histogram([(name, np.asarray(values)) for name, values in sides], tr("view.histogram"))
    names = "".join(f"<span class='key s{place}'>{clean(name)}</span>" for place, (name, _) in enumerate(sides))
    return [f"<h3>{text('view.histogram')} {names}</h3>{chart}"] if chart else []


def _worst(one: Chosen) -> list[str]:
    found = worst(one)
    if not found:
        return []
    both = one.difference is not None
    titles = [tr("view.index"), *(name for name, _ in one.sides()), *(["B − A"] if both else [])]
    rows = []
    for line in found:
        values = [line[name] for name in ("a", "b", "difference") if name in line]
        rows.append([", ".join(map(str, line["index"])), *(number(value, 5) for value in values)])
    title = "view.worst" if both else "view.largest"
    return [f"<h3>{text(title)}</h3>{table(titles, rows)}"]


def _over_steps(one: Chosen) -> list[str]:
    parts = []
    held = [(name, side, step_records(side.side, str(side.record.site))) for name, side in one.sides()]
    if all(len({record.step for record in records}) < 2 for _, _, records in held):
        return []
    parts.append(f"<h3>{text('view.over_steps')}</h3>")
    for stat in ("abs_max", "std", "mean"):
        lines = []
        for name, _side, records in held:
            some = records[:: max(1, math.ceil(len(records) / 600))]
            values = [_or_nan(record, stat) for record in some]
            lines.append((name, [record.step for record in some], values))
        parts.append(f"<h4>{text('view.stat_' + stat)}</h4>{over_steps(lines, tr('view.stat_' + stat), one.step)}")
    return parts


def _or_nan(record: Any, stat: str) -> float:
    return math.nan if record.statistics.nonfinite else float(getattr(record.statistics, stat))


def _run_name(one: Chosen, name: str) -> str:
    side: Kept | None = one.a if name == "a" else one.b
    return side.side.name if side is not None else ""


def _odd(values: np.ndarray[Any, Any]) -> str:
    counts = (("NaN", np.isnan(values)), ("+Inf", np.isposinf(values)), ("-Inf", np.isneginf(values)))
    found = [f"{int(mask.sum())} {name}" for name, mask in counts if mask.any()]
    return f" <b class='problem'>{', '.join(found)}</b>" if found else ""


def _stat(value: float) -> str:
    return str(value) if isinstance(value, int) else number(value, 6)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"
