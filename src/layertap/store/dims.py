"""How a tensor in plain parts lies on a mesh of ranks, as somebody says it: `t[cp:zigzag] h[tp] d`.

    Mesh.of({"cp": 2, "tp": 2})     the axes, their sizes, and which rank is where
    Dims.parse(text, mesh)          one word for each dimension; errors show the place in the text
    dims.whole(shape)               the shape of the whole, from that of a part
    dims.spans(whole, place)        the places that a rank has, for each dimension
    spans_of(sharding, shape)       the same of a record

One word for each dimension of the tensor; its name is free. In brackets are the mesh axes that the dimension is cut
over, the outer one first, each with the order of its chunks after a colon where that is not one after the other. Behind
the last dimension, `+tp` says that the ranks of an axis hold summands, `+tp:avg` what else becomes of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layertap.errors import BadArgument
from layertap.measure.part.place import Spans
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Sharding

ORDERS = ("zigzag", "packed2", "packed3")
"""Rank i of n holds chunks i and 2n-1-i of 2n; or chunk i of each of two or three tensors that are fused in one."""
REDUCTIONS = ("sum", "avg", "max", "min")

_WORD = re.compile(r"\S+")
_DIM = re.compile(r"[^\s\[\]+:,]+(?:\[(?P<cuts>[^\[\]]*)\])?")
_CUT = re.compile(r"\s*(?P<axis>[^\s:,]+)\s*(?::\s*(?P<order>[^\s:,]+)\s*)?")
_SPACED = re.compile(r"\[[^\[\]]*\]")
_PLACEMENT = re.compile(r"(\w+)\(dim=(\d+)(?:, turn=(\d+))?\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks in a grid whose axes have names."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    """Those of the grid in C order: the last axis counts fastest."""
    counted: bool = True
    """Whether it is meant to contain all ranks of the job; a DeviceMesh may be a part of a larger one."""

    @classmethod
    def of(cls, given: Any) -> Mesh:
        """From `{"cp": 2, "tp": 2}`, ranks counted through it, or from torch's `DeviceMesh`.

        >>> Mesh.of({"cp": 2, "tp": 2}).place(1)
        {'cp': 0, 'tp': 1}
        """
        if isinstance(given, Mapping):
            names, sizes = tuple(given), tuple(given.values())
            if not names or not all(isinstance(name, str) and isinstance(size, int) for name, size in given.items()):
                raise BadArgument(tr("dims.mesh", given=dict(given)))
            ranks = tuple(range(math.prod(sizes)))
        else:
            names = tuple(getattr(given, "mesh_dim_names", None) or ())
            sizes = tuple(map(int, getattr(given, "shape", ())))
            if not names or len(names) != len(sizes):
                raise BadArgument(tr("dims.mesh", given=given))
            ranks = tuple(map(int, given.mesh.flatten().tolist()))
        if any(isinstance(size, bool) or size < 1 for size in sizes):
            raise BadArgument(tr("dims.mesh", given=given))
        return cls(names=names, sizes=sizes, ranks=ranks, counted=isinstance(given, Mapping))

    def place(self, rank: int) -> dict[str, int] | None:
        """Where a rank is, an index for each axis; None if it is not in the mesh."""
        if rank not in self.ranks:
            return None
        left, found = self.ranks.index(rank), {}
        for name, size in zip(reversed(self.names), reversed(self.sizes), strict=True):
            left, found[name] = divmod(left, size)
        return {name: found[name] for name in self.names}

    def size(self, axis: str) -> int:
        return self.sizes[self.names.index(axis)]

    def along(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks that differ from one in these axes alone, itself among them."""
        here = self.place(rank) or {}
        there = ((other, self.place(other) or {}) for other in self.ranks)
        return tuple(
            other for other, at in there if all(at[name] == here[name] for name in self.names if name not in axes)
        )

    def __str__(self) -> str:
        return " × ".join(f"{name} {size}" for name, size in zip(self.names, self.sizes, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisCut:
    """One axis that a dimension is cut over."""

    axis: str
    order: str
    """One of `ORDERS`; empty for one chunk after the other."""
    count: int
    at: tuple[int, int]
    """Where in the text it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """What an annotation says."""

    text: str
    mesh: Mesh
    cuts: tuple[tuple[AxisCut, ...], ...]
    """For each dimension, the outer cut first."""
    sums: tuple[str, ...]
    """The axes whose ranks hold summands."""
    reduction: str = ""
    words: tuple[tuple[int, int], ...] = ()
    """Where in the text each dimension's word is."""

    @classmethod
    def parse(cls, text: str, mesh: Mesh) -> Dims:
        """Reads an annotation; a BadArgument shows it, with the place of the mistake and the way out.

        >>> dims = Dims.parse("b t[cp:zigzag] h[tp]", Mesh.of({"cp": 2, "tp": 2}))
        >>> dims.spans((1, 8, 6), {"cp": 0, "tp": 1})
        (((0, 1),), ((0, 2), (6, 8)), ((3, 6),))
        """
        cuts: list[tuple[AxisCut, ...]] = []
        words: list[tuple[int, int]] = []
        sums: list[str] = []
        reduction = ""
        used: dict[str, None] = {}

        def take(axis: str, at: tuple[int, int]) -> None:
            if axis not in mesh.names:
                raise bad_place(text, at, "dims.axis", axis=axis, axes=", ".join(mesh.names))
            if axis in used:
                raise bad_place(text, at, "dims.axis_twice", axis=axis)
            used[axis] = None

        # Spaces inside brackets are part of a word.
        whole = _SPACED.sub(lambda match: match[0].replace(" ", "\0"), text)
        for found in _WORD.finditer(whole):
            word, begin = found[0], found.start()
            if word.startswith("+"):
                axis, _, how = word[1:].partition(":")
                take(axis, (begin + 1, begin + 1 + len(axis)))
                how = how or "sum"
                at = (begin, found.end())
                if how not in REDUCTIONS or (reduction and how != reduction):
                    raise bad_place(text, at, "dims.reduction", way=how, ways=", ".join(REDUCTIONS))
                reduction = how
                sums.append(axis)
                continue
            match = _DIM.fullmatch(word)
            if match is None or sums:
                raise bad_place(text, (begin, found.end()), "dims.word")
            words.append((begin, found.end()))
            cuts.append(tuple(_cuts(text, match["cuts"], begin + max(match.start("cuts"), 0), mesh, take)))
        if not words and not sums:
            raise bad_place(text, (0, max(len(text), 1)), "dims.word")
        return cls(text=text, mesh=mesh, cuts=tuple(cuts), sums=tuple(sums), reduction=reduction, words=tuple(words))

    def check(self, shape: Sequence[int], site: object) -> None:
        """Raises a BadArgument unless there is a word for each dimension of a tensor."""
        if len(self.cuts) != len(shape):
            at = (0, len(self.text)) if len(self.cuts) < len(shape) else (self.words[len(shape)][0], self.words[-1][1])
            raise bad_place(
                self.text, at, "dims.count", site=site, count=len(self.cuts), dims=len(shape), shape=list(shape)
            )

    def whole(self, shape: Sequence[int], site: object = "") -> tuple[int, ...]:
        """The shape of the whole of which a rank holds a part of this shape."""
        self.check(shape, site)
        found = tuple(size * math.prod(cut.count for cut in cuts) for size, cuts in zip(shape, self.cuts, strict=True))
        self.spans(found, dict.fromkeys(self.mesh.names, 0), site)
        return found

    def spans(self, whole: Sequence[int], place: Mapping[str, int], site: object = "") -> tuple[Spans, ...]:
        """The places that a rank has of a whole, for each dimension; a BadArgument where it cannot be cut like that."""
        self.check(whole, site)
        found = []
        for number, (size, cuts) in enumerate(zip(whole, self.cuts, strict=True)):
            spans: Spans = ((0, size),)
            for cut in cuts:
                length = sum(end - begin for begin, end in spans)
                parts = cut.count * _pieces(cut.order)
                if length % parts:
                    raise bad_place(
                        self.text,
                        cut.at,
                        "dims.divide",
                        site=site,
                        length=length,
                        dim=number,
                        parts=parts,
                        axis=cut.axis,
                    )
                spans = chunk(spans, cut.order, cut.count, place[cut.axis])
            found.append(spans)
        return tuple(found)

    def sharding(self, shape: Sequence[int], rank: int, site: object = "") -> Sharding | None:
        """What a record of a part of this shape says of it; None where the rank is not in the mesh."""
        place = self.mesh.place(rank)
        if place is None:
            return None
        whole = self.whole(shape, site)
        spans = self.spans(whole, place, site)
        plain = all(len(some) == 1 for some in spans)
        return Sharding(
            placements=tuple(self._placement(axis) for axis in self.mesh.names),
            global_shape=whole,
            offset=tuple(some[0][0] for some in spans) if plain else (),
            mesh_shape=self.mesh.sizes,
            mesh_names=self.mesh.names,
            mesh_coordinate=tuple(place.values()),
            mesh_origin=self.mesh.ranks[0],
        )

    def _placement(self, axis: str) -> str:
        if axis in self.sums:
            return f"Partial({self.reduction})"
        for dim, cuts in enumerate(self.cuts):
            axes = [cut.axis for cut in cuts]
            if axis in axes:
                turn = axes.index(axis)
                usual = [name for name in self.mesh.names if name in axes] == axes
                kind = cuts[turn].order.capitalize() or "Shard"
                return f"{kind}(dim={dim})" if usual else f"{kind}(dim={dim}, turn={turn})"
        return "Replicate()"

    def __str__(self) -> str:
        return self.text


def chunk(spans: Spans, order: str, count: int, number: int) -> Spans:
    """What one of `count` ranks has of some places, cut in one of `ORDERS`, or one chunk after the other.

    >>> chunk(((0, 8),), "zigzag", 2, 1)
    ((2, 6),)
    >>> chunk(((0, 8),), "packed2", 2, 1)
    ((2, 4), (6, 8))
    """
    length = sum(end - begin for begin, end in spans)
    size = length // (count * _pieces(order))
    if order == "zigzag":
        starts = [number * size, (2 * count - 1 - number) * size]
    else:
        starts = [(piece * count + number) * size for piece in range(_pieces(order))]
    found: list[tuple[int, int]] = []
    for start in starts:
        passed = 0
        for begin, end in spans:
            first, last = max(start, passed), min(start + size, passed + end - begin)
            if first < last:
                one = begin + first - passed, begin + last - passed
                if found and found[-1][1] == one[0]:
                    one = found.pop()[0], one[1]
                found.append(one)
            passed += end - begin
    return tuple(found) or ((0, 0),)


def spans_of(sharding: Sharding | None, shape: Sequence[int]) -> tuple[Spans, ...] | None:
    """The places that a record's part has of the whole, for each dimension; None where that is not known."""
    if sharding is None or sharding.global_shape == tuple(shape):
        return tuple(((0, size),) for size in shape)
    if sharding.offset:
        if len(sharding.offset) != len(shape):
            return None
        return tuple(((begin, begin + size),) for begin, size in zip(sharding.offset, shape, strict=True))
    cuts = [(axis, match) for axis, text in enumerate(sharding.placements) if (match := _PLACEMENT.fullmatch(text))]
    known = all(match[1].lower() in ("shard", *ORDERS) for _, match in cuts)
    ordered = any(match[1].lower() in ORDERS or match[3] for _, match in cuts)
    if not known or not ordered or not sharding.mesh_coordinate or not sharding.global_shape:
        return None
    found: list[Spans] = [((0, size),) for size in sharding.global_shape]
    for axis, match in sorted(cuts, key=lambda cut: (int(cut[1][3] or 0), cut[0])):
        dim, order = int(match[2]), match[1].lower()
        if dim >= len(found) or axis >= min(len(sharding.mesh_shape), len(sharding.mesh_coordinate)):
            return None
        order = "" if order == "shard" else order
        count = sharding.mesh_shape[axis]
        if sum(end - begin for begin, end in found[dim]) % (count * _pieces(order)):
            return None
        found[dim] = chunk(found[dim], order, count, sharding.mesh_coordinate[axis])
    return tuple(found)


def bad_place(text: str, at: tuple[int, int], code: str, **values: Any) -> BadArgument:
    """An error that shows an annotation and the place in it."""
    mark = " " * at[0] + "^" * max(at[1] - at[0], 1)
    return BadArgument(tr("dims.at", problem=Note(code, **values), text=text, mark=mark))


def _pieces(order: str) -> int:
    return 2 if order == "zigzag" else int(order[-1]) if order else 1


def _cuts(text: str, inside: str | None, begin: int, mesh: Mesh, take: Any) -> list[AxisCut]:
    found: list[AxisCut] = []
    if inside is None:
        return found
    for part in inside.replace("\0", " ").split(","):
        match = _CUT.fullmatch(part)
        if match is None:
            raise bad_place(text, (begin, begin + len(part)), "dims.word")
        at = begin + match.start("axis"), begin + match.end("axis")
        take(match["axis"], at)
        order = match["order"] or ""
        if order and order not in ORDERS:
            where = begin + match.start("order"), begin + match.end("order")
            raise bad_place(text, where, "dims.order", order=order, orders=", ".join(ORDERS))
        found.append(AxisCut(axis=match["axis"], order=order, count=mesh.size(match["axis"]), at=at))
        begin += len(part) + 1
    return found
