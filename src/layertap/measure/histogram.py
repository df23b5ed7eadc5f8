"""A histogram with fixed bins, one for each power of two of the magnitude: it needs no range and merges by addition.

The bins go from -inf to +inf, with NaN behind them, as numpy sorts:

    0          -inf
    1          finite, -2^40 and below
    2 … 81     (-2^(k+1), -2^k], k from 39 down to -40
    82         above -2^-40 and below zero
    83         zero, of either sign
    84 … 166   the mirror image of 82 … 0: below 2^-40, [2^k, 2^(k+1)), …, +inf
    167        NaN

Reading one needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from layertap.measure import real_view

if TYPE_CHECKING:
    from torch import Tensor

NAME = "histogram"
"""What a record says in `kept`."""
OCTAVES = 40
"""Powers of two below and above 1 that have bins of their own."""
_SIDE = 2 * OCTAVES + 3
"""Bins on one side of zero: too small, the octaves, too large, infinite."""
BINS = 2 * _SIDE + 2
BLOCK = 1 << 18
"""Elements that are in work at a time, on a CPU."""
_DEVICE_BLOCK = 1 << 22
_LANES = 64
"""Copies of the bins on a device, so that equal values do not all wait for one address."""


class Histogram(NamedTuple):
    """How many values lie in each bin: `counts[i]` from `edges[i]` to `edges[i + 1]`.

    Where a bin ends in NaN, NaN is what it counts. Histograms have the same edges, so their counts can be added.
    """

    edges: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]


def edges() -> npt.NDArray[np.float64]:
    """The edges of all bins, one more than there are bins.

    >>> edges()[[0, 1, 2, 3, 82, 83, 84, 85]].tolist()[:4]
    [-inf, -inf, -1099511627776.0, -549755813888.0]
    >>> edges()[-4:].tolist()
    [1099511627776.0, inf, inf, nan]
    """
    powers = 2.0 ** np.arange(-OCTAVES, OCTAVES + 1)
    positive = [0.0, *powers, math.inf, math.inf]
    return np.array([*(-value for value in reversed(positive)), *positive, math.nan])


def reduce(tensor: Tensor) -> Tensor:
    """The counts of a tensor's values, int64, on its device; nothing waits for a device.

    Complex numbers count as two reals.

    >>> import torch
    >>> found = reduce(torch.tensor([0.0, 1.0, 1.5, -2.0, float("nan")]))
    >>> [(int(place), int(found[place])) for place in found.nonzero()]
    [(40, 1), (83, 1), (125, 2), (167, 1)]
    """
    import torch

    real = real_view(tensor)
    # float32 holds every narrower type exactly. In float64, integers that are rounded are far above the last octave.
    wide = (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)
    form = _Form(52, 1023, 63) if real.dtype in wide else _Form(23, 127, 31)
    traced = torch.compiler.is_compiling()  # a part of a graph: one pass for tensors of any shape
    on_cpu = real.device.type == "cpu" and not traced
    keys = torch.zeros(form.keys, dtype=torch.int64, device=real.device)
    special = torch.zeros(4, dtype=torch.int64, device=real.device)
    for values in [real.reshape(-1)] if traced else _blocks(real, BLOCK if on_cpu else _DEVICE_BLOCK):
        bits = _bits(values, form)
        key = (bits >> form.mantissa) & (form.keys - 1)
        keys += torch.bincount(key, minlength=form.keys) if on_cpu else scattered(key, form.keys)
        special += torch.stack([(bits == value).count_nonzero() for value in form.special])
    return _folded(keys, special, form)


class _Form(NamedTuple):
    """Where a float has its parts."""

    mantissa: int
    bias: int
    sign: int

    @property
    def keys(self) -> int:
        """How many values sign and exponent have together."""
        return 1 << (self.sign + 1 - self.mantissa)

    @property
    def special(self) -> tuple[int, int, int, int]:
        """The bits of 0, -0, inf, -inf, as a signed integer."""
        negative, infinite = -(1 << self.sign), (2 * self.bias + 1) << self.mantissa
        return 0, negative, infinite, negative + infinite


def scattered(key: Tensor, size: int) -> Tensor:
    """`bincount` for a device, which would wait there for the largest key."""
    import torch

    lanes = torch.arange(key.numel(), device=key.device) % _LANES * size
    counts = torch.zeros(_LANES * size, dtype=torch.int64, device=key.device)
    ones = torch.ones((), dtype=torch.int64, device=key.device).expand(key.numel())
    return counts.scatter_add_(0, lanes + key, ones).view(_LANES, size).sum(0)


def _blocks(real: Tensor, most: int) -> Iterator[Tensor]:
    """Parts of at most so many elements, flat.

    What is not contiguous is halved before it is copied, so that no copy is larger than a part.
    """
    if real.numel() <= most:
        yield real.reshape(-1)
    elif real.is_contiguous():
        yield from real.view(-1).split(most)
    else:
        longest = max(range(real.ndim), key=lambda axis: real.shape[axis])
        for half in real.chunk(2, dim=longest):
            yield from _blocks(half, most)


def _bits(values: Tensor, form: _Form) -> Tensor:
    import torch

    if form.sign == 63:
        return values.to(torch.float64).view(torch.int64)
    return values.to(torch.float32).view(torch.int32)


def _folded(keys: Tensor, special: Tensor, form: _Form) -> Tensor:
    """The bins, from how often each sign with each exponent came, and how often 0, -0, inf and -inf."""
    import torch

    key = torch.arange(form.keys, device=keys.device)
    exponent = key % (form.keys // 2)
    rank = exponent.clamp(form.bias - OCTAVES - 1, form.bias + OCTAVES) - (form.bias - OCTAVES - 2)
    place = torch.where(key < form.keys // 2, rank, -rank) + _SIDE
    place = place.masked_fill(exponent == 2 * form.bias + 1, BINS - 1)
    counts = torch.zeros(BINS, dtype=torch.int64, device=keys.device).scatter_add_(0, place, keys)
    # Zeros have the exponent of the smallest numbers, infinities that of NaN.
    zero, minus_zero, infinite, minus_infinite = special.unbind()
    counts[_SIDE + 1] -= zero
    counts[_SIDE - 1] -= minus_zero
    counts[_SIDE] += zero + minus_zero
    counts[BINS - 1] -= infinite + minus_infinite
    counts[BINS - 2] += infinite
    counts[0] += minus_infinite
    return counts
