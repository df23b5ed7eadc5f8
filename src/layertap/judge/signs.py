"""One measurement against the floor under it: how many times larger, and in which sign that shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from layertap.judge.calibration import FINER, TIES
from layertap.judge.roundoff import ROUNDOFF

if TYPE_CHECKING:
    from layertap.measure.pair.difference import Difference


def least_of(dtype: str) -> float:
    """About one rounding of a dtype: below it nothing is a fault, however small the measured floor is by luck."""
    roundoff = ROUNDOFF.get(dtype, ROUNDOFF["float32"])
    return roundoff if roundoff > 1e-6 else 2 * roundoff  # sums in float32 and float64 go in other orders


def ratio_of(found: Difference, floor: Difference, least: float) -> tuple[float, str]:
    """How many times the floor an error is, and in which sense it is that."""
    if found.equal:
        return 0.0, "exact"
    if found.absent:
        return math.inf, "absent"
    if found.shape:
        return (0.0 if floor.shape else math.inf), "shape"  # a router that flips by rounding sends fewer tokens
    if found.nonfinite_mismatch:
        return math.inf, "nonfinite"  # the reference is finite there: no rounding does that, only a range too small
    if found.mismatched:
        ties = 0.0 if found.truth else TIES
        return found.mismatched / max(floor.mismatched, ties, 1e-300), "mismatched"
    # Rounding has no direction: a slope or an offset shows long before the norm does. Chance alone gives a slope of
    # error / sqrt(n), and real rounding up to a few times what the floor shows.
    chance = max(found.error, floor.error, least) / math.sqrt(max(found.count, 1))
    signs = {
        "error": found.error / max(floor.error, least),
        "row": found.row_error / max(floor.row_error, 2 * least),
        "column": found.column_error / max(floor.column_error, 2 * least),
        "calm": found.calm / max(floor.calm, 2 * least),
        "grid": FINER * found.error / max(floor.error, least) if found.grid and not floor.grid else 0.0,
        "slope": abs(found.slope) / max(2 * abs(floor.slope), 2 * chance, least / 4),
        "offset": abs(found.offset) / max(2 * abs(floor.offset), 2 * chance, least / 4),
    }
    sign = max(signs, key=lambda name: signs[name])
    return signs[sign], sign
