"""A Vega-Lite specification as SVG, without a script and without a library: the marks and scales that layertap's charts
use, and no more of Vega-Lite than that.

The same specification can be given to any Vega-Lite renderer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from layertap.messages import printable
from layertap.report.charts.frame import TITLE, Frame, legend, text
from layertap.report.charts.palette import INK, RAMP, SERIES, VERMILLION, variable
from layertap.report.charts.scales import Band, Continuous, Scale, colour_at, scale_of

Spec = Mapping[str, Any]
GAP = 14
DASHES = ("", "6 3", "2 2", "9 3 2 3", "4 2 1 2")
"""Lines differ in more than their colours."""
"""Between charts that stand above one another."""


def svg(spec: Spec, *, page: bool = True) -> str:
    """The drawing; for a `page` its colours follow the page's, else it is a file of its own."""
    body, width, height = _grid(spec, page) if "concat" in spec else _unit(spec, page)
    size = f"viewBox='0 0 {_n(width)} {_n(height)}' width='{_n(width)}' height='{_n(height)}'"
    label = escape(printable(str(spec.get("description") or spec.get("title", ""))))
    if page:
        return f"<svg {size} role='img' aria-label='{label}'>{body}</svg>"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-family='sans-serif' font-size='11'>"
        f"<rect width='100%' height='100%' fill='#ffffff'/>{body}</svg>"
    )


def _grid(spec: Spec, page: bool) -> tuple[str, float, float]:
    """Charts beside and below one another, under one title."""
    ink = variable(INK) if page else INK
    drawn = [text(4, 14, str(spec.get("title", "")), ink, "start", extra=TITLE)]
    columns = spec.get("columns", 1)
    top, left, low, width = 20.0, 0.0, 0.0, 0.0
    for number, part in enumerate(spec["concat"]):
        if number and number % columns == 0:
            top, left, low = top + low + GAP, 0.0, 0.0
        body, wide, high = _unit(part, page)
        drawn.append(f"<g transform='translate({_n(left)},{_n(top)})'>{body}</g>")
        left, low = left + wide, max(low, high)
        width = max(width, left)
    return "".join(drawn), width, top + low


def _unit(spec: Spec, page: bool) -> tuple[str, float, float]:
    """One chart: its drawing, width and height."""
    layers = [{"data": spec.get("data"), **layer} for layer in spec.get("layer", [spec])]
    units = [(layer, (layer.get("data") or {}).get("values") or []) for layer in layers]
    frame = Frame.of(spec, _longest(units), bare=any(_is_bare(layer) for layer, _ in units))
    scales = {
        "x": _scale(units, "x", frame.left, frame.left + frame.width),
        "y": _scale(units, "y", frame.top + frame.height, frame.top),
    }
    body = [frame.axes(scales["x"], scales["y"], _axis(units, "x"), _axis(units, "y"), page=page)]
    entries = [(name, colour) for name, colour in (spec.get("usermeta") or {}).get("legend", ())]
    for layer, rows in units:
        marks = _Marks(layer, rows, scales, frame, page)
        body += marks.draw()
        entries += [entry for entry in marks.legend() if entry not in entries]
    body.append(legend(entries, frame, page=page))
    return "".join(body), frame.outer_width, frame.outer_height


def _is_bare(layer: Spec) -> bool:
    """Whether it is a picture without axes."""
    channel = layer.get("encoding", {}).get("x", {})
    return "axis" in channel and channel["axis"] is None


def _longest(units: Iterable[tuple[Spec, Sequence[Any]]]) -> list[str]:
    """The names on the y axis, for which room must be left."""
    names: list[str] = []
    for layer, rows in units:
        channel = layer.get("encoding", {}).get("y", {})
        if channel.get("type") in ("nominal", "ordinal"):
            names += channel["sort"] if isinstance(channel.get("sort"), list) else _values(rows, channel)
    return list(dict.fromkeys(map(str, names)))


