"""What modules of a kind do alike: a quantised model is coarser everywhere, and that is no fault of one of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from layertap.capture.sharding import same_part
from layertap.compare.floor import ROUNDOFF
from layertap.fault.contrast import contrast, on_one_device
from layertap.fault.judge import LIMIT
from layertap.fault.result import ModuleRow
from layertap.fault.why import QUANTISED, plain_values

MANY = 4
"""Modules of one kind that it takes to speak of a system."""
OTHER = 0.5
"""Weights that are this far off are other weights; the coarsest quantisation in use, 2 bits, stays below."""
PACKED = 0.01
"""The error of 8-bit weights that are packed in a form that cannot be read."""


def systematic(
    rows: list[ModuleRow], coarseness: Callable[[ModuleRow], tuple[float, bool]]
) -> tuple[list[ModuleRow], tuple[str, ...]]:
    """Where most modules of a kind are quantised and above their floor, that is how this model computes.

    Then the kind's own median is the floor, and only what stands out from it is guilty. Of a kind with few modules,
    each that is of a quantised type has the error of its weights as its floor. What is above its floor alike for any
    other reason (a setting, code, other weights) is a fault of each of them. Returns the kinds as well.
    """
    kinds: defaultdict[str, list[ModuleRow]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    times: dict[str, float] = {}
    shared = []
    for kind, alike in kinds.items():
        above = [row for row in alike if row.ratio > LIMIT]
        coarse = {row.page: coarseness(row) for row in above}
        quantised = [row for row in above if coarse[row.page][0] > 0]
        if len(alike) >= MANY and len(above) > len(alike) / 2 and len(quantised) > len(above) / 2:
            finite = [row.ratio for row in quantised if math.isfinite(row.ratio)]
            median = statistics.median(finite) if finite else 1.0
            times |= {row.page: median for row in quantised}
            shared.append(kind)
        elif len(alike) < MANY:
            times |= {row.page: error / row.floor for row in quantised for error, sure in [coarse[row.page]] if sure}
            shared += [kind] if any(row.page in times for row in quantised) else []
    adjusted = [
        replace(row, ratio=row.ratio / by, floor=row.floor * by)
        if (by := max(times.get(row.page, 1.0), 1.0)) > 1
        else row
        for row in rows
    ]
    return adjusted, tuple(shared)


def coarseness(reference: nn.Module, candidate: nn.Module) -> tuple[float, bool]:
    """How far a module's parameters are off by being quantised, 0 where they are not; and whether that is sure.

    Quantised are those of a quantised type, those packed in another form, and those that are only rounded, as far as
    one can tell: no other weights, not scaled, and no row further off than the others.
    """
    right = dict(reference.named_parameters(recurse=False))
    own = dict(candidate.named_parameters(recurse=False))
    largest = max(right, key=lambda name: right[name].numel(), default=None)
    if largest is None or right[largest].ndim < 2:  # nobody quantises a norm
        return 0.0, False
    if largest not in own and type(reference) is not type(candidate):
        return PACKED, True
    worst, sure = 0.0, False
    for name in right.keys() & own.keys():
        here = same_part(right[name], own[name])
        if here is None:
            continue
        values, quantised = plain_values(here[1])
        if values is None:
            worst, sure = max(worst, PACKED), True
            continue
        wanted, values = on_one_device(here[0].detach(), values)
        found = contrast(wanted, values)
        if found is None or found.error > OTHER or abs(found.slope) > max(0.02, found.error / 2):
            return 0.0, False
        if found.error > 2 * ROUNDOFF["bfloat16"] or quantised:
            if _one_row(wanted, values):
                return 0.0, False
            worst = max(worst, found.error)
            sure |= quantised and found.error < QUANTISED
    return worst, sure


def _one_row(right: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether some row is further off than rounding to the steps of the others.

    A step is at most a share of the largest value: of the row's where each row has a scale, of all where there is one.
    """
    if right.ndim < 2 or not right.numel():
        return False
    r = right.flatten(1).double()
    d = (values.flatten(1).double() - r).abs().amax(1)
    share = d / r.abs().amax(1).clamp_min(1e-300)
    apart = [(line > LIMIT * line.median().clamp_min(1e-300)) for line in (d, share)]
    return bool((apart[0] & apart[1]).any())
