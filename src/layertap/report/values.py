"""Numbers as people and machines read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"


def number(value: float, digits: int = 4) -> str:
    """A number in few characters.

    >>> number(0.000012345), number(1234.5678), number(float("nan"))
    ('1.234e-05', '1235', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.{digits}g}"


def sparkline(values: Sequence[float], width: int = 100) -> str:
    """A row of bars on a log scale, one a value; a value that is not finite is a cross.

    Of more values than `width` neighbours share a bar, the largest of them.

    >>> sparkline([1.0, 10.0, 100.0, float("nan")])
    '▁▄█✗'
    >>> sparkline([1.0, 100.0, 1.0, 1.0], width=2)
    '█▁'
    """
    if len(values) > width:
        ends = [len(values) * place // width for place in range(width + 1)]
        values = [_largest(values[start:stop]) for start, stop in pairwise(ends)]
    known = [math.log(value) for value in values if math.isfinite(value) and value > 0]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_bar(value, low, high) for value in values)


def _largest(values: Sequence[float]) -> float:
    return next((value for value in values if not math.isfinite(value)), max(values))


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "✗"
    if value <= 0 or high <= low:
        return BARS[0]
    return BARS[int((math.log(value) - low) / (high - low) * (len(BARS) - 1))]
