"""Numbers as people and machines read them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from typing import Any

BARS = "▁▂▃▄▅▆▇█"


def jsonable(value: Any) -> Any:
    """The same value for `json.dumps`: NaN and the infinities become strings, since JSON has no word for them.

    >>> jsonable({"max": float("nan"), "min": float("-inf")})
    {'max': 'NaN', 'min': '-Infinity'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.hex()
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


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


def size(nbytes: int) -> str:
    """Bytes in the unit that fits.

    >>> size(196_608), size(12)
    ('192.0 KiB', '12 B')
    """
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


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


def natural(text: str) -> list[tuple[int, int | str]]:
    """A sorting key that puts `layer_2` before `layer_10`.

    >>> sorted(["layer_10", "layer_2"], key=natural)
    ['layer_2', 'layer_10']
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text)]
