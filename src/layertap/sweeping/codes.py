"""A quantiser's whole numbers on one side, real values on the other: compared by the scale that fits them best."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layertap.compare.result import Pair
from layertap.judge.measured import Measured
from layertap.measure.pair import Array, compare
from layertap.result import Note
from layertap.site import Record
from layertap.store import Run

CODES = ("int8", "uint8", "int16", "uint16", "int32")
FITS = 0.5
"""Where more than this part of the values is left over, the whole numbers are not known to be their codes."""


def are_codes(one: Record, other: Record) -> bool:
    """Whether one side may hold the codes of the other's values."""
    if one.kept != "tensor" or other.kept != "tensor" or one.shape != other.shape:
        return False
    return (one.dtype in CODES and "float" in other.dtype) or (other.dtype in CODES and "float" in one.dtype)


def measure_codes(reference: Run, candidate: Run, pair: Pair) -> Measured:
    """The codes times the scale that leaves least (of unsigned ones also an offset), against the values."""
    sides = [
        run[record.site].at(step=record.step).numpy()
        for run, record in ((reference, pair.reference), (candidate, pair.candidate))
    ]
    place = 0 if pair.reference.dtype in CODES else 1
    dtype = (pair.reference, pair.candidate)[place].dtype
    sides[place], scale, offset = _fitted(sides[place], sides[1 - place], offset=dtype.startswith("u"))
    found = compare(Array.of(_float32(sides[0])), Array.of(_float32(sides[1])))
    why = Note("sweep.codes", dtype=dtype, scale=f"{scale:.6g}", offset=f"{offset:.6g}")
    return Measured(difference=found, error=found.relative_l2, how="exact", why=why)


def _fitted(
    codes: npt.NDArray[Any], values: npt.NDArray[Any], *, offset: bool
) -> tuple[npt.NDArray[np.float64], float, float]:
    x, y = codes.astype(np.float64), values.astype(np.float64)
    known = np.isfinite(y)
    centre_x, centre_y = (x[known].mean(), y[known].mean()) if offset and known.any() else (0.0, 0.0)
    dx, dy = x[known] - centre_x, y[known] - centre_y
    norm = float((dx * dx).sum())
    scale = float((dx * dy).sum()) / norm if norm else 0.0
    added = float(centre_y - scale * centre_x)
    return x * scale + added, scale, added


def _float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)
