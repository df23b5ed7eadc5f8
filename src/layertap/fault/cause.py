"""The cause: first what the two modules are, which is the cheapest proof, then what the error looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from layertap.fault.drill import Departure
from layertap.fault.error_forms import certain_form, error_form, faint_form, integer_form
from layertap.fault.module_differences import Explanation, config_apart, mode_apart, weights_apart
from layertap.fault.operators import by_operator
from layertap.fault.reference_trace import ReferenceTrace, call_of, end_of
from layertap.fault.result import ModuleRow
from layertap.fault.value_layouts import masklike
from layertap.measure.dense import closed, dense
from layertap.measure.pair.deferred import on_one_device
from layertap.result import Note, code_of


@dataclass(frozen=True, slots=True)
class Absent:
    """Calls that one side makes and the other does not."""

    reference_path: str
    cause: str
    text: str
    lost: bool = True
    """Whether the module does not take part at all; one that is called in parts may do all the same work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What is known of one faulty module."""

    row: ModuleRow
    trace: ReferenceTrace
    right: torch.Tensor | None
    """The value that is right at the place of the worst measurement."""
    found: torch.Tensor | None
    """The candidate's tensor at the place of the worst measurement."""
    departure: Departure | None
    absent: tuple[Absent, ...]
    """What it should have called and did not."""
    weights: Note | None = None
    """What is wrong with its weights, which are quantised."""
    by_its_weights: bool = False
    """Whether what is right is made with the candidate's weights, which are quantised: then they are not to blame."""


def explain(clues: Clues, reference: nn.Module | None, candidate: nn.Module | None) -> Explanation:
    """Names the cause of one module's error, with evidence; the cheapest and surest proofs first."""
    row, trace = clues.row, clues.trace
    seen = Note("cause.seen_at", where=row.where, line=_line(row, trace))
    cause, evidence = _cause(clues, reference, candidate) or ("", ())
    if cause:
        return cause, (*evidence, *_slope(row, evidence), seen)
    error = (
        Note("cause.relative_error", local=row.local)
        if row.local
        else Note(f"cause.sense_{row.sign}")
        if row.sign in _SENSES
        else row.sign
    )
    if any(
        path.startswith(f"{row.reference_path}." if row.reference_path else "") and path != row.reference_path
        for path in trace.calls
    ):
        return "structure", (Note("cause.children_right", error=error), seen)
    return "unknown", (error, seen)


_SENSES = ("nonfinite", "slope", "offset")
"""What is wrong where the relative error states nothing."""


def _line(row: ModuleRow, trace: ReferenceTrace) -> str:
    """The token or channel that gave it away, as an index."""
    slot = trace.slots.get(row.site)
    lines = {"row": row.found.row, "column": row.found.column}
    line = lines.get(row.sign)
    if slot is None or line is None:
        return ""
    if row.sign == "column":
        return Note("cause.most_in_column", column_index=line.index[-1])
    values = _numbers(slot.get())
    if values is None:
        return ""
    place = np.unravel_index(line.index[0], values.shape[:-1])
    return Note("cause.most_in_row", place=", ".join(str(int(index)) for index in place)) if place else ""


def _slope(row: ModuleRow, evidence: tuple[str, ...]) -> tuple[str, ...]:
    """Where the error is a multiple of what is right, that says it best."""
    found = row.found
    if not 0.99 * found.error < abs(found.slope) < math.inf or any(code_of(text) == "cause.times" for text in evidence):
        return ()
    rest = math.sqrt(max(found.error**2 - found.slope**2, 0.0))
    margin = max(rest, row.floor) / math.sqrt(max(found.count, 1))
    return (Note("cause.times_with_margin", subject=_subject(row), value=1 + found.slope, margin=margin),)


def _subject(row: ModuleRow) -> str:
    where = row.where
    while isinstance(where, Note) and where.code in ("where.leaf", "where.call"):
        where = where.values["where"]
    return where


