"""Which modules stand out: each measurement against the floor under it, then each module by its worst."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from layertap.fault.contrast import Contrast
from layertap.fault.replay import Event, Held
from layertap.fault.result import ModuleRow

LIMIT = 6.0
"""A module whose error is this many times its floor is guilty; clean pairs in other precisions stay below 3."""
LEAST = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-12, "bfloat16": 2.0**-9}
"""Below about one rounding of its dtype nothing is a fault, however small the measured floor is by luck."""
MANY = 4
"""Modules of one kind that it takes to speak of a system."""
TIES = 0.05
"""A router or an argmax flips where two values are nearly equal; up to this share of places, that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One measurement with its ratio."""

    event: Event
    ratio: float
    sign: str
    floor: float


Key = tuple[str, int, str, str]


def floors_of(runs: Iterable[Held]) -> dict[Key, Contrast]:
    """The largest of what clean runs showed at each place."""
    floors: dict[Key, Contrast] = {}
    for held in runs:
        for event in held.events:
            key = (event.path, event.call, event.end, event.leaf)
            floors[key] = event.found.worst(floors[key]) if key in floors else event.found.worst(Contrast())
    return floors


def judge_events(held: Held, floors: Mapping[Key, Contrast], dtype: str) -> list[Judged]:
    """The ratio of every measurement to its floor."""
    least = LEAST.get(dtype, LEAST["float32"])
    judged = []
    for event in held.events:
        floor = floors.get((event.path, event.call, event.end, event.leaf), Contrast())
        ratio, sign = _ratio(event.found, floor, least)
        judged.append(Judged(event=event, ratio=ratio, sign=sign, floor=max(floor.error, least)))
    return judged


def _ratio(found: Contrast, floor: Contrast, least: float) -> tuple[float, str]:
    if found.exact:
        return 0.0, "exact"
    if found.shape:
        return math.inf, "shape"
    if found.nonfinite:
        return math.inf, "nonfinite"  # the reference is finite there: no rounding does that, only a range too small
    if found.mismatched:
        return found.mismatched / max(floor.mismatched, TIES), "mismatched"
    # Rounding has no direction: a slope or an offset shows long before the norm does. Chance alone gives a slope of
    # error / sqrt(n), and real rounding up to a few times what the floor shows.
    chance = max(found.error, floor.error, least) / math.sqrt(max(found.count, 1))
    signs = {
        "error": found.error / max(floor.error, least),
        "row": found.row / max(floor.row, 2 * least),
        "column": found.column / max(floor.column, 2 * least),
        "slope": abs(found.slope) / max(2 * abs(floor.slope), 2 * chance, least / 4),
        "offset": abs(found.offset) / max(2 * abs(floor.offset), 2 * chance, least / 4),
    }
    sign = max(signs, key=lambda name: signs[name])
    return signs[sign], sign


def systematic(rows: list[ModuleRow]) -> tuple[list[ModuleRow], tuple[str, ...]]:
    """Where most modules of a kind are above their floor together, that is how this model computes, not a fault of one.

    Then the kind's own median is the floor, and only what stands out from it is guilty. Returns the kinds as well.
    """
    kinds: defaultdict[str, list[ModuleRow]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    shared = {}
    for kind, alike in kinds.items():
        above = [row for row in alike if row.ratio > LIMIT]
        if len(alike) >= MANY and len(above) > len(alike) / 2:
            finite = [row.ratio for row in alike if math.isfinite(row.ratio)]
            shared[kind] = statistics.median(finite) if finite else 1.0
    adjusted = [
        replace(row, ratio=row.ratio / shared[row.kind], floor=row.floor * shared[row.kind])
        if row.kind in shared
        else row
        for row in rows
    ]
    return adjusted, tuple(shared)


def by_module(judged: Iterable[Judged], model: nn.Module) -> list[ModuleRow]:
    """Each module by its worst measurement; an entry's error belongs to the module that prepared it."""
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    owned: defaultdict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        path = one.event.path
        if one.event.end == "entry":
            if not path:
                continue  # the caller's own input
            path = path.rpartition(".")[0]
            while path and path not in kinds:
                path = path.rpartition(".")[0]
        owned[path].append(one)
    rows = []
    for path, ones in owned.items():
        above = [one for one in ones if one.ratio > LIMIT]
        worst = above[0] if above else max(ones, key=lambda one: one.ratio)
        event = worst.event
        where = "its output" if event.end == "exit" and event.path == path else f"the input of {event.path}"
        rows.append(
            ModuleRow(
                path=path,
                kind=kinds.get(path, ""),
                order=event.order,
                where=where + (f".{event.leaf}" if event.leaf else ""),
                local=event.found.error,
                floor=worst.floor,
                ratio=worst.ratio,
                sign=worst.sign,
                place=(event.path, event.call, event.end, event.leaf),
            )
        )
    return sorted(rows, key=lambda row: row.order)
