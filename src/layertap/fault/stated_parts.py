"""Which part of a value a rank holds where the mapping says so: then nothing is guessed.

StatedParts.place(key, rank, whole)    the part of one value on one rank; None where nothing is said of it
StatedParts.inputs(model, given)       the candidate's inputs, cut as it is said of what the model itself is given
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from layertap.capture.leaves import map_tensors
from layertap.errors import BadArgument
from layertap.fault.places import Place
from layertap.fault.replay import parameter_names
from layertap.fault.tensor_swap import arriving
from layertap.fault.world import World
from layertap.messages import tr
from layertap.site import Site
from layertap.store.dims import Dims, bad_place
from layertap.store.stated import StatedLayouts
from layertap.targets.target import expect_inputs

SUMS = ("sum", "avg")
"""How summands can become one value."""


@dataclass(slots=True)
class StatedParts:
    """The annotations of a mapping, for the ranks of one world."""

    stated: StatedLayouts
    world: World
    name: Callable[[str], str]
    """The candidate's name of a module of the reference."""
    problems: list[str] = field(default_factory=list)
    """Annotations that do not fit; all ranks have to know before one of them raises."""
    _held: dict[Site, dict[int, tuple[tuple[int, ...], tuple[int, ...]]]] = field(default_factory=dict)
    """Where a rank holds another shape than is said: what is said, and what it holds."""
    _known: dict[tuple[Site, int], Place | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mesh = self.stated.mesh
        if set(mesh.ranks) != set(self.world.ranks):
            raise BadArgument(tr("dims.mesh_world", mesh=mesh, count=len(mesh.ranks), world=self.world.size))

    def place(self, key: Site, rank: int, whole: Sequence[int]) -> Place | None:
        """The part that a rank holds of a whole of this shape."""
        if (key, rank) not in self._known:
            self._known[key, rank] = self._place(key, rank, tuple(whole))
        return self._known[key, rank]

    def note_shape(self, key: Site, rank: int, stated: tuple[int, ...], held: tuple[int, ...]) -> None:
        """Notes that a rank holds another shape than is said. Where all do, it is the annotation that is wrong."""
        self._held.setdefault(key, {})[rank] = stated, held

    def coordinates(self) -> list[dict[int, int]]:
        """The axes of the mesh, each as rank → coordinate."""
        mesh = self.stated.mesh
        places = {rank: mesh.place(rank) or {} for rank in self.world.ranks}
        return [{rank: place[name] for rank, place in places.items()} for name in mesh.names]

    def inputs(self, model: nn.Module, given: Any) -> Any:
        """The inputs of the candidate: what is said to be cut on its way into the model is cut, the rest is whole."""
        if callable(given):
            return given
        given = expect_inputs(given)
        args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (given, {})
        cut: dict[int, torch.Tensor] = {}
        for leaf in arriving(parameter_names(model), args, kwargs):
            if leaf.tensor is None:
                continue
            key = Site(path="", role="input", leaf=leaf.path)
            places = {rank: self.place(key, rank, leaf.tensor.shape) for rank in self.world.here}
            found = {rank: place.cut(leaf.tensor) for rank, place in places.items() if place is not None}
            if found and not all(place is None or place.whole for place in places.values()):
                cut[id(leaf.tensor)] = self.world.joined(found, leaf.tensor)
        self.settle()
        return map_tensors(given, lambda tensor: cut.get(id(tensor), tensor)) if cut else given

    def settle(self) -> None:
        """Raises on all ranks what is wrong on any."""
        for problems in self.world.of_all(self.problems):
            if problems:
                raise BadArgument(problems[0])
        found = self.world.gather({rank: self._of_rank(rank) for rank in self.world.here})
        for key, (stated, held) in found[self.world.ranks[0]].items():
            dims = self._dims(replace(key, path=self.name(key.path), call=0))
            if dims is not None and all(key in one for one in found.values()):
                at = 0, len(dims.text)
                raise bad_place(dims.text, at, "dims.held", site=key, stated=list(stated), held=list(held))
        self._held.clear()

    def _of_rank(self, rank: int) -> dict[Site, tuple[tuple[int, ...], tuple[int, ...]]]:
        return {key: by_rank[rank] for key, by_rank in self._held.items() if rank in by_rank}

    def _place(self, key: Site, rank: int, whole: tuple[int, ...]) -> Place | None:
        dims = self._dims(replace(key, path=self.name(key.path), call=0))
        at = None if dims is None else self.stated.mesh.place(rank)
        if dims is None or at is None:
            return None
        try:
            if dims.sums and dims.reduction not in SUMS:
                mistake = (dims.text.index("+"), len(dims.text))
                raise bad_place(dims.text, mistake, "dims.reduction", way=dims.reduction, ways=", ".join(SUMS))
            spans = dims.spans(whole, at, key)
        except BadArgument as error:
            self.problems.append(str(error))
            return None
        return Place(
            spans=tuple(None if some == ((0, size),) else some for some, size in zip(spans, whole, strict=True)),
            group=self.stated.mesh.along(rank, dims.sums) if dims.sums else (),
            reduction=dims.reduction,
        )

    def _dims(self, site: Site) -> Dims | None:
        """The annotation of a site; a recorded site leaves out the name of an only input, so that is tried too."""
        return self.stated.of(site) or (self.stated.of(replace(site, leaf="")) if site.role == "input" else None)
