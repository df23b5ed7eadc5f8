"""Which rows of two tensors differ, read side by side at about the speed of a comparison; nothing is hashed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from layertap.weights.entries import Entry
from layertap.weights.same import pieces_of_both, same_bytes

_WORD = 8
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, _WORD: np.uint64}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifferences:
    """Of two tensors of one shape and dtype, by their bits."""

    rows: Any
    """The indices of the first axis at which they differ."""
    total: int
    """How many rows there are."""
    reorderable: bool
    """Whether one may hold the rows of the other in another order. False is certain: the sums of their bits differ."""


def row_differences(entry: Entry, source: Entry) -> RowDifferences:
    """One pass over both; only pieces that differ are looked into.

    >>> import torch
    >>> from layertap.weights.sources import of_tensor
    >>> one = torch.arange(12.0).reshape(4, 3)
    >>> two = one.clone()
    >>> two[2] = 0
    >>> found = row_differences(of_tensor("w", one), of_tensor("w", two))
    >>> found.rows.tolist(), found.total, found.reorderable
    ([2], 4, False)
    """
    total = entry.shape[0] if entry.shape else 1
    width = entry.nbytes // max(total, 1)
    # Words of eight bytes are summed faster than values; they must be whole in every piece, and within a row.
    words = width % _WORD == 0 and all(side.stored is not None or side.live is not None for side in (entry, source))
    size = _WORD if words else min(entry.dtype.itemsize, _WORD)
    differ, apart = np.zeros(total, np.bool_), 0
    for at, one, two in pieces_of_both(entry, source, 0, entry.nbytes):
        if same_bytes(one, two):
            continue
        a, b = (np.frombuffer(side, _UNSIGNED[size]) for side in (one, two))
        first, last = at // width, (at + len(one) - 1) // width
        begins = np.maximum(np.arange(first, last + 1) * width - at, 0) // size
        differ[first : last + 1] |= np.logical_or.reduceat(a != b, begins)
        apart += int(a.sum(dtype=np.uint64)) - int(b.sum(dtype=np.uint64))
    return RowDifferences(rows=np.flatnonzero(differ), total=total, reorderable=apart % (1 << 64) == 0)
