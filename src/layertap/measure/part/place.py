"""Where a part lies in its whole, and the boxes that it consists of there.

A part has of each axis some spans of the whole: one where a tensor is cut in slices, two in zigzag order. Each
combination of spans is a box. Its elements are at even distances, in the part and in the whole, on every level; axes
that lie alike on both sides are one level, so that a cut of one axis leaves two levels, whatever the number of axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

Spans = tuple[tuple[int, int], ...]
"""Places of one axis, in the order in which a part holds them: (begin, end), (begin, end), …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlace:
    """Which elements of a whole a part has."""

    spans: tuple[Spans, ...]
    """For each axis."""
    shape: tuple[int, ...]
    """Of the whole."""

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of the part.

        >>> PartPlace(spans=(((0, 2),), ((0, 2), (6, 8))), shape=(2, 8)).part
        (2, 4)
        """
        return tuple(sum(end - begin for begin, end in spans) for spans in self.spans)

    def doubled(self) -> PartPlace:
        """The same of a complex tensor's real view."""
        return PartPlace(spans=(*self.spans, ((0, 2),)), shape=(*self.shape, 2))

    def rows(self) -> Iterator[PartPlace]:
        """The places of the part's slices along the first axis."""
        for begin, end in self.spans[0]:
            for at in range(begin, end):
                yield PartPlace(spans=(((at, at + 1),), *self.spans[1:]), shape=self.shape)


@dataclass(frozen=True, slots=True)
class BoxLevel:
    """Elements, or groups of them, at even distances."""

    extent: int
    step: int
    """How far apart they are in the part."""
    whole_step: int
    """How far apart they are in the whole."""


@dataclass(frozen=True, slots=True)
class Box:
    """A region without gaps."""

    levels: tuple[BoxLevel, ...]
    """The outer one first; the steps of the last one are 1."""
    start: int
    """The flat index of its first element in the part."""
    whole_start: int
    """The same in the whole."""

    @property
    def count(self) -> int:
        return math.prod(level.extent for level in self.levels)

    def pieces(self, most: int) -> Iterator[Box]:
        """It in boxes of at most so many elements."""
        first, *rest = self.levels
        inner = math.prod(level.extent for level in rest)
        if first.extent * inner <= most:
            yield self
            return
        step = max(1, most // inner)
        for begin in range(0, first.extent, step):
            start, whole = self.start + begin * first.step, self.whole_start + begin * first.whole_step
            if inner > most:
                yield from Box(tuple(rest), start, whole).pieces(most)
            else:
                extent = min(step, first.extent - begin)
                yield Box((BoxLevel(extent, first.step, first.whole_step), *rest), start, whole)


@lru_cache(maxsize=1024)
def boxes_of(place: PartPlace) -> tuple[Box, ...]:
    """The boxes of a contiguous part.

    >>> [box] = boxes_of(PartPlace(spans=(((0, 4),), ((3, 6),), ((0, 5),)), shape=(4, 9, 5)))
    >>> [(level.extent, level.step, level.whole_step) for level in box.levels], box.whole_start
    ([(4, 15, 45), (15, 1, 1)], 15)
    """
    steps, whole_steps = _steps(place.part), _steps(place.shape)
    found = []
    for spans in product(*map(_with_places, place.spans)):
        axes = [
            BoxLevel(end - begin, step, whole_step)
            for (_, begin, end), step, whole_step in zip(spans, steps, whole_steps, strict=True)
        ]
        if all(axis.extent for axis in axes):
            start = sum(at * step for (at, _, _), step in zip(spans, steps, strict=True))
            whole_start = sum(begin * step for (_, begin, _), step in zip(spans, whole_steps, strict=True))
            found.append(Box(_levels(axes), start, whole_start))
    return tuple(found)


def _with_places(spans: Spans) -> list[tuple[int, int, int]]:
    """Each span with its place in the part: place, begin, end."""
    found, passed = [], 0
    for begin, end in spans:
        found.append((passed, begin, end))
        passed += end - begin
    return found


def _steps(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _levels(axes: Sequence[BoxLevel]) -> tuple[BoxLevel, ...]:
    """The axes of a box with as few levels as describe it."""
    found: list[BoxLevel] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        outer = found[-1] if found else None
        if outer is not None and (outer.step, outer.whole_step) == (
            axis.extent * axis.step,
            axis.extent * axis.whole_step,
        ):
            found[-1] = BoxLevel(outer.extent * axis.extent, axis.step, axis.whole_step)
        else:
            found.append(axis)
    if not found or (found[-1].step, found[-1].whole_step) != (1, 1):
        found.append(BoxLevel(1, 1, 1))
    return tuple(found)
