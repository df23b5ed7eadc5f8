"""Small charts as SVG: two histograms over each other, a statistic over steps. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from layertap.report.values import number
from layertap.view.html import clean

Values = npt.NDArray[np.float64]

WIDTH, HEIGHT = 560, 120
BINS = 70
_LARGE = 4_000_000
"""Of more values than this a histogram counts a part, evenly spaced."""


def histogram(sides: Sequence[tuple[str, Values]], label: str) -> str:
    """How often which value comes, on an arcsinh axis that all sides share; counts on a log axis."""
    samples = [(name, _sample(values)) for name, values in sides]
    finite = [values[np.isfinite(values)] for _, values in samples]
    every = np.concatenate(finite) if finite else np.empty(0)
    if not every.size:
        return ""
    sizes = np.abs(every[every != 0])
    knee = float(np.median(sizes)) if sizes.size else 1.0
    low, high = (math.asinh(float(end) / knee) for end in (every.min(), every.max()))
    if low == high:
        low, high = low - 1, high + 1
    parts = [_open(f"{label}: {', '.join(name for name, _ in sides)}")]
    counts = [np.histogram(np.arcsinh(values / knee), BINS, (low, high))[0] for values in finite]
    top = math.log1p(max(int(count.max()) for count in counts) or 1)
    for place, count in enumerate(counts):
        xs = np.linspace(0, WIDTH, BINS + 1)
        ys = HEIGHT - 18 - (HEIGHT - 24) * np.log1p(count) / top
        points = " ".join(f"{x:.1f},{y:.1f} {after:.1f},{y:.1f}" for x, after, y in zip(xs, xs[1:], ys, strict=False))
        points = f"0,{HEIGHT - 18} {points} {WIDTH},{HEIGHT - 18}"
        parts.append(f"<polyline class='{'area' if place == 0 else 'line'} s{place}' points='{points}'/>")
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = math.sinh(low + share * (high - low)) * knee
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(f"<text x='{share * WIDTH:.0f}' y='{HEIGHT - 4}' text-anchor='{anchor}'>{number(value, 2)}</text>")
    return "".join([*parts, "</svg>"])


def over_steps(lines: Sequence[tuple[str, Sequence[int], Sequence[float]]], label: str, mark: int | None = None) -> str:
    """Some statistics over steps, log where all are positive; what is not finite is a cross at the top."""
    xs = [step for _, steps, _ in lines for step in steps]
    ys = [value for _, _, values in lines for value in values if math.isfinite(value)]
    if not xs:
        return ""
    log = bool(ys) and min(ys) > 0 and max(ys) > 8 * min(ys)
    low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
    if log:
        low, high = math.log(low), math.log(high)
    if high == low:
        low, high = low - 0.5, high + 0.5
    first, last = min(xs), max(*xs, min(xs) + 1)

    def across(step: float) -> float:
        return 46 + (WIDTH - 52) * (step - first) / (last - first)

    def up(value: float) -> float:
        return HEIGHT - 20 - (HEIGHT - 30) * ((math.log(value) if log else value) - low) / (high - low)

    parts = [_open(f"{label}: {', '.join(name for name, _, _ in lines)}")]
    if mark is not None and first <= mark <= last:
        parts.append(f"<line class='mark' x1='{across(mark):.1f}' x2='{across(mark):.1f}' y1='4' y2='{HEIGHT - 20}'/>")
    for place, (_, steps, values) in enumerate(lines):
        known = [(across(x), up(y)) for x, y in zip(steps, values, strict=True) if math.isfinite(y)]
        odd = [across(x) for x, y in zip(steps, values, strict=True) if not math.isfinite(y)]
        if len(known) > 1:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
            parts.append(f"<polyline class='line s{place}' points='{points}'/>")
        if len(known) <= 60:
            parts += [f"<circle class='s{place}' cx='{x:.1f}' cy='{y:.1f}' r='2.5'/>" for x, y in known]
        parts += [f"<text class='odd' x='{x:.1f}' y='12' text-anchor='middle'>✕</text>" for x in odd[:200]]
    for value, y in ((high, 12), (low, HEIGHT - 20)):
        shown = number(math.exp(value) if log else value, 2)
        parts.append(f"<text x='42' y='{y}' text-anchor='end'>{shown}</text>")
    parts.append(f"<text x='46' y='{HEIGHT - 4}'>{first}</text>")
    parts.append(f"<text x='{WIDTH - 4}' y='{HEIGHT - 4}' text-anchor='end'>{max(xs)}</text>")
    return "".join([*parts, "</svg>"])


def _open(label: str) -> str:
    return f"<svg class='chart' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{clean(label)}'>"


def _sample(values: Values) -> Values:
    flat = values.reshape(-1)
    return np.asarray(flat[:: max(1, flat.size // _LARGE)], np.float64)
