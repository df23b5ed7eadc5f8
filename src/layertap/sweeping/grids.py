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
    found = _grid(flat)
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
    span = float(distinct[-1] - distinct[0])
    places = round(span / float(distinct.diff().min()))
    if places > MOST:
        return None
    # The step is known best from the whole span, not from the smallest difference, which has rounding in it.
    step = span / places
    steps = (distinct - distinct[0]) / step
    if bool((steps - steps.round()).abs().max() > 0.02):
        return None
    return {"distinct": count, "step": step, "bits": max(1, min(8, math.ceil(math.log2(places + 1))))}
