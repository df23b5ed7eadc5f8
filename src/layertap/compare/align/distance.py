"""How far tensors are apart, estimated from their sketches or samples, all with all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

SAME = 1e-5
"""What is nearer than this is the same tensor twice (a dropout that is off); a sketch's own rounding is no distance."""


def distances(ours: Matrix, theirs: Matrix) -> Matrix:
    """Estimated ‖candidate - reference‖ / ‖reference‖ of every row with every other; infinite for NaN."""
    with np.errstate(all="ignore"):
        lengths = (ours**2).sum(1)
        squares = lengths[:, None] + (theirs**2).sum(1)[None, :] - 2 * ours @ theirs.T
        # Of equal sketches the sum leaves a rounding error whose root is not small; a float32 sketch knows no better.
        squares[squares < 1e-12 * lengths[:, None]] = 0.0
        found = np.sqrt(np.maximum(squares, 0.0) / lengths[:, None])
        found = np.where(lengths[:, None] > 0, found, np.where(squares > 0, np.inf, 0.0))
    return np.where(np.isfinite(found), found, np.inf)


def angles(ours: Matrix, theirs: Matrix) -> Matrix:
    """The same between rows of length 1: what is only scaled is near. Infinite where a row is zero or not finite."""
    with np.errstate(all="ignore"):
        one, other = (rows / np.sqrt((rows**2).sum(1))[:, None] for rows in (ours, theirs))
        found = distances(one, other)
    zero = ~(np.isfinite(one).all(1)[:, None] & np.isfinite(other).all(1)[None, :])
    return np.where(zero, np.inf, found)


def nearest(among: Matrix) -> npt.NDArray[np.float64]:
    """The distance of each row to the nearest that is not the same tensor; 1 where there is no such."""
    other = np.where(among > SAME, among, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(other), other, 1.0)


def repeated(among: Matrix) -> npt.NDArray[np.bool_]:
    """Which rows are there more than once, or are zero: they are no sign of anything."""
    found: npt.NDArray[np.bool_] = (among <= SAME).sum(axis=1) != 1
    return found
