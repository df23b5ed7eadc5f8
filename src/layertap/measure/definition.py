"""Fingerprint and sketch, defined once: the constants and the weights (store/FORMAT.md says it in words).

Element `i` of a tensor in C order is in row `i // LANES` and lane `i % LANES`. Its weight is the low 32 bits of
`row_hash(row) * lane_hash(lane)`. The fingerprint is the sum of weight × bits modulo 2^64; the sketch adds each value,
with the weight's top bit as its sign, into bucket `lane % BUCKETS`. A row is sixteen times a prime, so a channel of a
tensor with any usual width visits all buckets, while kernels still read rows in aligned vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BUCKETS = 251
LANES = 16 * BUCKETS
FIRST = 10
"""How many leading values a statistic keeps."""
ROW_SEED = 0x9E3779B9
LANE_SEED = 0x3C6EF372

UInt32 = npt.NDArray[np.uint32]


def mix(values: UInt32) -> UInt32:
    """MurmurHash3's 32-bit finaliser, a bijection in which every input bit moves every output bit."""
    h = values.astype(np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def row_hash(rows: UInt32) -> UInt32:
    """Odd, so that a single flipped bit always shows."""
    return mix(rows.astype(np.uint32) + np.uint32(ROW_SEED)) | np.uint32(1)


def lane_hash(lanes: UInt32) -> UInt32:
    return mix(lanes.astype(np.uint32) + np.uint32(LANE_SEED)) | np.uint32(1)


def fingerprint_of(words: npt.NDArray[np.unsignedinteger[Any]], offset: int = 0) -> int:
    """The fingerprint of words, the first of which has the index `offset`; it widens them all, so give it blocks.

    >>> fingerprint_of(np.array([1, 2], np.uint32)) == fingerprint_of(np.array([1, 2], np.uint16))
    True
    """
    index = np.arange(offset, offset + len(words))
    weights = row_hash((index // LANES).astype(np.uint32)) * lane_hash((index % LANES).astype(np.uint32))
    return int((weights * words.astype(np.uint64)).sum(dtype=np.uint64))
