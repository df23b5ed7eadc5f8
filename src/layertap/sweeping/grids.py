"""Whether values lie on a grid: how many there are, their common step, and how many bits that takes."""

from __future__ import annotations

import math
from typing import Any

import torch

ENOUGH = 512
"""Of fewer values nothing can be said."""
MOST = 257
"""More distinct values than these are no grid of 8 bits. (-128 to 128 is, where nothing was clipped.)"""
LOOKED_AT = 1 << 18
FIRST = 1 << 12
ROWS = 8
"""So many rows are looked at one by one, for grids with a step of their own in each."""


def grid_of(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Distinct values, step and bits of a tensor whose values, or whose rows' values, are multiples of one step.

    >>> x = torch.linspace(-1, 1, 4096)
    >>> grid_of(x) is None, grid_of((x * 127).round() / 127)["bits"]
    (True, 8)
    """
    if tensor.numel() < ENOUGH or not tensor.is_floating_point():
        return None
    flat = tensor.reshape(-1)
    if flat.numel() > LOOKED_AT:
        # Whole neighbourhoods, not every n-th: a stride could fall on one channel.
        flat = torch.cat([flat[: LOOKED_AT // 2], flat[-LOOKED_AT // 2 :]])
    # A part with too many distinct values settles it, and costs little.
    part = flat[:FIRST]
    found = _grid(flat) if torch.unique(part[part.isfinite()]).numel() <= MOST else None
    if found is not None:
        return {**found, "per": "tensor"}
    if tensor.ndim < 2 or tensor.shape[-1] < ENOUGH // 4:
        return None
    rows = tensor.reshape(-1, tensor.shape[-1])
    # A row of few numbers has few distinct values anyway: then the step alone can show a grid.
    each = [_grid(row, rows=True) for row in rows[:: max(1, len(rows) // ROWS)][:ROWS]]
    if any(one is None for one in each):
        return None
    bits = max(one["bits"] for one in each if one)
    return {"distinct": max(one["distinct"] for one in each if one), "step": 0.0, "bits": bits, "per": "row"}


def _grid(values: torch.Tensor, *, rows: bool = False) -> dict[str, Any] | None:
    values = values.double()
    distinct = torch.unique(values[torch.isfinite(values)])
    count = distinct.numel()
    if count < 3 or count > MOST or (not rows and count * 4 > values.numel()):
        return None
    low, high = float(distinct[0]), float(distinct[-1])
    places = round((high - low) / float(distinct.diff().min()))
    if places > MOST:
        return None
    # The step is known best from the whole span, not from the smallest difference, which has rounding in it.
    step = (high - low) / places
    steps = (distinct - distinct[0]) / step
    if bool((steps - steps.round()).abs().max() > 0.02):
        return None
    first = low / step
    on_zero = abs(first - round(first)) < 0.02
    bits = bits_between(round(first), round(first) + places) if on_zero else bits_between(0, places)
    return {"distinct": count, "step": step, "bits": min(8, bits)}


def bits_between(low: int, high: int) -> int:
    """The bits of whole numbers that reach from `low` to `high`.

    A width is accepted where its last number is reached; else the numbers lie within one of the usual widths.

    >>> bits_between(-31, 31), bits_between(0, 15), bits_between(-127, -35), bits_between(-50, 41)
    (6, 4, 8, 8)
    """
    most = max(abs(low), abs(high))
    for bits in range(2, 9):
        if most in (2 ** (bits - 1) - 1, 2 ** (bits - 1)) or (low >= 0 and high == 2**bits - 1):
            return bits
    return next((bits for bits in (2, 4, 8) if most < 2 ** (bits - 1)), max(2, math.ceil(math.log2(most + 1)) + 1))
