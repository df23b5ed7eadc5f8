"""Shapes that differ without a difference: axes of size 1, and axes that one side has merged."""

from __future__ import annotations

import math
from itertools import accumulate
from operator import mul

Shape = tuple[int, ...]


def compact(shape: Shape) -> Shape:
    """A shape without its axes of size 1: elements in C order, and so sketches, do not feel them."""
    if 1 not in shape:
        return shape
    return tuple(size for size in shape if size != 1)


def leveled(one: Shape, other: Shape) -> tuple[Shape, Shape]:
    """Two shapes with the same number of axes, where leaving out axes of size 1 achieves that.

    >>> leveled((1, 40, 8), (64, 8)), leveled((40, 1, 8), (1, 64, 8)), leveled((2, 3), (2, 3, 4))
    (((40, 8), (64, 8)), ((40, 1, 8), (1, 64, 8)), ((2, 3), (2, 3, 4)))
    """
    return _shorter(one, len(other)), _shorter(other, len(one))


def common_shape(one: Shape, other: Shape) -> Shape | None:
    """The shape in which both have the same elements in the same order; None where there is none.

    >>> common_shape((1, 32, 8), (32, 8)), common_shape((2, 16, 8), (32, 8)), common_shape((8, 32), (32, 8))
    ((32, 8), (32, 8), None)
    """
    if one == other:
        return one
    short, long = compact(one), compact(other)
    if short == long:
        return short
    if math.prod(one) != math.prod(other) or not short or not long:
        return None
    short, long = sorted((short, long), key=len)
    return short if set(accumulate(short, mul)) <= set(accumulate(long, mul)) else None


def lengths(one: Shape, other: Shape) -> tuple[int, int] | None:
    """The two lengths of one axis, if that is all that two shapes differ by; several axes may have it.

    >>> lengths((1, 40, 8), (64, 8)), lengths((2, 9, 40, 40), (2, 9, 64, 64)), lengths((40, 8), (64, 16))
    ((40, 64), (40, 64), None)
    """
    one, other = leveled(one, other)
    differ = {(a, b) for a, b in zip(one, other, strict=False) if a != b}
    return differ.pop() if len(one) == len(other) and len(differ) == 1 else None


def text(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _shorter(shape: Shape, count: int) -> Shape:
    """With axes of size 1 left out from the front, down to `count` axes."""
    found = list(shape)
    while len(found) > count and 1 in found:
        found.remove(1)
    return tuple(found)
