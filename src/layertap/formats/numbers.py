"""Statistics as other tools define them, to and from ours, and whether they fit the tensor they stand beside.

Ours leave non-finite values out and count them; theirs are what torch and numpy give: one NaN makes the mean NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layertap.messages import tr
from layertap.site import Record, Statistics

_HALF = ("bfloat16", "float16")


def theirs(ours: Statistics, *, ddof: int) -> dict[str, float]:
    """mean, std, min, max as `torch.std` (ddof 1) or `numpy.std` (ddof 0) and their kin would give them.

    >>> one = Statistics.of(count=2, mean=2.0, m2=2.0, abs_sum=4.0, min=1.0, max=3.0)
    >>> theirs(one, ddof=0)
    {'mean': 2.0, 'std': 1.0, 'min': 1.0, 'max': 3.0}
    """
    if ours.nan or not ours.count:
        return dict.fromkeys(("mean", "std", "min", "max"), math.nan)
    below, above = bool(ours.neg_inf), bool(ours.pos_inf)
    if not (below or above):
        return {"mean": ours.mean, "std": _rescale(ours.std, ours.count, 0, ddof), "min": ours.min, "max": ours.max}
    return {
        "mean": math.nan if below and above else math.inf if above else -math.inf,
        "std": math.nan,
        "min": -math.inf if below else ours.min if ours.finite else math.inf,
        "max": math.inf if above else ours.max if ours.finite else -math.inf,
    }


def ours(given: Mapping[str, Any], count: int, *, ddof: int) -> Statistics:
    """What their statistics alone let us know. They say only whether there is a NaN or an Inf: it is counted once."""
    mean, std, low, high = (number(given.get(name)) for name in ("mean", "std", "min", "max"))
    std = _rescale(std, count, ddof, 0)
    inf = bool(number(given.get("has_inf")) == 1) or math.inf in (low, high, -low, -high)
    neg = inf and low == -math.inf
    return Statistics(
        count=count,
        mean=mean,
        std=std,
        min=low,
        max=high,
        abs_mean=math.nan,
        l2=math.sqrt(count * (std * std + mean * mean)),
        nan=int(number(given.get("has_nan")) == 1),
        pos_inf=int(inf and (high == math.inf or not neg)),
        neg_inf=int(neg),
        zero=0,
        first=tuple(number(value) for value in given.get("first_10", ())),
    )


def shape_of(given: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape in their statistics: a list, a torch.Size, or its text."""
    shape = given.get("shape")
    if isinstance(shape, str):
        return tuple(int(number) for number in re.findall(r"\d+", shape))
    if isinstance(shape, Sequence) and all(type(size) is int and size >= 0 for size in shape):
        return tuple(shape)
    return None


def dtype_of(given: Mapping[str, Any]) -> str:
    """The dtype's name in their statistics, which is a text or a torch.dtype; empty when there is none."""
    return str(given.get("dtype") or "").removeprefix("torch.")


def disagreements(record: Record, given: Mapping[str, Any], *, ddof: int, rounding: float = 0.0) -> list[str]:
    """Where their statistics cannot be those of this tensor, in words; `rounding` is how far they may be rounded.

    A mean or deviation that was taken in half precision passes: that is how such files are made. An extreme is one of
    the tensor's own values, so it must be there to the digit.
    """
    return list(_disagreements(record, given, ddof, rounding))


def _disagreements(record: Record, given: Mapping[str, Any], ddof: int, rounding: float) -> Iterator[str]:
    shape, dtype = shape_of(given), dtype_of(given)
    if shape not in (None, record.shape):
        yield tr("formats.shapes", value=list(shape or ()), shape=list(record.shape))
    if dtype not in ("", record.dtype):
        yield tr("formats.dtypes", dtype=dtype, dtype2=record.dtype)
    stats = record.statistics
    for name, there in (("has_nan", stats.nan > 0), ("has_inf", stats.pos_inf + stats.neg_inf > 0)):
        if name in given and (number(given[name]) == 1) != there:
            yield tr("formats.values", name=name, value=not there, there=there)
    if stats.nonfinite or not stats.count:
        return
    share = 2.0**-7 if record.dtype in _HALF else 1e-5
    expected = theirs(stats, ddof=ddof) | {"norm": stats.l2}
    for name, value in expected.items():
        if name not in given:
            continue
        found = number(given[name])
        slack = rounding + 1e-6 * abs(value)
        if name in ("mean", "std", "norm"):
            slack += share * abs(value) + 1e-5 * stats.abs_mean
        if not (abs(found - value) <= slack or (math.isnan(found) and math.isnan(value))):
            yield tr("formats.numbers", name=name, found=found, value=value)


def _rescale(std: float, count: int, old: int, new: int) -> float:
    if count <= new:
        return math.nan
    # A deviation of one value is NaN to torch and 0 to us.
    return 0.0 if count <= old else std * math.sqrt((count - old) / (count - new))


def number(value: Any) -> float:
    """A number, a boolean, a tensor of one value, or a word such as "NaN"; anything else is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
