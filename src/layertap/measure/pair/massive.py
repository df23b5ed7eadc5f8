"""What is left of an error without the few rows or columns that hold nearly all of the energy, and whether values lie
on the grid of an eight-bit float.

Both are asked of every pair of live values. Where a kernel has left the norms of rows and columns, pairs of one shape
are judged together when they are read: each operation of torch is one launch for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

MASSIVE = 1e3
"""A row or column with this many times the energy of the typical one hides what happens in the others."""
SEVERAL = 64
"""So many values have four bits each by chance never."""
SAMPLE = 1024
"""Values that are looked at where a whole tensor is not: numbers that were not rounded so show it at once."""
BATCH = 128
"""Pairs that are judged together."""


class Later(NamedTuple):
    """What is kept of a pair until it is judged."""

    lines: torch.Tensor
    """The norms of the error and of the reference: of each row, then of each column."""
    rows: int
    sample: torch.Tensor
    """SAMPLE of the candidate's values."""


def later(lines: torch.Tensor, candidate: torch.Tensor) -> Later:
    """Keeps what is judged when the pair is read."""
    return Later(lines, math.prod(candidate.shape[:-1]), sampled(candidate))


def sampled(values: torch.Tensor) -> torch.Tensor:
    """Values from all over a contiguous tensor; zeros, which lie on every grid, where it has too few."""
    values, count = values.detach(), values.numel()
    if count < SAMPLE:
        return torch.nn.functional.pad(values.reshape(-1), (0, SAMPLE - count))
    step = (count // SAMPLE - 1) | 1  # odd: a power of two would stay in one column
    return values.as_strided((SAMPLE,), (step,)).clone()


def judged(kept: Sequence[Later]) -> Iterator[tuple[float, bool]]:
    """Of each pair the error without massive lines, and whether the candidate's values lie on a grid."""
    found: dict[int, tuple[float, bool]] = {}
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(kept):
        key = (one.lines.shape, one.rows, one.sample.dtype, one.lines.device)
        groups.setdefault(key, []).append(place)
    for places in groups.values():
        for start in range(0, len(places), BATCH):
            some = places[start : start + BATCH]
            lines = torch.stack([kept[place].lines for place in some]).double().square()
            rows = kept[some[0]].rows
            errors = without_massive(lines[:, :rows], lines[:, rows:])
            grids = on_grid(torch.stack([kept[place].sample for place in some]))
            pairs = torch.stack([errors, grids.double()], 1).tolist()
            found |= {place: (error, bool(grid)) for place, (error, grid) in zip(some, pairs, strict=True)}
    return iter([found[place] for place in range(len(kept))])


def without_massive(*sides: torch.Tensor) -> torch.Tensor:
    """The relative error without massive rows, and without massive columns, the larger of the two; 0 where none is.

    Each side is pairs × lines × (energy of the error, energy of the reference).
    """
    errors = []
    for side in sides:
        wrong, size = side.unbind(2)
        typical = size.median(1, keepdim=True).values
        usual = (size <= MASSIVE * typical) | (typical == 0)
        left, rest = (wrong * usual).sum(1), (size * usual).sum(1)
        errors.append((left / rest.clamp_min(1e-300)).sqrt() * ~usual.all(1))
    return torch.stack(errors).amax(0)


def on_grid(values: torch.Tensor) -> torch.Tensor:
    """Whether the values of each row, many and not zero, have four bits at most, as an eight-bit float leaves them."""
    mantissa = torch.frexp(values.float()).mantissa * 16
    few = (mantissa == mantissa.round()).all(1)
    return few & ((values != 0).sum(1) >= SEVERAL)
