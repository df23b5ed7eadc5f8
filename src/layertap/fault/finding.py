"""`find_fault`: two models in, one finding out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import nn

from layertap.artefact import artefact_of
from layertap.errors import BadArgument
from layertap.fault.collector import only_new_objects
from layertap.fault.free_run import FreeRunSearch, can_be_forced, eagerly
from layertap.fault.model_runner import Inputs, ModelRunner
from layertap.fault.pairing import Mapped, Pairing
from layertap.fault.result import Finding
from layertap.fault.rounding import forget_moves
from layertap.fault.search import FaultSearch, Progress
from layertap.fault.stage import not_judged
from layertap.fault.stated_parts import StatedParts
from layertap.fault.teacher_forced import TeacherForcedSearch
from layertap.fault.tensor_cache import TensorCache, describe
from layertap.fault.world import world_of
from layertap.files import parse_bytes
from layertap.messages import tr
from layertap.result import Note
from layertap.store.stated import stated_layouts


def find_fault(
    reference: nn.Module,
    candidate: nn.Module,
    inputs: Inputs,
    *,
    mapping: Mapped | None = None,
    budget: int | str | None = None,
    progress: Progress | None = None,
) -> Finding:
    """Finds the first module of the candidate that computes something else than the reference's, beyond rounding.

    `inputs` are keywords, positional arguments, one tensor, or a function that runs a model: then gradients that it
    makes are judged too. `mapping` renames the candidate's modules to the reference's ({regex: replacement}, or a
    file). `budget` bounds the memory for the reference's tensors where the models run; without one, half of what is
    free on the device. What a device has no room for goes to the machine's memory, up to a quarter of it, then to disk.

    Of a candidate that runs on several ranks, each rank calls it with the whole reference, and gets the same finding:
    each rank's part is compared with the same part of the reference's values. Which part that is, of plain tensors, a
    mapping can say, {"mesh": {"cp": 2}, regex: {"dims": "b t[cp:zigzag] d"}}; else the numbers decide. Inputs of the
    model that are said to be cut are given to the candidate in parts.
    """
    reference, candidate = _model(reference, "reference"), _model(candidate, "candidate")
    if not can_be_forced(reference):
        raise BadArgument(tr("fault.reference_compiled"))
    pairing = Pairing(reference, candidate, mapping)
    stated = stated_layouts(mapping)
    if (stage := not_judged(pairing, stated)) is not None:
        return stage
    world = world_of(reference, candidate, stated=stated is not None)
    cut = None if world is None or stated is None else StatedParts(stated, world, pairing.name)
    if stated is not None and stated.rules and world is None:
        raise BadArgument(tr("dims.mesh_world", mesh=stated.mesh, count=len(stated.mesh.ranks), world=1))
    limit = None if budget is None else parse_bytes(budget)

    def search(kind: type[FaultSearch]) -> Finding:
        with (
            only_new_objects(),
            nullcontext() if world is None else world.reporting_errors(),
            _left_alone(
                ModelRunner(reference, inputs), ModelRunner(candidate, _given(inputs, candidate, cut))
            ) as runners,
            _cache(limit) as cache,
        ):
            one = kind(*runners, pairing, cache, progress or _silent, world, cut)
            found = one.finding()
            forwards = {"reference": one.spent, "candidate": runners[1].forwards}
            return replace(found, forwards=forwards, memory=describe(cache))

    if can_be_forced(candidate):
        return search(TeacherForcedSearch)
    if artefact_of(candidate) is not None:  # a compiler's file: there is nothing under it
        return search(FreeRunSearch)
    with eagerly():
        found = search(TeacherForcedSearch)
    if found.verdict == "fault":
        return replace(found, notes=(Note("fault.without_compile"), *found.notes))
    unheld = search(FreeRunSearch)
    spent = {side: found.forwards[side] + count for side, count in unheld.forwards.items()}
    return replace(unheld, forwards=spent)


def _given(inputs: Inputs, candidate: nn.Module, cut: StatedParts | None) -> Inputs:
    """What the candidate is run on: of inputs that are said to be cut, the parts of this rank."""
    found: Inputs = inputs if cut is None else cut.inputs(candidate, inputs)
    return found


@contextmanager
def _left_alone(ours: ModelRunner, theirs: ModelRunner) -> Iterator[tuple[ModelRunner, ModelRunner]]:
    try:
        yield ours, theirs
    finally:
        ours.leave()
        theirs.leave()
        forget_moves()


@contextmanager
def _cache(limit: int | None) -> Iterator[TensorCache]:
    cache = TensorCache(limit)
    try:
        yield cache
    finally:
        cache.close()


def _model(given: Any, side: str) -> nn.Module:
    model = getattr(given, "model", given) if not isinstance(given, nn.Module) else given
    if not isinstance(model, nn.Module):
        raise BadArgument(tr("fault.expected_module", side=side, name=type(given).__name__))
    return model


def _silent(text: str) -> None:
    """Says nothing."""
