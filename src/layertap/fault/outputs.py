"""What two runs of a model return, side by side."""

from __future__ import annotations

import math
from typing import Any

import torch

from layertap.capture.leaves import leaves, map_tensors
from layertap.fault.reference_trace import ReferenceTrace, ReplayResult, end_of
from layertap.measure.dense import dense, same_values
from layertap.measure.pair.deferred import compare_tensors
from layertap.measure.pair.difference import Difference


@torch.no_grad()
def same(one: Any, other: Any) -> bool:
    """Whether two outputs are equal bit for bit (NaN equals NaN)."""
    ours = {leaf.path: leaf.tensor for leaf in leaves(one) if leaf.tensor is not None}
    theirs = {leaf.path: leaf.tensor for leaf in leaves(other) if leaf.tensor is not None}
    if ours.keys() != theirs.keys():
        return False
    return all(_equal(tensor, theirs[path]) for path, tensor in ours.items())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    ours, theirs = dense(one), dense(other)
    if ours is None or theirs is None:
        return type(one) is type(other) and one.shape == other.shape and bool((one == other).all())
    if ours.is_complex() and theirs.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    return ours.shape == theirs.shape and same_values(ours, theirs)


def output_error(right: Any, found: Any, trace: ReferenceTrace | None = None) -> float:
    """The largest relative error over an output's tensors; NaN where no two of them can be laid side by side.

    With the trace of a run, tokens that have no right value are left out.
    """
    wanted = results_of(right)
    if not wanted:
        return 0.0  # of a step that returns nothing the gradients are judged
    measured = []
    for one, other in _paired(wanted, results_of(found)):
        void = trace.void_in(other) if trace is not None else None
        if void is not None and not one.is_nested and one.shape == other.shape and other.is_floating_point():
            other = torch.where(void & torch.isfinite(other), one.to(other), other)
        measured.append(compare_tensors(one, other))
    return max((size_of(one) for one in measured if one is not None), default=math.nan)


def free_error(trace: ReferenceTrace, replayed: ReplayResult) -> float:
    """`output_error` of a free run of a model, which as a rule has measured already what it returned."""
    wanted, found = results_of(trace.output), results_of(replayed.output)
    made = {event.site.leaf: event.found for event in replayed.events if end_of(event.site) == ("", 0, "output")}
    if not wanted or wanted.keys() != found.keys() or not wanted.keys() <= made.keys():
        return output_error(trace.output, replayed.output, trace)
    return max(size_of(made[leaf]) for leaf in wanted)


def _paired(right: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """By name; a compiled file has often lost the names: then by shape, in order."""
    if right.keys() & found.keys():
        return [(right[path], tensor) for path, tensor in found.items() if path in right]
    pairs, left = [], list(right.values())
    for tensor in found.values():
        place = next((i for i, one in enumerate(left) if one.shape == tensor.shape), None)
        if place is not None:
            pairs.append((left.pop(place), tensor))
    return pairs


def results_of(output: Any) -> dict[str, torch.Tensor]:
    """What a model returns, without what is in an object beside it: a cache, which the next call may read."""
    plain: set[int] = set()

    def meet(tensor: torch.Tensor) -> torch.Tensor:
        plain.add(id(tensor))
        return tensor

    map_tensors(output, meet)
    found = {leaf.path: leaf.tensor for leaf in leaves(output) if leaf.tensor is not None}
    return {path: tensor for path, tensor in found.items() if id(tensor) in plain} if plain else found


def size_of(found: Difference) -> float:
    return math.inf if found.nonfinite_mismatch else max(found.error, found.mismatched)
