"""What an ideal quantiser of so many bits leaves of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 20


def ideal_error(values: npt.NDArray[Any], bits: int) -> float:
    """The relative L2 error of rounding to 2^bits even levels, symmetric about zero, up to the largest magnitude.

    One scale for the whole tensor, and nothing clipped.

    >>> round(ideal_error(np.linspace(-1, 1, 1001), 8), 4)
    0.0039
    """
    flat = values.reshape(-1)
    largest = max((float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for part in _blocks(flat)), default=0.0)
    if largest == 0:
        return 0.0
    step = largest / (2 ** (bits - 1) - 0.5)
    error = total = 0.0
    for part in _blocks(flat):
        part = part[np.isfinite(part)].astype(np.float64)
        error += float(np.square(np.round(part / step) * step - part).sum())
        total += float(np.square(part).sum())
    return math.sqrt(error / total) if total else 0.0


def decibels(error: float) -> float:
    """Signal to noise of a relative error."""
    if math.isnan(error):
        return math.nan
    return math.inf if error == 0 else -20 * math.log10(error)


def _blocks(flat: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
    return [flat[begin : begin + BLOCK] for begin in range(0, len(flat), BLOCK)]
