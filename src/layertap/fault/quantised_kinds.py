"""What modules of a kind do alike: a quantised model is coarser everywhere, and that is no fault of one of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from layertap.capture.sharding import same_part
from layertap.fault.cause import QUANTISED, plain_values
from layertap.fault.contrast import contrast, on_one_device
from layertap.fault.judge import FINER, LIMIT
from layertap.fault.quantised import quantisation_error, weights_in_effect
from layertap.fault.result import ModuleRow
from layertap.measure.floats import ROUNDOFF

MANY = 4
"""Modules of one kind that it takes to speak of a system."""


def systematic(
    rows: list[ModuleRow], coarseness: Callable[[ModuleRow], float]
) -> tuple[list[ModuleRow], tuple[str, ...]]:
    """Where many modules are quantised, that is how this model computes.

    Then the median of those of a kind is their floor, or the error of their own weights where that is more, and only
    what stands out from it is faulty. What is above its floor alike for any other reason (a setting, code, other
    weights) is a fault of each of them, and so is one quantised module among many that are not. Returns the kinds as
    well.
    """
    kinds = _by_kind(rows)
    rows = [_among_fellows(row, kinds[row.kind]) for row in rows]
    kinds = _by_kind(rows)
    coarse = {row.page: error for row in rows if row.ratio > LIMIT and (error := coarseness(row)) > 0}
    times: dict[str, float] = {}
    shared = []
    for kind, alike in kinds.items():
        quantised = [row for row in alike if row.page in coarse]
        if not quantised or (len(alike) >= MANY and len(coarse) < MANY):
            continue
        finite = [row.ratio for row in quantised if math.isfinite(row.ratio)]
        median = statistics.median(finite) if finite and len(alike) >= MANY else 1.0
        times |= {row.page: max(median, coarse[row.page] / row.floor) for row in quantised}
        shared.append(kind)
    adjusted = [
        replace(row, ratio=row.ratio / by, floor=row.floor * by) if (by := times.get(row.page, 1.0)) > 1 else row
        for row in rows
    ]
    return adjusted, tuple(shared)


def _by_kind(rows: list[ModuleRow]) -> defaultdict[str, list[ModuleRow]]:
    kinds: defaultdict[str, list[ModuleRow]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    return kinds


def _among_fellows(row: ModuleRow, fellows: list[ModuleRow]) -> ModuleRow:
    """Where most of a kind give eight-bit floats, that is how this model computes."""
    alike = sum(one.sign == "grid" for one in fellows)
    common = row.sign == "grid" and alike >= MANY and 2 * alike > len(fellows)
    return replace(row, ratio=row.ratio / FINER) if common else row


def coarseness(reference: nn.Module, candidate: nn.Module) -> float:
    """How far a module's weights are off by being the reference's, quantised; 0 where they are not that."""
    right = dict(reference.named_parameters(recurse=False))
    own = dict(candidate.named_parameters(recurse=False))
    largest = max(right, key=lambda name: right[name].numel(), default=None)
    if largest is None or right[largest].ndim < 2:  # nobody quantises a norm
        return 0.0
    worst = 0.0
    for name, whole in right.items():
        here = same_part(whole, own[name]) if name in own else None  # of a sharded one, what this rank holds
        wanted, (values, typed) = (whole, (None, True)) if here is None else (here[0], plain_values(here[1]))
        if values is None and name == largest and name not in own and isinstance(reference, nn.Linear):
            values = weights_in_effect(candidate, reference)
        if values is None:
            if name == largest:
                return 0.0
            continue
        wanted, values = on_one_device(wanted.detach(), values)
        found = contrast(wanted, values)
        if found is None:
            return 0.0
        if found.error <= 2 * ROUNDOFF["bfloat16"]:
            if typed:
                worst = max(worst, found.error)
            continue
        error = quantisation_error(wanted, values)
        if error is None and typed and found.error < QUANTISED:
            error = found.error  # of a type that says so itself
        if error is None:
            return 0.0
        worst = max(worst, error)
    return worst
