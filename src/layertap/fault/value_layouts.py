"""One value in two forms: tokens in one list or by sequence, channels before tokens, nested, closed by an infinity.

Which layout a value has on the other side is found by its numbers, never by its shape alone: where no layout gives the
same numbers, and none that was found before fits, the two are not compared and nothing is put in their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from layertap.fault.tensor_cache import CachedTensor
from layertap.measure.dense import closed

ALIKE = 0.05
"""Two values are the same one in another layout if they differ by less than this, relatively."""
AXES = 5
"""So many axes are tried in every order."""


def masklike(tensor: torch.Tensor) -> bool:
    """Whether a value says what may be seen: true and false, or numbers that close some places.

    Numbers are looked at, which waits for the device: ask `maybe_mask` first where most values are none.
    """
    if tensor.is_nested or tensor.ndim < 2 or tensor.shape[-1] < 2:
        return False
    if tensor.dtype == torch.bool:
        return True
    return tensor.is_floating_point() and bool(closed(tensor).any())


def maybe_mask(name: str, tensor: torch.Tensor | CachedTensor) -> bool:
    """Whether a value may be a mask: numbers are one only where they have its name, or the shape of scores."""
    if tensor.is_nested or tensor.ndim < 2 or tensor.shape[-1] < 2:
        return False
    scores = tensor.ndim == 4 or tensor.shape[-1] == tensor.shape[-2] or "mask" in name
    return tensor.dtype == torch.bool or (scores and tensor.dtype.is_floating_point)


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """How a value of the reference lies in the candidate: its axes in another order, then another shape."""

    axes: tuple[int, ...]

    def there(self, right: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The reference's value as the candidate holds it."""
        return right.permute(self.axes).reshape(shape)

    def here(self, found: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The candidate's value as the reference holds it."""
        moved = found.reshape([shape[axis] for axis in self.axes])
        return moved.permute([self.axes.index(axis) for axis in range(len(self.axes))])

    def fits(self, right: torch.Size, found: torch.Size) -> bool:
        """Whether it leads from the one shape to the other, with whole axes merged or split."""
        return _merges(tuple(right[axis] for axis in self.axes), tuple(found))


@dataclass(slots=True)
class ValueLayouts:
    """The layouts that were found in one pair of models."""

    known: list[ValueLayout] = field(default_factory=list)

    def between(self, right: torch.Tensor, found: torch.Tensor) -> ValueLayout | None:
        """How the two go together; None where nothing shows that they do."""
        if right.numel() != found.numel() or not right.numel() or right.ndim > AXES:
            return None
        best = min(((_apart(right, found, one), one) for one in self._possible(right, found)), default=None, key=_first)
        if best is not None and best[0] <= ALIKE:
            if best[1] not in self.known:
                self.known.append(best[1])
            return best[1]
        fitting = [one for one in self.known if len(one.axes) == right.ndim and one.fits(right.shape, found.shape)]
        return fitting[0] if len(fitting) == 1 else None

    def _possible(self, right: torch.Tensor, found: torch.Tensor) -> Iterator[ValueLayout]:
        for axes in itertools.permutations(range(right.ndim)):
            one = ValueLayout(axes)
            if one.fits(right.shape, found.shape):
                yield one


def _first(pair: tuple[float, ValueLayout]) -> float:
    return pair[0]


@torch.no_grad()
def _apart(right: torch.Tensor, found: torch.Tensor, layout: ValueLayout) -> float:
    ours = layout.here(found, right.shape).double()
    right = right.to(found.device).double()
    finite = torch.isfinite(right) & torch.isfinite(ours)
    difference = torch.where(finite, ours - right, 0.0).norm()
    return float(difference / torch.where(finite, right, 0.0).norm().clamp_min(1e-300))


def _merges(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes differ by neighbouring axes that are one axis in the other shape.

    >>> _merges((4, 10, 32), (40, 32)), _merges((4, 10, 32), (4, 32, 10))
    (True, False)
    """
    i = j = 0
    while i < len(one) or j < len(other):
        left, right = 1, 1
        if i < len(one):
            left, i = one[i], i + 1
        if j < len(other):
            right, j = other[j], j + 1
        before = i, j
        while left != right:
            if left < right and i < len(one):
                left, i = left * one[i], i + 1
            elif right < left and j < len(other):
                right, j = right * other[j], j + 1
            else:
                return False
        if i > before[0] and j > before[1]:
            return False  # several axes here are several others there: the same size, and not the same axes
    return True
