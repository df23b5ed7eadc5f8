"""How two tensors of one shape differ: read side by side in blocks, described in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from layertap.weights.entries import Entry
from layertap.weights.same import bytes_of, pieces_of_both, same_bytes


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
    through: str = ""
    """A coarser dtype through which the other side's values went to become the model's; empty where there is none."""
    cut: bool = False
    """Whether the values are rounded, but not to the nearest: digits were cut off."""
    zeros: bool = False
    """Whether all of the model's values are zero."""
    nonfinite: int = 0
    """NaN and infinite values of the model."""
    nonfinite_there: int = 0
    """Those of the other side."""


PIECE = 1 << 15
"""Elements that are compared at once: they stay in cache, and torch does not divide them among threads."""
_COARSER = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def differences(model: Entry, other: Entry) -> Differences:
    """One pass over both."""
    unequal = 0
    aa = bb = ab = dd = largest = 0.0
    there = back = True
    floating = model.dtype.is_floating_point and other.dtype.is_floating_point
    width, both = min(model.dtype.itemsize, other.dtype.itemsize), (model.dtype, other.dtype)
    through = [d for d in _COARSER if floating and d.itemsize <= width and d not in both]
    step = max(torch.finfo(model.dtype).eps, torch.finfo(other.dtype).eps) if floating else 0.0
    cut = floating and model.dtype != other.dtype
    zeros, nonfinite, nonfinite_there = True, 0, 0
    for a, b in _side_by_side(model, other):
        if a.dtype == b.dtype and same_bits(a, b):
            x, length, bad = _finite(_double(a))
            zeros = zeros and not bad and not x.any()
            nonfinite, nonfinite_there = nonfinite + bad, nonfinite_there + bad
            aa, bb, ab = aa + length, bb + length, ab + length
            through = [d for d in through if same_values(a, a.to(d).to(a.dtype))]
            continue
        if not a.is_complex():
            there = there and same_values(a, b.to(a.dtype))
            back = back and same_values(b, a.to(b.dtype))
            through = [d for d in through if same_values(a, b.to(d).to(a.dtype))]
        x, y = _double(a), _double(b)
        apart = (x != y) & ~(np.isnan(x) & np.isnan(y))
        unequal += int(np.count_nonzero(apart))
        (x, xx, bad), (y, yy, bad_there) = _finite(x), _finite(y)
        zeros = zeros and not bad and not x.any()
        nonfinite, nonfinite_there = nonfinite + bad, nonfinite_there + bad_there
        d = x - y
        size = np.abs(d)
        cut = cut and bool((size <= 1.01 * step * np.maximum(np.abs(x), np.abs(y))).all())
        aa, bb, ab, dd = aa + xx, bb + yy, ab + _dot(x, y), dd + _dot(d, d)
        largest = max(largest, float(size.max())) if len(size) else largest
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
        through=str(through[0]).removeprefix("torch.") if through and unequal else "",
        cut=cut and not there and not back,
        zeros=zeros,
        nonfinite=nonfinite,
        nonfinite_there=nonfinite_there,
    )


def _side_by_side(model: Entry, other: Entry) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """As `together`, and of one dtype without memory of its own: a piece is overwritten by the next."""
    if model.dtype != other.dtype:
        yield from together(model, other)
        return
    for _, *sides in pieces_of_both(model, other, 0, model.nbytes):
        a, b = (torch.frombuffer(side, dtype=model.dtype) for side in sides)
        yield from zip(a.split(PIECE), b.split(PIECE), strict=True)


def together(model: Entry, other: Entry, width: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of both with the same values: flat, or where a width is given, of some whole lines."""
    if width > 1:
        yield from _lines(model, other, width)
        return
    left, right = model.blocks(), other.blocks()
    a, b = torch.empty(0), torch.empty(0)
    while True:
        a = a.reshape(-1) if a.numel() else next(left, torch.empty(0)).reshape(-1)
        b = b.reshape(-1) if b.numel() else next(right, torch.empty(0)).reshape(-1)
        size = min(a.numel(), b.numel(), PIECE)
        if not size:
            return
        yield a[:size], b[:size]
        a, b = a[size:], b[size:]


def _lines(model: Entry, other: Entry, width: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rest: list[list[torch.Tensor]] = [[], []]
    held, least = 0, -(-PIECE // width) * width
    for a, b in together(model, other):
        rest[0].append(a)
        rest[1].append(b)
        held += len(a)
        if held >= least:
            x, y = (torch.cat(parts) for parts in rest)
            whole = held - held % width
            yield x[:whole].view(-1, width), y[:whole].view(-1, width)
            rest, held = [[x[whole:]], [y[whole:]]], held - whole
    if held >= width:
        x, y = (torch.cat(parts) for parts in rest)
        yield x[: held - held % width].view(-1, width), y[: held - held % width].view(-1, width)


def _double(values: torch.Tensor) -> Any:
    real = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
    return real.to(torch.float64, copy=True).numpy()


def _finite(values: Any) -> tuple[Any, float, int]:
    """The values with zeros for those that are not finite, the sum of their squares, and how many are not finite."""
    length = _dot(values, values)
    if math.isfinite(length):  # nothing else has to be looked at
        return values, length, 0
    bad = ~np.isfinite(values)
    kept = np.where(bad, 0.0, values)
    return kept, _dot(kept, kept), int(np.count_nonzero(bad))


def _dot(a: Any, b: Any) -> float:
    """In this thread: BLAS, and torch, would divide it among threads of their own, which takes longer than the sum."""
    return float(np.einsum("i,i->", a, b))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of two pieces of one dtype."""
    return same_bytes(bytes_of(a), bytes_of(b))


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_floating_point():
        a, b = (a.float(), b.float()) if a.dtype.itemsize == 1 else (a, b)
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    return torch.equal(a, b)
