"""From values to places: the scales of Vega-Lite that the charts use, with their ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layertap.report.values import number

TICKS = 6
"""About as many ticks an axis gets."""


@dataclass(frozen=True, slots=True)
class Continuous:
    """A linear, logarithmic or symmetric-logarithmic axis."""

    kind: str
    low: float
    high: float
    start: float
    end: float
    least: float = 0.0
    """The smallest step between ticks."""

    def at(self, value: Any) -> float | None:
        """The place of a value; None where the axis has none for it (NaN, zero on a log axis)."""
        if not isinstance(value, (int, float)) or not math.isfinite(value) or (self.kind == "log" and value <= 0):
            return None
        low, high = self._moved(self.low), self._moved(self.high)
        share = (self._moved(value) - low) / ((high - low) or 1.0)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels."""
        values = _powers(self.low, self.high) if self.kind == "log" else _round_values(self.low, self.high, self.least)
        if self.kind == "symlog":
            values = _symmetric(self.low, self.high)
        placed = ((self.at(value), value) for value in values)
        return [(place, _label(value, self.kind)) for place, value in placed if place is not None]

    def _moved(self, value: float) -> float:
        if self.kind == "log":
            return math.log10(value)
        return math.asinh(value) if self.kind == "symlog" else value


@dataclass(frozen=True, slots=True)
class Band:
    """A row or column for each name."""

    names: tuple[str, ...]
    start: float
    end: float
    padding: float = 0.1

    @property
    def step(self) -> float:
        return (self.end - self.start) / max(len(self.names), 1)

    def places(self) -> dict[str, float]:
        """The middle of each band."""
        return {name: self.start + self.step * (place + 0.5) for place, name in enumerate(self.names)}


Scale = Continuous | Band


def scale_of(encoding: Mapping[str, Any], values: Sequence[Any], start: float, end: float) -> Scale:
    """The scale that a channel's definition asks for, over these values where it names no domain."""
    asked = encoding.get("scale") or {}
    if encoding.get("type") in ("ordinal", "nominal"):
        names = asked.get("domain") or list(dict.fromkeys(str(value) for value in values))
        if isinstance(encoding.get("sort"), list):
            names = encoding["sort"]
        return Band(tuple(map(str, names)), start, end, asked.get("paddingInner", 0.1))
    kind = asked.get("type", "linear")
    known = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v) and (kind != "log" or v > 0)]
    low, high = asked.get("domain") or (min(known, default=0.0), max(known, default=1.0))
    if kind == "linear" and asked.get("zero", "domain" not in asked):
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        low, high = (low / 10, high * 10) if kind == "log" and low > 0 else (low - 0.5, high + 0.5)
    return Continuous(kind, low, high, start, end, (encoding.get("axis") or {}).get("tickMinStep", 0.0))


def log_domain(values: Sequence[float]) -> list[float]:
    """Powers of ten around the positive finite values, at least two of them apart."""
    known = [math.log10(value) for value in values if math.isfinite(value) and value > 0]
    low, high = (math.floor(min(known)), math.ceil(max(known))) if known else (-8, 0)
    if high - low < 2:
        low, high = low - 1, max(high, low + 1)
    return [10.0**low, 10.0**high]


def colour_at(stops: Sequence[str], share: float) -> str:
    """A colour between the stops.

    >>> colour_at(["#000000", "#ffffff"], 0.5)
    '#808080'
    """
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    below = min(int(place), len(stops) - 2)
    part = place - below
    mixed = (
        round(int(stops[below][i : i + 2], 16) * (1 - part) + int(stops[below + 1][i : i + 2], 16) * part)
        for i in (1, 3, 5)
    )
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / (TICKS + 2)))
    return [10.0**power for power in range(first, last + 1, every)]


def _round_values(low: float, high: float, least: float) -> list[float]:
    """At most a few round values, as people count: 1, 2, 5, 10, …"""
    raw = (high - low) / TICKS
    if raw <= 0 or not math.isfinite(raw):
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(times for times in (1, 2, 5, 10) if times * power >= raw * (1 - 1e-9))
    step = max(step, least)
    return [step * count for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _symmetric(low: float, high: float) -> list[float]:
    largest = max(abs(low), abs(high), 1e-9)
    powers = [10.0**power for power in range(math.ceil(math.log10(largest)) + 1)] if largest > 1 else [largest]
    return [value for value in (*(-p for p in reversed(powers)), 0.0, *powers) if low <= value <= high]


def _label(value: float, kind: str) -> str:
    if kind == "log":
        return f"1e{round(math.log10(value))}" if not 0.01 <= value < 10_000 else f"{value:,.4g}"
    if abs(value) < 1e-12:
        return "0"
    return f"{round(value):,}" if value == round(value) and abs(value) < 1e6 else number(value, 3)