def _scale(units: Sequence[tuple[Spec, Sequence[Any]]], channel: str, start: float, end: float) -> Scale:
    """What all layers share; names go from top to bottom."""
    values: list[Any] = []
    chosen: Mapping[str, Any] = {}
    for layer, rows in units:
        for name in (channel, channel + "2"):
            found = layer.get("encoding", {}).get(name)
            if found is not None:
                values += _values(rows, found)
                if name == channel and (not chosen or "scale" in found) and "value" not in found:
                    chosen = {**chosen, **found}
    if channel == "y" and chosen.get("type") in ("nominal", "ordinal"):
        start, end = end, start
    return scale_of(chosen, values, start, end)


def _axis(units: Sequence[tuple[Spec, Sequence[Any]]], channel: str) -> Mapping[str, Any]:
    found = (layer.get("encoding", {}).get(channel, {}) for layer, _ in units)
    return next((one for one in found if "axis" in one or "title" in one), {})


def _values(rows: Sequence[Any], channel: Mapping[str, Any]) -> list[Any]:
    if "datum" in channel:
        return [channel["datum"]]
    return [row.get(channel["field"]) for row in rows] if "field" in channel else []


class _Marks:
    """The marks of one layer."""

    def __init__(
        self, layer: Spec, rows: Sequence[Mapping[str, Any]], scales: Mapping[str, Scale], frame: Frame, page: bool
    ) -> None:
        mark = layer.get("mark", {})
        self.mark: Mapping[str, Any] = {"type": mark} if isinstance(mark, str) else mark
        self.encoding: Mapping[str, Any] = layer.get("encoding", {})
        self.rows, self.scales, self.frame, self.page = rows, scales, frame, page
        self.bands = {name: scale.places() for name, scale in scales.items() if isinstance(scale, Band)}

    def draw(self) -> list[str]:
        kind = self.mark["type"]
        if kind in ("line", "area"):
            dashed = "strokeDash" in self.encoding
            series = enumerate(self._series())
            return [self._path(rows, colour, DASHES[n % len(DASHES)] if dashed else "") for n, (colour, rows) in series]
        if kind == "rect":
            return self._cells()
        draw = {"point": self._point, "rule": self._rule, "bar": self._bar, "text": self._text}[kind]
        return [drawn for row in self.rows if (drawn := draw(row))]

    def legend(self) -> list[tuple[str, str]]:
        """Names and colours; of a scale from little to much, its two ends."""
        channel = self.encoding.get("color", {})
        if "field" in channel and channel.get("type") == "nominal" and channel.get("legend", True) is not None:
            met = {str(row.get(channel["field"])) for row in self.rows}
            return [(name, colour) for name, colour in self._colours().items() if name in met]
        name = self.mark.get("aria", "")
        return (
            [(name, self._colour({}))] if name and self.mark["type"] != "point" else [(f"◇ {name}", "")] if name else []
        )

    # Where, and in which colour.

    def _at(self, row: Mapping[str, Any], channel: str) -> float | None:
        found, axis = self.encoding.get(channel), channel[0]
        if found is None:
            return None
        if "value" in found:
            ends = {"width": self.frame.left + self.frame.width, "height": self.frame.top + self.frame.height}
            base = self.frame.left if axis == "x" else self.frame.top
            value = found["value"]
            return ends[value] if value in ends else base + float(value)
        value = found["datum"] if "datum" in found else row.get(found["field"])
        if axis in self.bands:
            return self.bands[axis].get(str(value))
        scale = self.scales[axis]
        assert isinstance(scale, Continuous)
        return scale.at(value)

    def _colours(self) -> dict[str, str]:
        channel = self.encoding["color"]
        scale = channel.get("scale", {})
        names = scale.get("domain") or list(dict.fromkeys(str(row.get(channel["field"])) for row in self.rows))
        return dict(zip(map(str, names), scale.get("range", SERIES), strict=False))

    def _colour(self, row: Mapping[str, Any]) -> str:
        channel = self.encoding.get("color", {})
        if "field" not in channel:
            return str(channel.get("value") or self.mark.get("color", INK))
        return self._colours().get(str(row.get(channel["field"])), INK)

    def _ink(self, colour: str) -> str:
        return variable(colour) if self.page else colour

    def _series(self) -> list[tuple[str, list[Mapping[str, Any]]]]:
        channel = self.encoding.get("color", {})
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault(str(row.get(channel["field"])) if "field" in channel else "", []).append(row)
        return [(self._colour(rows[0]), rows) for rows in groups.values()]

    def _tip(self, row: Mapping[str, Any]) -> str:
        channel = self.encoding.get("tooltip", {})
        said = row.get(channel["field"]) if "field" in channel else None
        return f"<title>{escape(printable(str(said)))}</title>" if said else ""

    # The marks.

    def _point(self, row: Mapping[str, Any]) -> str:
        x, y = self._at(row, "x"), self._at(row, "y")
        if x is None or y is None:
            return ""
        radius = (self.mark.get("size", 40) / 3.14159) ** 0.5
        ink, tip = self._ink(self._colour(row)), self._tip(row)
        look = f"fill='{ink}'" if self.mark.get("filled", True) else f"fill='none' stroke='{ink}' stroke-width='1.5'"
        if self.mark.get("shape") == "diamond":
            r = radius * 1.25
            path = f"M{_n(x - r)} {_n(y)}L{_n(x)} {_n(y - r)}L{_n(x + r)} {_n(y)}L{_n(x)} {_n(y + r)}z"
            return f"<path d='{path}' {look}>{tip}</path>"
        return f"<circle cx='{_n(x)}' cy='{_n(y)}' r='{_n(radius)}' {look}>{tip}</circle>"

    def _rule(self, row: Mapping[str, Any]) -> str:
        x, y, x2, y2 = (self._at(row, name) for name in ("x", "y", "x2", "y2"))
        frame = self.frame
        if x is None and y is None:
            return ""
        if y is None:
            y, y2, x2 = frame.top, frame.top + frame.height, x
        elif x is None:
            x, x2, y2 = frame.left, frame.left + frame.width, y
        x2, y2 = x if x2 is None else x2, y if y2 is None else y2
        dash = "stroke-dasharray='4 3'" if self.mark.get("strokeDash") else ""
        look = f"stroke='{self._ink(self._colour(row))}' stroke-width='{self.mark.get('strokeWidth', 1.2)}' {dash}"
        line = f"x1='{_n(x or 0)}' y1='{_n(y)}' x2='{_n(x2 or 0)}' y2='{_n(y2)}'"
        return f"<line {line} {look}>{self._tip(row)}</line>"

    def _bar(self, row: Mapping[str, Any]) -> str:
        x, y, x2, y2 = (self._at(row, name) for name in ("x", "y", "x2", "y2"))
        if x is None or y is None:
            return ""
        frame, thick = self.frame, self.mark.get("height")
        band_x, band_y = self.scales["x"], self.scales["y"]
        if isinstance(band_y, Band):
            high = thick or band_y.step * (1 - band_y.padding)
            low, end = sorted((x, frame.left if x2 is None else x2))
            place = f"x='{_n(low)}' y='{_n(y - high / 2)}' width='{_n(max(end - low, 0))}' height='{_n(high)}'"
        else:
            if isinstance(band_x, Band):
                wide = band_x.step * (1 - band_x.padding)
                x -= wide / 2
            else:
                wide = max((x if x2 is None else x2) - x - 0.5, 0.5)
            foot = frame.top + frame.height if y2 is None else y2
            place = f"x='{_n(x)}' y='{_n(min(y, foot))}' width='{_n(wide)}' height='{_n(abs(foot - y))}'"
        opacity = f" opacity='{self.mark['opacity']}'" if "opacity" in self.mark else ""
        return f"<rect {place} fill='{self._ink(self._colour(row))}'{opacity}>{self._tip(row)}</rect>"

    def _text(self, row: Mapping[str, Any]) -> str:
        x, y = self._at(row, "x"), self._at(row, "y")
        channel = self.encoding.get("text", {})
        said = row.get(channel["field"]) if "field" in channel else channel.get("value")
        if x is None or y is None or said in (None, ""):
            return ""
        anchor = {"left": "start", "right": "end"}.get(self.mark.get("align", "center"), "middle")
        x, y = x + self.mark.get("dx", 0), y + 3.5 + self.mark.get("dy", 0)
        bold = " font-weight='600'" if self.mark.get("fontWeight") == "bold" else ""
        return text(x, y, str(said), self._ink(self._colour(row)), anchor, extra=bold)

    def _path(self, rows: Sequence[Mapping[str, Any]], colour: str, dash: str = "") -> str:
        """A line, or the area below it; it stops where a value has no place, and goes on behind."""
        pieces: list[list[tuple[float, float, float]]] = [[]]
        foot = self.frame.top + self.frame.height
        for row in rows:
            x, y, y2 = self._at(row, "x"), self._at(row, "y"), self._at(row, "y2")
            if x is None or y is None:
                pieces.append([])
                continue
            pieces[-1].append((x, y, foot if y2 is None else y2))
        ink, path = self._ink(colour), ""
        area = self.mark["type"] == "area"
        for piece in filter(None, pieces):
            if len(piece) == 1:
                x, y, low = piece[0]
                piece = [(x - 2, y, low), (x + 2, y, low)]
            path += "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y, _ in piece)
            if area:
                path += "L" + "L".join(f"{_n(x)} {_n(low)}" for x, _, low in reversed(piece)) + "z"
        if not path:
            return ""
        look = f"fill='{ink}' opacity='{self.mark.get('opacity', 0.25)}'" if area else f"fill='none' stroke='{ink}'"
        width = "" if area else f" stroke-width='{self.mark.get('strokeWidth', 1.6)}' stroke-linejoin='round'"
        broken = f" stroke-dasharray='{dash}'" if dash else ""
        return f"<path d='{path}' {look}{width}{broken}/>"

    def _cells(self) -> list[str]:
        """A heat map: one path a colour, so that ten thousand cells stay small."""
        wide, high = (scale.step if isinstance(scale, Band) else 1.0 for scale in self.scales.values())
        channel = self.encoding.get("color", {})
        paths: dict[str, list[str]] = {}
        cells: dict[tuple[float, str], list[float]] = {}
        stops = channel.get("scale", {}).get("range", RAMP)
        low, high_value = channel.get("scale", {}).get("domain", (0.0, 1.0))
        for row in self.rows:
            x, y = self._at(row, "x"), self._at(row, "y")
            value = row.get(channel.get("field", ""))
            if x is None or y is None or value is None:
                continue
            known = isinstance(value, (int, float))
            share = (value - low) / ((high_value - low) or 1.0) if known else 0.0
            colour = colour_at(stops, round(share * 31) / 31) if known else VERMILLION
            cells.setdefault((y, colour), []).append(x)
        for (y, colour), places in cells.items():
            for start, end in _runs(sorted(places), wide):
                left, right = _n(start - wide / 2), _n(end + wide / 2)
                corner = f"M{left} {_n(y - high / 2)}H{right}V{_n(y + high / 2)}H{left}z"
                paths.setdefault(colour, []).append(corner)
        return [
            f"<path d='{''.join(parts)}' fill='{colour}' shape-rendering='crispEdges'/>"
            for colour, parts in paths.items()
        ]


def _runs(places: Sequence[float], step: float) -> list[tuple[float, float]]:
    """Neighbours together."""
    found: list[tuple[float, float]] = []
    for place in places:
        if found and place - found[-1][1] < step * 1.5:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found


def _n(value: float) -> str:
    """A coordinate in few characters."""
    return f"{value:.1f}".removesuffix(".0")
