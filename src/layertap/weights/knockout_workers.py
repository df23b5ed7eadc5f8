"""The runs of a knock-out by the workers of an engine: each makes the model once, and proves that it is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from layertap.engine import Engine, Recipe
from layertap.errors import BadArgument
from layertap.measure import measure
from layertap.messages import tr

if TYPE_CHECKING:
    from layertap.weights.knockout import Measure

Build = Callable[[], nn.Module]


class Part(NamedTuple):
    """What is left out of one run."""

    site: str
    branches: tuple[str, ...]
    head: int | None


def effects(
    engine: Engine, measured: Measure, parts: Sequence[Part], build: Build | None
) -> Iterator[dict[str, float]]:
    """What becomes of the output without each part, in their order."""

    def recipe() -> Recipe:
        model = measured.model
        devices = {str(tensor.device) for tensor in model.state_dict().values()} - {"cpu"}
        if devices:  # Ray gives a worker no accelerator unless it is asked for one
            raise BadArgument(tr("engine.device", device=min(devices)))
        given = _KnockoutGiven(None if build else model, build, measured.batches, marks(model), torch.get_num_threads())
        return Recipe(prepare=_made, given=given)

    return engine.map(_effect, parts, here=measured, there=recipe, called=lambda part: part.site)


def marks(model: nn.Module) -> dict[str, int]:
    """The fingerprints of all that a model consists of."""
    return {name: measure(tensor).fingerprint for name, tensor in model.state_dict().items()}


def _effect(measured: Measure, part: Part) -> dict[str, float]:
    known = {branch.path: branch for branch in measured.branches}
    return measured.without([known[path] for path in part.branches], part.head)


# What follows runs in a worker.


class _KnockoutGiven(NamedTuple):
    model: nn.Module | None
    build: Build | None
    batches: Sequence[Any]
    marks: dict[str, int]
    threads: int


def _made(given: _KnockoutGiven) -> Measure:
    from layertap.weights.knockout import Measure

    torch.set_num_threads(given.threads)  # another number may give other bits
    model = given.model if given.build is None else given.build()
    assert model is not None
    found = marks(model)
    other = sorted(name for name in given.marks.keys() | found.keys() if given.marks.get(name) != found.get(name))
    if other:
        raise BadArgument(tr("engine.other_model", count=len(other), name=other[0]))
    return Measure(model, given.batches)
