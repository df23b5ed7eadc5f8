"""What is around the marks: axes, titles and the legend, and how much room they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.cells import cell_len, set_cell_size

from layertap.messages import printable
from layertap.report.charts.palette import GREY, INK, variable
from layertap.report.charts.scales import Band, Scale

CHARACTER = 6.3
"""The width of a character of the axes' letters."""
NAME = 46
"""Characters of a name; longer ones lose their middle."""
RIGHT = 26
TITLE = " font-weight='600' font-size='13'"


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the marks go."""

    left: float
    top: float
    width: float
    height: float
    title: str
    bottom: float
    bare: bool = False
    """Whether there are no axes."""

    @classmethod
    def of(cls, spec: Mapping[str, Any], names: Sequence[str], *, bare: bool = False) -> Frame:
        title = spec.get("title", "")
        title = title.get("text", "") if isinstance(title, Mapping) else title
        height = spec.get("height", 200)
        if isinstance(height, Mapping):
            height = height["step"] * max(len(names), 1)
        if bare:
            return cls(4, 20, float(spec.get("width", 640)), float(height), str(title), 6, bare=True)
        longest = max((cell_len(shortened(name)) for name in names), default=7)
        left = max(longest * CHARACTER + 12, 62)
        return cls(left, 46 if title else 24, float(spec.get("width", 640)), float(height), str(title), 42)

    @property
    def outer_width(self) -> float:
        return self.left + self.width + RIGHT

    @property
    def outer_height(self) -> float:
        return self.top + self.height + self.bottom

    def axes(self, x: Scale, y: Scale, x_axis: Mapping[str, Any], y_axis: Mapping[str, Any], *, page: bool) -> str:
        """Grid, labels and titles."""
        ink, grey = (variable(INK), variable(GREY)) if page else (INK, GREY)
        foot, right = self.top + self.height, self.left + self.width
        parts = [text(4, 14, self.title, ink, "start", extra="" if self.bare else TITLE)] if self.title else []
        if self.bare:
            return "".join(parts)
        for place, label in _ticks(x, self.width):
            if not isinstance(x, Band):
                parts.append(_line(place, self.top, place, foot, grey))
            parts.append(text(place, foot + 14, label, ink, "middle"))
        for place, label in _ticks(y, self.height):
            if not isinstance(y, Band):
                parts.append(_line(self.left, place, right, place, grey))
            parts.append(text(self.left - 6, place + 3.5, shortened(label), ink, "end", full=label))
        parts.append(_line(self.left, foot, right, foot, grey, 1.0))
        for axis, at_x in ((x_axis, True), (y_axis, False)):
            title = (axis.get("axis") or {}).get("title", axis.get("title"))
            if title and at_x:
                parts.append(text(self.left + self.width / 2, foot + 32, title, ink, "middle"))
            elif title:
                parts.append(text(4, self.top - 8, title, ink, "start"))
        return "".join(parts)


def legend(entries: Sequence[tuple[str, str]], frame: Frame, *, page: bool) -> str:
    """Names and colours in one line above the marks, from the right; without a colour the name says it."""
    parts, right = [], frame.left + frame.width
    for name, colour in reversed(entries):
        right -= cell_len(name) * CHARACTER
        ink = variable(colour) if page else colour
        parts.append(text(right, frame.top - 8, name, variable(INK) if page else INK, "start"))
        if colour:
            faint = " opacity='0.4'" if colour == GREY else ""
            parts.append(
                f"<rect x='{right - 14:.1f}' y='{frame.top - 17:.1f}' width='10' height='10' fill='{ink}'{faint}/>"
            )
        right -= 28 if colour else 12
    return "".join(parts)


def text(x: float, y: float, said: str, ink: str, anchor: str, *, extra: str = "", full: str = "") -> str:
    said, full = printable(said), printable(full)
    tip = f"<title>{escape(full)}</title>" if full and full != said else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{ink}'{extra}>{tip}{escape(said)}</text>"


def shortened(name: str) -> str:
    """A long name without its middle: both ends tell names of modules apart.

    >>> shortened("model." + "x" * 80 + ".layers.30.mlp")
    'model.xxxxxxxxxxxxxxxx…xxxxxxxxx.layers.30.mlp'
    """
    if cell_len(name) <= NAME:
        return name
    half = NAME // 2
    tail = name[-half:]
    while cell_len(tail) > half:
        tail = tail[1:]
    return set_cell_size(name, half - 1).rstrip() + "…" + tail


def _ticks(scale: Scale, room: float) -> list[tuple[float, str]]:
    if not isinstance(scale, Band):
        return scale.ticks()
    every = max(1, -(-len(scale.names) * 14 // max(int(room), 1)))
    widest = max(map(len, scale.names), default=1) * CHARACTER
    if scale.start < scale.end and scale.step < widest and scale.start > 60 and room > 300 and every == 1:
        every = max(1, -(-int(widest + 8) // max(int(scale.step), 1)))
    return [(place, name) for number, (name, place) in enumerate(scale.places().items()) if number % every == 0]


def _line(x1: float, y1: float, x2: float, y2: float, ink: str, opacity: float = 0.25) -> str:
    return f"<path d='M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}' stroke='{ink}' opacity='{opacity}' fill='none'/>"
