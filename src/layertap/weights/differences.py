"""How two tensors of one shape differ: read side by side in blocks, described in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from layertap.weights.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Sums over both, in float64."""

    count: int
    unequal: int
    """Elements that are not equal; NaN equals NaN here."""
    error: float
    """Relative L2: of the difference to the other side."""
    slope: float
    """By which the other side would have to be multiplied."""
    unexplained: float
    """Relative L2 of what is left then."""
    largest: float
    """Largest difference."""
    lossless: bool
    """Whether the model's values are the other side's, rounded to the model's dtype."""
    lossless_back: bool
    """Whether the other side's values are the model's, rounded to the other side's dtype."""


def differences(model: Entry, other: Entry) -> Differences:
    """One pass over both."""
    unequal = 0
    aa = bb = ab = dd = largest = 0.0
    there = back = True
    for a, b in _together(model, other):
        if not a.is_complex():
            there = there and _same(a, b.to(a.dtype))
            back = back and _same(b, a.to(b.dtype))
        x, y = _double(a), _double(b)
        apart = ~((x == y) | (x.isnan() & y.isnan()))
        unequal += int(apart.sum())
        x, y = torch.nan_to_num(x, 0, 0, 0), torch.nan_to_num(y, 0, 0, 0)
        d = x - y
        aa, bb, ab = aa + float(x.dot(x)), bb + float(y.dot(y)), ab + float(x.dot(y))
        dd += float(d.dot(d))
        largest = max(largest, float(d.abs().max())) if d.numel() else largest
    slope = ab / bb if bb else math.nan
    rest = max(aa - ab * ab / bb, 0.0) if bb else aa
    return Differences(
        count=model.numel,
        unequal=unequal,
        error=math.sqrt(dd / bb) if bb else (0.0 if not dd else math.inf),
        slope=slope,
        unexplained=math.sqrt(rest / aa) if aa else 0.0,
        largest=largest,
        lossless=there,
        lossless_back=back,
    )


def _together(model: Entry, other: Entry) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Flat pieces of equal length of both."""
    left, right = model.blocks(), other.blocks()
    a, b = torch.empty(0), torch.empty(0)
    while True:
        a = a.reshape(-1) if a.numel() else next(left, torch.empty(0)).reshape(-1)
        b = b.reshape(-1) if b.numel() else next(right, torch.empty(0)).reshape(-1)
        size = min(a.numel(), b.numel(), 1 << 22)
        if not size:
            return
        yield a[:size], b[:size]
        a, b = a[size:], b[size:]


def _double(values: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(values).reshape(-1) if values.is_complex() else values).double()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_floating_point():
        a, b = (a.float(), b.float()) if a.dtype.itemsize == 1 else (a, b)
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    return torch.equal(a, b)
