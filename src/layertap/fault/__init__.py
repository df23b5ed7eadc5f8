"""Two live models, one culprit: what each module does with right values, against what rounding does there.

    find_fault   the whole of it, below: read this first
    replay       the reference written down; the candidate held to it
    contrast     one tensor against another
    judge        which modules stand out
    why          the cause, from the two modules and the error's form
    result       Finding, ModuleRow

Not finished: gradients, compiled candidates, drill-down to operators, repro and
a memory budget are still to come.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from layertap.capture.leaves import leaves
from layertap.compare.result import Verdict
from layertap.fault.contrast import contrast
from layertap.fault.judge import LIMIT, by_module, floors_of, judge_events, systematic
from layertap.fault.replay import Call, Held, Place, graft, hold, write_down
from layertap.fault.result import CAUSES, Finding, ModuleRow
from layertap.fault.why import explain

__all__ = ["CAUSES", "Finding", "ModuleRow", "find_fault"]

Inputs = Mapping[str, Any] | tuple[Any, ...] | Callable[[nn.Module], Any]


def find_fault(reference: nn.Module, candidate: nn.Module, inputs: Inputs) -> Finding:
    """Finds the first module of the candidate that computes something else than the reference's, beyond rounding."""
    dtype = _dtype(candidate)
    run = _runner(inputs)
    with torch.no_grad():
        book, right = write_down(reference, run)
        free = run(candidate)
        total = _output_error(right, free)
        held = hold(candidate, run, book)
        low = copy.deepcopy(reference).to(dtype) if dtype != _dtype(reference) else reference
        clean = [
            hold(low, run, book),
            hold(low, run, book, nudge=_one_ulp),
        ]
        rounding = _output_error(right, run(low)) if low is not reference else 0.0
    forwards = {"reference": 4, "candidate": 2}
    judged = judge_events(held, floors_of(clean), str(dtype).removeprefix("torch."))
    table, shared = systematic(by_module(judged, candidate))
    notes = tuple(f"differs in form, not judged: {place}" for place in dict.fromkeys(held.unforced))
    guilty = [row for row in table if row.ratio > LIMIT]
    # What a guilty module did not call is part of what it did wrong.
    above = tuple(f"{row.path}." for row in guilty)
    missing = [(path, why) for path, why in _missing(book, held) if not path.startswith(above)]
    if not guilty and not missing:
        same = total == 0 and all(one.event.found.exact for one in judged)
        verdict: Verdict = "identical" if same else "noise"
        cause, evidence = _of_all(shared, candidate)
        return Finding(
            verdict=verdict,
            cause=cause,
            evidence=evidence,
            total=total,
            table=tuple(table),
            notes=notes,
            forwards=forwards,
        )
    keep = frozenset(row.place for row in guilty)
    with torch.no_grad():
        kept = hold(candidate, run, book, keep=keep).kept
    found = [_finding(row, reference, candidate, book, kept) for row in guilty]
    found += [Finding(verdict="fault", site=path, cause="skipped", evidence=(why,)) for path, why in missing]
    first, *others = found
    with torch.no_grad():
        patched = graft(candidate, run, book, {first.site})
    forwards["candidate"] += 2
    after = _output_error(right, patched)
    return Finding(
        verdict="fault",
        site=first.site,
        cause=first.cause,
        evidence=first.evidence,
        explained=_explained(total, after, rounding),
        total=total,
        local=first.local,
        floor=first.floor,
        ratio=first.ratio,
        others=tuple(others),
        table=tuple(table),
        notes=notes,
        forwards=forwards,
    )


def _finding(
    row: ModuleRow,
    reference: nn.Module,
    candidate: nn.Module,
    book: dict[Place, Call],
    kept: dict[tuple[str, int, str, str], torch.Tensor],
) -> Finding:
    cause, evidence = explain(row, reference, candidate, book, kept)
    return Finding(
        verdict="fault",
        site=row.path,
        cause=cause,
        evidence=evidence,
        local=row.local,
        floor=row.floor,
        ratio=row.ratio,
    )


def _runner(inputs: Inputs) -> Callable[[nn.Module], Any]:
    if callable(inputs):
        return inputs
    given = inputs

    def run(model: nn.Module) -> Any:
        dtype = _dtype(model)

        def fit(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        if isinstance(given, Mapping):
            return model(**{name: fit(value) for name, value in given.items()})
        return model(*(fit(value) for value in given))

    return run


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _one_ulp(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point() or value.dtype.itemsize < 2:
        return value
    up = torch.rand(value.shape, generator=torch.Generator().manual_seed(value.numel())) < 0.5
    step = torch.where(up.to(value.device), 1.0, -1.0) * torch.finfo(value.dtype).eps
    return (value.float() * (1 + step)).to(value.dtype) if value.dtype != torch.float64 else value * (1 + step.double())


def _output_error(right: Any, found: Any) -> float:
    wanted = {leaf.path: leaf.tensor for leaf in leaves(right) if leaf.tensor is not None}
    worst = 0.0
    for leaf in leaves(found):
        if leaf.tensor is None or leaf.path not in wanted or "past_key_values" in leaf.path:
            continue
        measured = contrast(wanted[leaf.path], leaf.tensor)
        if measured is not None:
            worst = max(worst, math.inf if measured.nonfinite else measured.error)
    return worst


def _of_all(shared: tuple[str, ...], candidate: nn.Module) -> tuple[str, tuple[str, ...]]:
    """What most modules of some kinds do alike: quantised, or computed in lower precision than they say."""
    if not shared:
        return "", ()
    quantised = any(type(p) not in (torch.Tensor, nn.Parameter) for p in candidate.parameters())
    what = "quantization" if quantised else "precision"
    return what, (f"most modules of kind {', '.join(shared)} are above the floor alike: {what}, not one fault",)


def _explained(before: float, after: float, rounding: float) -> float:
    """The share of the error, beyond rounding, that is gone; independent errors add as squares."""
    if not math.isfinite(before):
        return 1.0 if math.isfinite(after) else 0.0
    excess, left = before**2 - rounding**2, max(after**2 - rounding**2, 0.0)
    return 1 - math.sqrt(min(left / excess, 1.0)) if excess > 0 else 0.0


def _missing(book: dict[Place, Call], held: Held) -> list[tuple[str, str]]:
    """Modules that ran in the reference and not in the candidate, although the module above them did."""
    ran = {path for path, _ in book}
    absent = [path for path in dict.fromkeys(path for path, _ in book) if path and path not in held.calls]
    found = []
    for path in absent:
        above = path.rpartition(".")[0]
        while above and above not in ran:
            above = above.rpartition(".")[0]
        if above in held.calls or not above:
            found.append((path, f"{path} ran in the reference and never in the candidate"))
    return found
