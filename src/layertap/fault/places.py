"""Which part of a whole tensor a rank holds: said by a DTensor, or by the numbers of a plain tensor.

A plain tensor that is smaller than the reference's may be cut in several ways. All ranks decide together: the way that
makes most of them agree with the reference is the layout, and a rank that does not agree then holds a wrong part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from layertap.fault.world import World, chunk, spans_of

Spans = tuple[tuple[int, int], ...]
Choice = tuple[tuple[int, int, str], ...]
"""How a plain tensor may be cut: the axis, the number of the dimension of ranks, and the way."""

WAYS = ("chunk", "zigzag", "packed2", "packed3")
"""One chunk after the other; the first with the last, as load-balanced context parallelism does it; each of two or
three tensors in one by itself, as a fused gate and up projection or fused queries, keys and values are cut."""
ALIKE = 2.0
"""A rank votes for the way to cut with the least error, and for those with no more than this many times that."""
MOST = 3
"""So many axes of one tensor are cut at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A part of a whole."""

    spans: tuple[Spans | None, ...]
    """For each axis the places that it has; None for all."""
    group: tuple[int, ...] = ()
    """The ranks that hold summands of this part; empty where it is no sum."""
    reduction: str = ""
    """`sum` or `avg`."""

    @property
    def whole(self) -> bool:
        return not self.reduction and all(spans is None for spans in self.spans)

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part of a whole tensor."""
        for axis, spans in enumerate(self.spans):
            if spans is not None:
                pieces = [tensor.narrow(axis, begin, end - begin) for begin, end in spans]
                empty = tensor.narrow(axis, 0, 0)
                tensor = torch.cat(pieces, axis) if len(pieces) > 1 else pieces[0] if pieces else empty
        return tensor

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            size if spans is None else sum(end - begin for begin, end in spans)
            for size, spans in zip(whole, self.spans, strict=True)
        )

    def summand(self, part: torch.Tensor, rank: int) -> torch.Tensor:
        """What one rank is given so that the sum is right."""
        if not self.reduction or self.reduction == "avg" or rank == min(self.group):
            return part
        return torch.zeros_like(part)


@dataclass(frozen=True, slots=True)
class RankLayout:
    """What a DTensor states of itself."""

    shape: tuple[int, ...]
    mesh: Any
    placements: tuple[Any, ...]

    def reduced(self) -> RankLayout:
        """The layout of its gradient: what is summed on the way there is the same for all on the way back."""
        from torch.distributed.tensor import Replicate

        return RankLayout(self.shape, self.mesh, tuple(Replicate() if p.is_partial() else p for p in self.placements))

    def places(self, world: World) -> dict[int, Place | None]:
        """The part of each rank that is here; None where torch cuts in a way that is not known."""
        sizes = tuple(map(int, self.mesh.shape))
        return {rank: self._place(sizes, here, rank) for rank, here in world.coordinates(self.mesh).items()}

    def _place(self, sizes: tuple[int, ...], here: tuple[int, ...], rank: int) -> Place | None:
        axes: list[Any] = [range(size) for size in self.shape]
        partial: list[int] = []
        reduction = ""
        for dim, placement in enumerate(self.placements):
            kind = type(placement).__name__
            if kind == "Shard":
                axes[placement.dim] = chunk(axes[placement.dim], sizes[dim], here[dim])
            elif kind == "_StridedShard":
                axes[placement.dim] = _strided(axes[placement.dim], placement.split_factor, sizes[dim], here[dim])
            elif placement.is_partial():
                if sizes[dim] > 1:
                    partial.append(dim)
                    reduction = str(placement.reduce_op)
            elif kind != "Replicate":
                return None
        if reduction not in ("", "sum", "avg"):
            return None
        spans = tuple(None if len(at) == size else spans_of(at) for at, size in zip(axes, self.shape, strict=True))
        group = self._group(here, partial, rank) if partial else ()
        return Place(spans=spans, group=group, reduction=reduction)

    def _group(self, here: tuple[int, ...], dims: Sequence[int], rank: int) -> tuple[int, ...]:
        mesh = self.mesh.mesh
        own = [slice(None) if dim in dims else at for dim, at in enumerate(here)]
        ranks = tuple(int(one) for one in mesh[tuple(own)].flatten().tolist())
        return ranks if rank in ranks else (rank,)


def _strided(places: Any, factor: int, count: int, number: int) -> list[int]:
    """What is left of each of `factor` chunks is one run of it."""
    return [at for piece in range(factor) for at in chunk(chunk(places, factor, piece), count, number)]


def layout_of(tensor: Any) -> RankLayout | None:
    """The layout of a DTensor, or of what was one before it was unwrapped."""
    if hasattr(tensor, "placements") and hasattr(tensor, "device_mesh"):
        return RankLayout(tuple(map(int, tensor.shape)), tensor.device_mesh, tuple(tensor.placements))
    found: RankLayout | None = getattr(tensor, "_layertap_layout", None)
    return found


def choices(world: World, rank: int, whole: Sequence[int], part: Sequence[int]) -> Iterator[Choice]:
    """The ways in which a plain tensor of this rank can be cut from the whole."""
    if len(whole) != len(part):
        return
    axes = [axis for axis, (size, own) in enumerate(zip(whole, part, strict=True)) if size != own]
    if not axes or len(axes) > MOST:
        return
    for dims in itertools.permutations(range(len(world.dims)), len(axes)):
        for ways in itertools.product(WAYS, repeat=len(axes)):
            choice = tuple(zip(axes, dims, ways, strict=True))
            place = placed(world, rank, whole, choice)
            if place is not None and place.shape(whole) == tuple(part):
                yield choice


def placed(world: World, rank: int, whole: Sequence[int], choice: Choice) -> Place | None:
    """The part of a rank by one choice; None where it cannot be cut like that."""
    spans: list[Spans | None] = [None] * len(whole)
    for axis, number, way in choice:
        dim = world.dims[number]
        count, size = max(dim.values()) + 1, whole[axis]
        places = _places(way, size, count, dim[rank])
        if places is None:
            return None
        spans[axis] = spans_of(places)
    return Place(spans=tuple(spans))


def _places(way: str, size: int, count: int, number: int) -> Any:
    if way == "chunk":
        return chunk(range(size), count, number)
    if way == "zigzag":
        if size % (2 * count):
            return None
        first, last = (chunk(range(size), 2 * count, at) for at in (number, 2 * count - 1 - number))
        return [*first, *last]
    factor = int(way[-1])
    return None if size % (factor * count) else _strided(range(size), factor, count, number)


def chosen(errors: Mapping[int, Mapping[Choice, float]], usual: Choice | None = None) -> tuple[Choice, bool] | None:
    """The way to cut that most ranks agree with, and whether it is clear; the first possible one where it is not."""
    common = [choice for choice in next(iter(errors.values())) if all(choice in found for found in errors.values())]
    if not common:
        return None
    votes = dict.fromkeys(common, 0)
    for found in errors.values():
        least = min(found.values())
        for choice in common:
            votes[choice] += found[choice] <= ALIKE * least
    best = max(common, key=lambda choice: votes[choice])
    rivals = [choice for choice in common if choice != best and votes[choice] == votes[best]]
    if not rivals and (2 * votes[best] > len(errors) or len(common) == 1):
        return best, True
    return (usual if usual in common else best), False
