"""How far apart two tensors are, estimated from their sketches alone (the tensors, and torch, may be far away).

A sketch is a linear map that keeps lengths on average, so the difference of two sketches is the sketch of the
difference. With 251 buckets the standard error of a length is about 4.5 %, whatever the size of the tensor.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from layertap.errors import BadArgument
from layertap.measure.definition import BUCKETS
from layertap.messages import tr


def relative_l2(reference: bytes, candidate: bytes, reference_l2: float) -> float:
    """Estimates ‖candidate - reference‖ / ‖reference‖; `reference_l2` is the exact length, from the statistics.

    >>> one, two = np.zeros(251, "<f4"), np.zeros(251, "<f4")
    >>> two[3] = 5.0
    >>> relative_l2(one.tobytes(), two.tobytes(), reference_l2=10.0)
    0.5
    """
    difference = np.subtract(_floats(candidate), _floats(reference), dtype=np.float64)
    distance = math.sqrt(float(difference @ difference))
    if reference_l2 == 0:
        return 0.0 if distance == 0 else math.inf
    return distance / reference_l2


def cosine(a: bytes, b: bytes) -> float:
    """Estimates the cosine of the angle between two tensors; NaN when one of them is all zero.

    >>> one = np.ones(251, "<f4")
    >>> round(cosine(one.tobytes(), (-one).tobytes()), 6)
    -1.0
    """
    one, two = _read(a), _read(b)
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(two))
    if lengths == 0:
        return math.nan
    return float(min(1.0, max(-1.0, float(one @ two) / lengths)))


def _read(sketch: bytes) -> npt.NDArray[np.float64]:
    return _floats(sketch).astype(np.float64)


def _floats(sketch: bytes) -> npt.NDArray[np.float32]:
    if len(sketch) != 4 * BUCKETS:
        raise BadArgument(tr("measure.sketch_bytes", value=4 * BUCKETS, count=len(sketch)))
    return np.frombuffer(sketch, "<f4")
