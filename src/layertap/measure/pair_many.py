"""Many pairs of CUDA tensors, measured by the pair kernel as they come and read all at once, when there is time.

Of each only what rounding is judged by: its error, its slope, its offset, its worst row and its worst column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from layertap.measure.pair_fold import BEST, FOLDS, PAIR_SLAB_BYTES, SAMPLES
from layertap.measure.pair_fused import FIELDS, MOST
from layertap.measure.pair_kernel import folds_of, launch_pair, supported_pair

Numbers = tuple[float, ...]
"""Squared error, squared reference, error · reference, sum of errors, values finite on one side only, then the worst
row's relative error and index, and the worst column's."""
_USED = 8 * SAMPLES
"""Bytes of a slab that are read: samples of typical lines are not."""


def fits(reference: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Whether the kernel measures these two well enough: it sums in float32, so 16 bits must be in it."""
    coarse = min(reference.element_size(), candidate.element_size()) == 2
    return coarse and supported_pair(reference, candidate) and all(folds_of(tuple(reference.shape)))


def begin_pair(reference: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """Enqueues the measurement; the result is read by `read_pairs`."""
    slab = torch.empty(PAIR_SLAB_BYTES, dtype=torch.uint8, device=reference.device)
    launch_pair(reference, candidate, slab)
    return slab


def read_pairs(slabs: Sequence[torch.Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Numbers]:
    """What was measured; waits for the device."""
    found: list[Numbers] = []
    for start in range(0, len(slabs), 64):
        some = torch.stack([slab[:_USED] for slab in slabs[start : start + 64]]).cpu().numpy().view(np.float64)
        found += _read(some, shapes[start : start + 64])
    return found


def _read(numbers: npt.NDArray[np.float64], shapes: Sequence[tuple[int, ...]]) -> list[Numbers]:
    table = numbers[:, :BEST].reshape(len(numbers), len(FIELDS), MOST)
    used = np.arange(MOST) < table[:, -1, :1]
    fields = {name: np.where(used, table[:, i], 0.0) for i, name in enumerate(FIELDS)}
    n, shift_a, shift_b = fields["finite"], fields["shift_a"], fields["shift_b"]
    error, size = fields["error"].sum(1), fields["reference"].sum(1)
    square_b = (fields["bb"] + 2 * shift_b * fields["b"] + n * shift_b * shift_b).sum(1)
    apart = (fields["b"] + n * shift_b - fields["a"] - n * shift_a).sum(1)
    # b² = (a + d)² = a² + 2ad + d²
    product = (square_b - size - error) / 2
    nonfinite = (fields["nan_mismatch"] + fields["inf_mismatch"]).sum(1)
    exact = (error == 0) & (nonfinite == 0)
    product, apart = np.where(exact, 0.0, product), np.where(exact, 0.0, apart)
    best = numbers[:, BEST:].reshape(len(numbers), 2, 3, FOLDS)
    lines = [[_worst(best[k, side], folds_of(shape)[side]) for side in (0, 1)] for k, shape in enumerate(shapes)]
    return [
        (*map(float, (error[k], size[k], product[k], apart[k], nonfinite[k])), *lines[k][0], *lines[k][1])
        for k in range(len(numbers))
    ]


def _worst(best: npt.NDArray[np.float64], folds: int) -> tuple[float, float]:
    relative, errors, index = best[:, :folds]
    fold = int(np.where(relative == relative.max(), errors, -1.0).argmax())
    worst = float(relative[fold])
    return (worst if math.isfinite(worst) else 0.0), float(index[fold])
