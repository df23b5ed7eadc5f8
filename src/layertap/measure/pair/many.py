"""Many pairs of CUDA tensors, measured by the pair kernel as they come and read all at once, when there is time.

Of each only what rounding is judged by: its error, its slope, its offset, its worst row and its worst column.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from layertap.measure.pair.blocks import Filled, PairRow, read_together
from layertap.measure.pair.fold import BEST, FOLDS
from layertap.measure.pair.fused import FIELDS, MOST

Numbers = tuple[float, ...]
"""Squared error, squared reference, error · reference, sum of errors; the worst row's relative error and index, and the
worst column's; values that are NaN on one side only, and other values that are finite on one side only."""
BATCH = 512
"""Pairs that are added up together."""


def read_pairs(rows: Sequence[PairRow]) -> list[Numbers]:
    """What was measured: added up where it is, then fetched, which waits for the device."""
    return read_together(rows, lambda block: block.slabs.device, BATCH, _read)


def _read(filled: list[Filled]) -> list[Numbers]:
    slabs = torch.cat([block.slabs[:count] for block, count in filled])
    folds = [block.folds for block, count in filled for _ in range(count)]
    return [tuple(numbers) for numbers in _sums(slabs, folds).tolist()]


def _sums(numbers: torch.Tensor, folds: list[tuple[int, int]]) -> torch.Tensor:
    table = numbers[:, :BEST].view(len(numbers), len(FIELDS), MOST)
    programs = torch.arange(MOST, device=numbers.device)
    used = programs < table[:, -1:, :1]
    fields = dict(zip(FIELDS, torch.where(used, table, 0.0).unbind(1), strict=True))
    n, shift_a, shift_b = fields["finite"], fields["shift_a"], fields["shift_b"]
    error, size = fields["error"].sum(1), fields["reference"].sum(1)
    square_b = (fields["bb"] + 2 * shift_b * fields["b"] + n * shift_b * shift_b).sum(1)
    apart = (fields["b"] + n * shift_b - fields["a"] - n * shift_a).sum(1)
    nonfinite = fields["nan_mismatch"].sum(1), fields["inf_mismatch"].sum(1)
    off = (error > 0) | (nonfinite[0] + nonfinite[1] > 0)
    product = (square_b - size - error) / 2  # b² = (a + d)² = a² + 2ad + d²
    lines = _worst(numbers[:, BEST:].view(len(numbers), 2, 3, FOLDS), folds)
    return torch.stack([error, size, product * off, apart * off, *lines, *nonfinite], dim=1)


def _worst(best: torch.Tensor, folds: list[tuple[int, int]]) -> list[torch.Tensor]:
    """The relative error and the index of the worst row, then of the worst column."""
    there = torch.arange(FOLDS, device=best.device) < torch.tensor(folds, device=best.device)[:, :, None]
    relative, errors, index = best.unbind(2)
    top = torch.where(there, relative, -1.0).amax(2, keepdim=True)
    # Among equals (a reference of zeros makes all of them infinite) the one with the largest error.
    fold = torch.where(there & (relative == top), errors, -1.0).argmax(2, keepdim=True)
    worst, place = torch.nan_to_num(top, posinf=0.0)[..., 0], index.gather(2, fold)[..., 0]
    return [worst[:, 0], place[:, 0], worst[:, 1], place[:, 1]]
