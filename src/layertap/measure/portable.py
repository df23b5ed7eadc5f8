"""Statistics as a part of a graph, from operations that every compiler has: one float32 vector for each tensor.

For taps of a large model, whose tensors would be too much to hand out. No fingerprint and no sketch: 64-bit integers
and float64 are what small compilers lack. Counts come in two words, since float32 counts exactly only up to 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from layertap.measure.definition import FIRST
from layertap.messages import tr
from layertap.site import Statistics

if TYPE_CHECKING:
    from torch import Tensor

_WORD = 1 << 20
_NUMBERS = ("mean", "m2", "abs_sum", "min", "max")
_COUNTS = ("count", "nan", "pos_inf", "neg_inf", "zero")
LENGTH = len(_NUMBERS) + 2 * len(_COUNTS) + FIRST


def reduce(tensor: Tensor) -> Tensor:
    """A tensor's statistics as a vector of LENGTH; `read` reads it."""
    import torch

    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).to(torch.float32)
    nan = flat != flat
    pos_inf, neg_inf = flat == math.inf, flat == -math.inf
    finite = ~(nan | pos_inf | neg_inf)
    kept = torch.where(finite, flat, torch.zeros_like(flat))
    count = finite.sum().to(torch.float32).clamp(min=1)
    mean = kept.sum() / count
    off = torch.where(finite, flat - mean, torch.zeros_like(flat))
    edge = torch.full((1,), math.inf, dtype=torch.float32, device=flat.device)
    least = torch.cat([torch.where(finite, flat, torch.full_like(flat, math.inf)), edge]).amin(dim=0)
    most = torch.cat([torch.where(finite, flat, torch.full_like(flat, -math.inf)), -edge]).amax(dim=0)
    everything = torch.ones_like(flat, dtype=torch.bool)
    counts = [_words(mask) for mask in (everything, nan, pos_inf, neg_inf, flat == 0)]
    first = torch.cat([flat[:FIRST], torch.zeros(FIRST, dtype=torch.float32, device=flat.device)])[:FIRST]
    numbers = torch.stack([mean, (off * off).sum(), kept.abs().sum(), least, most])
    return torch.cat([numbers, *counts, first])


def read(vector: Sequence[float]) -> Statistics:
    """What `reduce` left.

    >>> import torch
    >>> found = read(reduce(torch.tensor([1.0, -3.0, 0.0, float("nan")])).tolist())
    >>> found.count, found.nan, found.zero, found.min, found.first[:2]
    (4, 1, 1, -3.0, (1.0, -3.0))
    """
    if len(vector) != LENGTH:
        raise ValueError(tr("measure.statistic_numbers", LENGTH=LENGTH, count=len(vector)))
    numbers = dict(zip(_NUMBERS, vector, strict=False))
    words = vector[len(_NUMBERS) : len(_NUMBERS) + 2 * len(_COUNTS)]
    counts = {name: int(words[2 * i]) * _WORD + int(words[2 * i + 1]) for i, name in enumerate(_COUNTS)}
    return Statistics.of(
        count=counts["count"],
        mean=numbers["mean"],
        m2=numbers["m2"],
        abs_sum=numbers["abs_sum"],
        min=numbers["min"],
        max=numbers["max"],
        nan=counts["nan"],
        pos_inf=counts["pos_inf"],
        neg_inf=counts["neg_inf"],
        zero=counts["zero"],
        first=tuple(vector[LENGTH - FIRST :][: counts["count"]]),
    )


def _words(mask: Tensor) -> Tensor:
    import torch

    count = mask.sum()
    return torch.stack([count // _WORD, count % _WORD]).to(torch.float32)
