"""What is left of an error without the few rows or columns that hold nearly all of the energy, and whether values lie
on the grid of an eight-bit float.

Both are asked of every pair of live values. Where a kernel has left the norms of rows and columns, pairs of one shape
are judged together when they are read: each operation of torch is one launch for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layertap.measure.pair.blocks import Filled, PairRow, read_together
from layertap.measure.pair.fold import SAMPLE

MASSIVE = 1e3
"""A row or column with this many times the energy of the typical one hides what happens in the others."""
SEVERAL = 64
"""So many values have four bits each by chance never."""
BATCH = 128
"""Pairs that are judged together."""


def judged(rows: Sequence[PairRow]) -> list[tuple[float, bool]]:
    """Of each pair the error without massive lines, and whether the candidate's values lie on a grid."""
    return read_together(rows, lambda block: (block.line_counts, block.lines.device), BATCH, _judged)


def _judged(filled: list[Filled]) -> list[tuple[float, bool]]:
    (rows, columns), kept = filled[0].block.line_counts, torch.cat([block.lines[:count] for block, count in filled])
    lines = kept[:, SAMPLE:][:, : 2 * (rows + columns)].unflatten(1, (-1, 2)).double().square()
    errors, grids = without_massive(lines[:, :rows], lines[:, rows:]), on_grid(kept[:, :SAMPLE])
    return [(error, bool(grid)) for error, grid in torch.stack([errors, grids.double()], 1).tolist()]


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
