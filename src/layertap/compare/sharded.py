"""Records of a part of a tensor: which part both sides hold, or why nothing can be said.

A rank of a sharded model records what it holds. Against the whole tensor, or another part of it, only the places that
are on both sides can be compared, and only where the record says where its part is.
"""

from __future__ import annotations

from dataclasses import dataclass

from layertap.judge.shapes import Shape, compact, text
from layertap.result import Note
from layertap.site import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonPart:
    """The places that two records have in common."""

    shapes: tuple[Shape, Shape]
    """Of the two, with the axes of the whole."""
    reference: tuple[slice, ...]
    candidate: tuple[slice, ...]
    why: str
    """What is compared, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCommonPart:
    """Two records that have nothing in common, as far as is known."""

    why: str


def common_part(a: Record, b: Record) -> CommonPart | NoCommonPart | None:
    """What both records hold of one whole; None where they are to be compared as they are."""
    parts = [None if record.sharding is None or record.sharding.is_whole(record.shape) else record for record in (a, b)]
    if parts == [None, None]:
        return None
    alike = a.sharding == b.sharding and a.shape == b.shape and a.rank == b.rank
    if alike:
        return None
    for record in (a, b):
        sharding = record.sharding
        if sharding is not None and sharding.partial:
            placements = ", ".join(sharding.placements)
            return NoCommonPart(why=Note("compare.summand", site=record.site, rank=record.rank, placements=placements))
    wholes = [_whole(record) for record in (a, b)]
    places = [_place(record) for record in (a, b)]
    if None in wholes or None in places:
        unknown = a if wholes[0] is None or places[0] is None else b
        return NoCommonPart(why=Note("compare.unknown_part", site=unknown.site, part=text(unknown.shape)))
    shape = next(whole for whole, part in zip(wholes, parts, strict=True) if part is not None)
    assert shape is not None
    if any(whole is None or compact(whole) != compact(shape) for whole in wholes):
        return None  # other shapes altogether
    return _overlap(a, b, shape)


def _overlap(a: Record, b: Record, whole: Shape) -> CommonPart | NoCommonPart:
    spans: list[tuple[int, int]] = []
    regions = []
    for record in (a, b):
        begins, sizes = _place(record) or (), record.shape
        if len(sizes) != len(whole):  # a whole tensor without the axes of size 1
            begins, sizes = (0,) * len(whole), whole
        regions.append((begins, sizes))
    (first, sizes), (second, others) = regions
    for one, size, other, length in zip(first, sizes, second, others, strict=True):
        spans.append((max(one, other), min(one + size, other + length)))
    if any(end <= begin for begin, end in spans):
        return NoCommonPart(why=Note("compare.other_part", part=text(a.shape), whole=text(whole)))
    why = Note(
        "compare.common_part",
        part=text(tuple(end - begin for begin, end in spans)),
        whole=text(whole),
        begin=[begin for begin, _ in spans],
    )
    slices = [
        tuple(slice(begin - start, end - start) for (begin, end), start in zip(spans, begins, strict=True))
        for begins, _ in regions
    ]
    return CommonPart(shapes=(sizes, others), reference=slices[0], candidate=slices[1], why=why)


def _whole(record: Record) -> Shape | None:
    sharding = record.sharding
    return record.shape if sharding is None else sharding.global_shape or None


def _place(record: Record) -> Shape | None:
    sharding = record.sharding
    if sharding is None or sharding.global_shape == record.shape:
        return (0,) * len(record.shape)
    return sharding.offset or None
