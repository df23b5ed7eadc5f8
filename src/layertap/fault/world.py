"""The ranks that run a sharded candidate together: this process is one of them, or represents all of them.

Under torchrun each process is one rank. Under torch's `LocalTensorMode` one process holds the tensors of all ranks.
Ranks exchange what they measured between runs, never while the model runs: there a rank that calls fewer modules than
its peers would wait for ever.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from layertap.capture.leaves import map_tensors
from layertap.fault.agreement import RankAgreement

T = TypeVar("T")


class World:
    """All ranks of the job, and what this process has of them."""

    def __init__(self, size: int, here: tuple[int, ...], mode: Any = None) -> None:
        self.size, self.here, self._mode = size, here, mode
        self.dims: list[dict[int, int]] = []
        """The dimensions along which a plain tensor may be cut: rank → coordinate, those of device meshes first."""
        self._agreement = RankAgreement(size, here[0]) if mode is None and _joined() else None

    @property
    def ranks(self) -> range:
        return range(self.size)

    def gather(self, mine: Mapping[int, T]) -> dict[int, T]:
        """What each rank gives, on all ranks."""
        if self._mode is not None:
            return dict(mine)
        if self._agreement is not None:
            self._agreement.arrive()
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, mine[self.here[0]])
        return dict(enumerate(found))

    def of_all(self, value: T) -> list[T]:
        """A value of each process, those of this one among them."""
        return list(self.gather(dict.fromkeys(self.here, value)).values())

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank: what is run next must not depend on one rank's view."""
        return any(self.of_all(flag))

    def reporting_errors(self) -> AbstractContextManager[Any]:
        """Around the work of a rank: an error is sent to the other ranks, which raise it too at the next exchange."""
        return nullcontext() if self._agreement is None else self._agreement.reporting_errors()

    def aside(self) -> AbstractContextManager[Any]:
        """A context in which this process computes for itself, with one rank's tensors."""
        return nullcontext() if self._mode is None else self._mode.disable()

    def parts(self, tensor: torch.Tensor) -> dict[int, torch.Tensor]:
        """What each rank that is here holds."""
        own: Mapping[int, torch.Tensor] | None = getattr(tensor, "_local_tensors", None)
        return dict.fromkeys(self.here, tensor) if own is None else {rank: own[rank] for rank in self.here}

    def outputs(self, value: Any) -> list[Any]:
        """What a model returned, for each rank that is here."""
        plain = map_tensors(value, _plain)
        with self.aside():
            return [map_tensors(plain, partial(self._part, rank)) for rank in self.here]

    def _part(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        return self.parts(tensor)[rank]

    def joined(self, parts: Mapping[int, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """One tensor that the model goes on with, from what each rank is to hold."""
        first = parts[self.here[0]]
        if self._mode is None:
            return first
        if not hasattr(like, "_local_tensors") and all(part is first for part in parts.values()):
            return first
        from torch.distributed._local_tensor import LocalTensor

        return LocalTensor({rank: part.detach() for rank, part in parts.items()})

    def coordinates(self, mesh: Any) -> dict[int, tuple[int, ...]]:
        """Where the ranks that are here are in a mesh."""
        found = mesh.get_coordinate()
        if found is None:
            return {}
        return {rank: tuple(_on_rank(at, rank) for at in found) for rank in self.here}

    def learn_dims(self, model: nn.Module, stated: Iterable[dict[int, int]] = ()) -> None:
        """Looks for the meshes of a model; where it has none, any way to count through the ranks may be one."""
        for dim in stated:
            self._add(dim)
        meshes: dict[int, Any] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            mesh = getattr(tensor, "device_mesh", None)
            if mesh is not None:
                meshes[id(mesh)] = mesh
        own = {id(mesh): self.coordinates(mesh) for mesh in meshes.values()}
        seen = self.gather({rank: [at.get(rank, ()) for at in own.values()] for rank in self.here})
        for number in range(max(map(len, seen.values()), default=0)):
            here = {rank: at[number] for rank, at in seen.items() if number < len(at) and at[number]}
            for axis in range(min(map(len, here.values()), default=0)):
                self._add({rank: at[axis] for rank, at in here.items()})
        self._add({rank: rank for rank in self.ranks})
        for size in (size for size in range(2, self.size) if self.size % size == 0):
            self._add({rank: rank % size for rank in self.ranks})
            self._add({rank: rank // (self.size // size) for rank in self.ranks})

    def _add(self, dim: dict[int, int]) -> None:
        if len(dim) == self.size and max(dim.values(), default=0) and dim not in self.dims:
            self.dims.append(dim)

    def fiber(self, dim: Mapping[int, int], rank: int) -> tuple[int, ...]:
        """The ranks that differ from one in this dimension alone, as far as ranks are counted through the others."""
        places: dict[int, list[int]] = {}
        for other in self.ranks:
            places.setdefault(dim[other], []).append(other)
        number = places[dim[rank]].index(rank)
        return tuple(sorted(group[number] for group in places.values() if number < len(group)))


def _joined() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def world_of(reference: nn.Module, candidate: nn.Module, *, stated: bool = False) -> World | None:
    """The ranks that run these two; None where each process is by itself. `stated`: a mapping says that they do."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    if not stated and not (_spread(candidate) or _spread(reference) or _smaller(reference, candidate)):
        return None
    local = sys.modules.get("torch.distributed._local_tensor")
    mode = local.enabled_local_tensor_mode() if local is not None else None
    if mode is not None:
        ranks = tuple(sorted(mode.ranks))
        return World(len(ranks), ranks, mode)
    size = torch.distributed.get_world_size()
    return World(size, (torch.distributed.get_rank(),)) if size > 1 else None


def _spread(model: nn.Module) -> bool:
    """Whether parameters lie on several ranks, or somebody reduces their gradients."""
    tensors = (*model.parameters(), *model.buffers())
    wrapped = any(type(module).__name__ == "DistributedDataParallel" for module in model.modules())
    return wrapped or any(hasattr(tensor, "placements") or hasattr(tensor, "_local_tensors") for tensor in tensors)


def _smaller(reference: nn.Module, candidate: nn.Module) -> bool:
    """Whether the candidate's plain parameters are parts of the reference's: as many values of one name, or fewer."""
    right = {name: tuple(tensor.shape) for name, tensor in reference.named_parameters()}
    found = [(right[name], tuple(p.shape)) for name, p in candidate.named_parameters() if name in right]
    parts = [one for one in found if one[0] != one[1] and len(one[0]) == len(one[1])]
    return bool(parts) and all(
        all(whole % size == 0 if size else False for whole, size in zip(*one, strict=True)) for one in parts
    )


def spans_of(places: Any) -> tuple[tuple[int, int], ...]:
    """Places in rising order as spans.

    >>> spans_of([0, 1, 2, 6, 7])
    ((0, 3), (6, 8))
    """
    found: list[list[int]] = []
    for place in places:
        if found and found[-1][1] == place:
            found[-1][1] += 1
        else:
            found.append([int(place), int(place) + 1])
    return tuple((begin, end) for begin, end in found)


def chunk(places: Any, count: int, number: int) -> Any:
    """One of so many chunks, cut as `torch.chunk` does: the last may be smaller, or empty."""
    step = math.ceil(len(places) / count)
    return places[number * step : (number + 1) * step]


def _on_rank(value: Any, rank: int) -> int:
    node = getattr(value, "node", None)
    local = getattr(node, "_local_ints", None)
    return int(local[rank]) if local is not None else int(value)


def _plain(tensor: Any) -> torch.Tensor:
    local: Any = tensor.to_local() if hasattr(tensor, "placements") else tensor
    found: torch.Tensor = local.wait() if hasattr(local, "trigger_wait") else local
    return found
