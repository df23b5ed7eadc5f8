"""How a distributed tensor is cut up, and which part of it is here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layertap.capture.info import rank, world_size
from layertap.errors import BadArgument
from layertap.measure.part import PartPlace
from layertap.messages import tr
from layertap.result import Note
from layertap.site import Sharding
from layertap.store.dims import spans_of
from layertap.store.stated import Mapped, StatedLayouts, stated_layouts

if TYPE_CHECKING:
    from layertap.capture.leaves import Leaf
    from layertap.store.plans import RecordPlan

NAMED = 4


def sharding_of(tensor: Any, local: torch.Tensor | None) -> Sharding:
    """The layout of a DTensor, whose part on this rank is `local`; None if that part is no plain tensor."""
    mesh, placements = tensor.device_mesh, tensor.placements
    shape, sizes = tuple(map(int, tensor.shape)), tuple(map(int, mesh.shape))
    here = mesh.get_coordinate()
    found = None if here is None or local is None else region(shape, sizes, here, placements)
    # A layout that torch cuts otherwise than `region` says, a ragged one for instance, has no known offset.
    known = found is not None and local is not None and found[1] == tuple(local.shape)
    return Sharding(
        placements=tuple(map(repr, placements)),
        global_shape=shape if local is not None else (),
        offset=found[0] if found is not None and known else (),
        mesh_shape=sizes,
        mesh_names=tuple(mesh.mesh_dim_names or ()),
        mesh_coordinate=tuple(here) if here is not None else (),
        mesh_origin=int(mesh.mesh.flatten()[0]),
    )


def stated_on(mapping: Mapped | None) -> StatedLayouts | None:
    """What a mapping says of the tensors of this rank; a BadArgument where its mesh is not that of the job."""
    stated = stated_layouts(mapping)
    if stated is None:
        return None
    here, size, mesh = rank(), world_size(), stated.mesh
    if mesh.counted and len(mesh.ranks) != size:
        raise BadArgument(tr("dims.mesh_world", mesh=mesh, count=len(mesh.ranks), world=size))
    if mesh.place(here) is None:
        raise stated.absent(here)
    return stated


marks = [0]
"""How often `mark` was called in this process: where it never was, no tensor has to be asked."""


def mark(tensor: torch.Tensor, sharding: Sharding) -> None:
    """Says of a plain tensor which part of a whole it is; recording it records that too."""
    marks[0] += 1
    tensor._layertap_sharding = sharding  # type: ignore[attr-defined]


def marked(tensor: torch.Tensor) -> Sharding | None:
    """What `mark` said of it."""
    found: Sharding | None = getattr(tensor, "_layertap_sharding", None)
    return found


def region(
    shape: Sequence[int], mesh: Sequence[int], here: Sequence[int], placements: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Where the part at the coordinate `here` of the mesh begins in the whole, and its shape; None if it has gaps.

    >>> from torch.distributed.tensor import Replicate, Shard
    >>> region((10, 4), (2, 4), (1, 3), [Replicate(), Shard(0)])
    ((9, 0), (1, 4))
    """
    begin, size = [0] * len(shape), list(shape)
    cuts = [(axis, placement) for axis, placement in enumerate(placements) if hasattr(placement, "dim")]
    for axis, placement in sorted(cuts, key=lambda cut: _turn(*cut)):
        dim, chunks = placement.dim, mesh[axis]
        if type(placement).__name__ == "_StridedShard":
            later = math.prod(mesh[other] for other, cut in cuts if other > axis and cut.dim == dim)
            if placement.split_factor != later or size[dim] % chunks:
                return None
        elif type(placement).__name__ != "Shard":
            return None
        step = -(-size[dim] // chunks)  # as torch.chunk does it: the last parts may be smaller, or empty
        start = min(here[axis] * step, size[dim])
        begin[dim], size[dim] = begin[dim] + start, min(step, size[dim] - start)
    return tuple(begin), tuple(size)


def _turn(axis: int, placement: Any) -> tuple[bool, int]:
    # FSDP cuts what tensor parallelism has cut already, and says so by a strided shard on the earlier mesh dimension.
    return type(placement).__name__ == "_StridedShard", axis


def same_part(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What two tensors hold of the same whole on this rank; None where they are spread in different ways.

    >>> same_part(torch.ones(2), torch.zeros(2))
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    spread = [hasattr(tensor, "placements") for tensor in (one, other)]
    if not any(spread):
        return one, other
    locals_: list[Any] = [
        tensor.to_local() if far else tensor  # type: ignore[attr-defined]
        for tensor, far in zip((one, other), spread, strict=True)
    ]
    layouts = [
        sharding_of(tensor, local) if far else None
        for tensor, local, far in zip((one, other), locals_, spread, strict=True)
    ]
    if layouts[0] == layouts[1]:
        return locals_[0], locals_[1]
    if all(spread) or one.shape != other.shape:
        return None
    part = spread.index(True)
    layout = layouts[part]
    assert layout is not None
    if layout.partial or not layout.offset:
        return None
    place = tuple(slice(begin, begin + size) for begin, size in zip(layout.offset, locals_[part].shape, strict=True))
    locals_[1 - part] = locals_[1 - part][place]
    return locals_[0], locals_[1]


def place_of(plan: RecordPlan) -> PartPlace | None:
    """Which elements of the whole a tensor is; None where it is the whole itself, or a summand, or it is not known."""
    return None if plan.sharding is None else _place(plan.sharding, plan.shape)


@lru_cache(maxsize=4096)
def _place(sharding: Sharding, shape: tuple[int, ...]) -> PartPlace | None:
    if sharding.partial or not sharding.global_shape or sharding.is_whole(shape):
        return None
    spans = spans_of(sharding, shape)
    if spans is None or len(spans) != len(sharding.global_shape):
        return None
    place = PartPlace(spans=spans, shape=sharding.global_shape)
    return place if place.part == shape else None


class Parts:
    """The sites of which only a rank's part is recorded, for the receipt."""

    def __init__(self) -> None:
        self._sites: dict[tuple[Sharding, tuple[int, ...]], dict[str, None]] = {}
        self._unknown: dict[str, None] = {}

    def add(self, plan: RecordPlan) -> None:
        """Notes a tensor, if it is not a whole one."""
        if plan.sharding is not None and not plan.sharding.is_whole(plan.shape):
            self._sites.setdefault((plan.sharding, plan.shape), {})[plan.site] = None

    def unknown(self, path: str, module: nn.Module, output: Iterable[Leaf]) -> None:
        """Notes a module that computes with parts of its parameters and returns plain tensors, which say nothing."""
        if any(_cut(parameter) for parameter in module._parameters.values()) and not any(
            hasattr(leaf.tensor, "placements") for leaf in output
        ):
            self._unknown[path] = None

    def notes(self, rank: int) -> list[str]:
        """One sentence for each layout."""
        notes: list[str] = [
            Note(
                "receipt.part",
                sites=_named(list(sites)),
                rank=rank,
                ranks=math.prod(sharding.mesh_shape),
                placements=", ".join(sharding.placements),
                part=list(shape),
                whole=list(sharding.global_shape) or Note("receipt.unknown_shape"),
            )
            for (sharding, shape), sites in self._sites.items()
        ]
        if self._unknown:
            notes.append(Note("receipt.maybe_part", sites=_named(list(self._unknown)), rank=rank))
        return notes


def _cut(parameter: Any) -> bool:
    return any(type(placement).__name__ != "Replicate" for placement in getattr(parameter, "placements", ()))


def _named(sites: Sequence[str]) -> str:
    more = Note("receipt.and_more_sites", count=len(sites) - NAMED) if len(sites) > NAMED else ""
    return ", ".join(sites[:NAMED]) + more