def _cause(clues: Clues, theirs: nn.Module | None, ours: nn.Module | None) -> Explanation | None:
    row, trace = clues.row, clues.trace
    path, call, end = end_of(row.site)
    for absent in clues.absent:
        if absent.lost:
            return absent.cause, (absent.text,)
    if row.found.absent:
        return _no_gradient(row, theirs, ours)
    if clues.weights:
        return "weights", (Note("cause.weight", name="weight", how=clues.weights),)
    explanation = None
    if ours is not None and theirs is not None and not clues.by_its_weights:
        explanation = weights_apart(theirs, ours, row.reference_path, set(trace.calls))
    if row.sign == "grid":
        return explanation or ("precision", (Note("cause.four_bits"),))
    if explanation is None and row.found.shape:
        explanation = config_apart(theirs, ours) if ours is not None and theirs is not None else None
        return explanation or ("structure", (Note("cause.other_size"),))
    if explanation is not None or clues.found is None or clues.right is None:
        return explanation or _called(clues)
    ours_at, theirs_at = _numbers(clues.right), _numbers(clues.found)
    if ours_at is None or theirs_at is None:
        return _called(clues)
    right, found = on_one_device(ours_at, theirs_at)
    if right.shape == found.shape and right.is_floating_point() and found.is_floating_point():
        explanation = _closed_otherwise(right, found)
        if explanation is not None:
            return explanation
        both = closed(right) & closed(found)
        right, found = right.masked_fill(both, 0.0), found.masked_fill(both, 0.0)
    given = trace.at(path, call, "input").values() if end == "output" else ()
    numbers = [values.to(found.device) for value in given if (values := _numbers(value)) is not None]
    explanation = certain_form(right, found, numbers)
    if explanation is None and ours is not None and theirs is not None:
        explanation = config_apart(theirs, ours)
    if not found.is_floating_point():
        return explanation or integer_form(right, found)
    departure = clues.departure
    if explanation is None and departure is not None:
        explanation = by_operator(departure, sure=True)
    if explanation is None and departure is not None and ours is not None and theirs is not None:
        explanation = mode_apart(theirs, ours)
    explanation = (
        explanation
        or _cache(row, trace)
        or error_form(right, found, _around(row, trace, found.device), row.floor, _subject(row))
    )
    if explanation is None and departure is not None:
        explanation = by_operator(departure, sure=False)
    return explanation or faint_form(right, found, row.floor) or _called(clues)


def _called(clues: Clues) -> Explanation | None:
    """What it calls more or less often than the reference does, where nothing else is known."""
    return next(((absent.cause, (absent.text,)) for absent in clues.absent), None)


def _numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """In real numbers, one after the other."""
    values = dense(tensor.detach())
    return torch.view_as_real(values) if values is not None and values.is_complex() else values


def _closed_otherwise(right: torch.Tensor, found: torch.Tensor) -> Explanation | None:
    """A mask that is added to scores and closes other places."""
    apart = int((closed(right) != closed(found)).sum())
    usual = torch.isfinite(right).all() and torch.isfinite(found).all()
    if not apart or not (usual or masklike(right)):
        return None
    return "mask", (Note("cause.mask_places", apart=apart, numel=right.numel()),)


def _no_gradient(row: ModuleRow, theirs: nn.Module | None, ours: nn.Module | None) -> Explanation:
    """A gradient that one side lacks."""
    name, end = row.site.leaf, row.site.role
    if end != "param_grad":
        return "structure", (Note("cause.no_gradient"),)
    right, own = (module._parameters.get(name) if module is not None else None for module in (theirs, ours))
    if right is not None and own is not None and right.requires_grad != own.requires_grad:
        return "config", (
            Note("cause.requires_grad", name=name, requires_grad=own.requires_grad, requires_grad2=right.requires_grad),
        )
    return "structure", (Note("cause.one_gradient", name=name),)


def _cache(row: ModuleRow, trace: ReferenceTrace) -> Explanation | None:
    """Right when it was called first, wrong when it is called with what was kept from then."""
    forced = any(
        end_of(key) == (row.reference_path, row.call, "state") for key in trace.slots
    )  # an object with tensors among its arguments
    if not row.call or not forced:
        return None
    return "cache", (Note("cause.reads_cache", call=row.call),)


def _around(row: ModuleRow, trace: ReferenceTrace, device: torch.device) -> dict[str, torch.Tensor]:
    """What a module had at hand: its input, and what its children returned."""
    found: dict[str, torch.Tensor] = {}
    for site, slot in trace.slots.items():
        if site.role == "input" and call_of(site) == (row.reference_path, row.call):
            found[Note("cause.its_input", leaf=site.leaf).strip()] = slot.get().to(device)
        elif (
            site.role == "output" and not site.call and site.path and site.path.rpartition(".")[0] == row.reference_path
        ):
            found[Note("cause.output_of", page=site.path, leaf=site.leaf).strip()] = slot.get().to(device)
    return {name: values for name, value in found.items() if (values := _numbers(value)) is not None}
