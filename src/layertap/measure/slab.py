"""The result of the fused kernel as bytes: what it writes on the device, and how the host reads it back.

>>> SLAB_BYTES
1168
>>> decode(np.zeros(SLAB_BYTES, np.uint8), count=3).statistics.first
(0.0, 0.0, 0.0)
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from layertap.measure.definition import BUCKETS, FIRST
from layertap.measure.result import Measurement
from layertap.site import Statistics

# Slots of eight bytes first, the float32 sketch last: the kernel needs one pointer and slot numbers.
COUNTS = 0
"""Slots 0-3: i64 counts of NaN, +Inf, -Inf and zero."""
SUMS = 4
"""Slots 4-8: f64 mean, m2 (about that mean), sum of absolute values, min, max; all of the finite values."""
PRINT = 9
"""Slot 9: the u64 fingerprint."""
HEAD = 10
"""Slots 10-19: the first ten values as f64."""
SKETCH = HEAD + FIRST
"""Slot 20: where the sketch's float32s begin."""

_HEADER = struct.Struct(f"<4q5dQ{FIRST}d")
SLAB_BYTES = -(-(8 * SKETCH + 4 * BUCKETS) // 16) * 16


def encode(measured: Measurement) -> bytes:
    """The same bytes from what was measured elsewhere.

    >>> from layertap.site import Statistics
    >>> found = Statistics.of(count=2, mean=1.0, m2=2.0, abs_sum=2.0, min=0.0, max=2.0, zero=1, first=(0.0, 2.0))
    >>> whole = Measurement(statistics=found, fingerprint=7, sketch=bytes(4 * BUCKETS))
    >>> decode(np.frombuffer(encode(whole), np.uint8), count=2) == whole
    True
    """
    found = measured.statistics
    finite = found.finite
    m2 = found.std * found.std * finite if finite else 0.0
    head = [*found.first, *[0.0] * (FIRST - len(found.first))]
    raw = _HEADER.pack(
        found.nan,
        found.pos_inf,
        found.neg_inf,
        found.zero,
        found.mean,
        m2,
        found.abs_mean * finite if finite else 0.0,
        found.min,
        found.max,
        measured.fingerprint,
        *head,
    )
    return (raw + measured.sketch).ljust(SLAB_BYTES, b"\0")


def decode(slab: npt.NDArray[np.uint8], count: int) -> Measurement:
    """What `launch` left in `slab`, copied to the host, for a tensor of `count` values."""
    raw = slab.tobytes()
    nan, pos_inf, neg_inf, zero, mean, m2, abs_sum, low, high, fingerprint, *first = _HEADER.unpack_from(raw)
    statistics = Statistics.of(
        count=count,
        mean=mean,
        m2=m2,
        abs_sum=abs_sum,
        min=low,
        max=high,
        nan=nan,
        pos_inf=pos_inf,
        neg_inf=neg_inf,
        zero=zero,
        first=tuple(first[:count]),
    )
    sketch = raw[8 * SKETCH : 8 * SKETCH + 4 * BUCKETS]
    return Measurement(statistics=statistics, fingerprint=fingerprint, sketch=sketch)
