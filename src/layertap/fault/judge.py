"""Which modules stand out: each measurement against the floor under it, then each module by its worst."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from layertap.fault.contrast import Contrast
from layertap.fault.pairing import Pairing
from layertap.fault.reference_trace import Event, Key, ReplayResult
from layertap.fault.result import ModuleRow
from layertap.measure.floats import ROUNDOFF
from layertap.result import Note

LIMIT = 6.0
"""A module whose error is this many times its floor is faulty; clean pairs in other precisions stay below 3."""
LIMIT_AMONG_EQUALS = 2.2
"""The same where nearly all other modules are equal bit for bit: one that honestly runs another kernel (attention
written out, a sum in halves, a fused norm) stays below 1.8 in six families and two precisions, scores cast to eight
bits are above 2.6."""
EQUAL, SEVERAL = 0.9, 8
"""The share of modules that have to be equal, and of how many at least."""
FINER = 4.0
"""So much more an error counts where the values have the bits of an eight-bit float, and the reference's have more."""
TIES = 0.05
"""A router or an argmax flips where two values are nearly equal; up to this share of places, that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One measurement with its ratio."""

    event: Event
    ratio: float
    sign: str
    floor: float


def floors_of(runs: Iterable[ReplayResult]) -> dict[Key, Contrast]:
    """The largest of what clean runs showed at each place."""
    floors: dict[Key, Contrast] = {}
    for replayed in runs:
        for event in replayed.events:
            floors[event.key] = event.found.worst(floors.get(event.key, Contrast()))
    return floors


def least_of(dtype: str) -> float:
    """About one rounding of a dtype: below it nothing is a fault, however small the measured floor is by luck."""
    roundoff = ROUNDOFF.get(dtype, ROUNDOFF["float32"])
    return roundoff if roundoff > 1e-6 else 2 * roundoff  # sums in float32 and float64 go in other orders


def judge_events(replayed: ReplayResult, floors: Mapping[Key, Contrast], dtype: str) -> list[Judged]:
    """The ratio of every measurement to its floor."""
    least = least_of(dtype)
    judged = []
    for event in replayed.events:
        floor = floors.get(event.key, Contrast())
        ratio, sign = ratio_of(event.found, floor, least)
        judged.append(Judged(event=event, ratio=ratio, sign=sign, floor=max(floor.error, least)))
    return judged


def judge_beside(replayed: ReplayResult, floors: Mapping[Key, Contrast], dtype: str) -> dict[str, Judged]:
    """By page, where a module is furthest from the lowered reference, against what moved inputs do to that."""
    least = least_of(dtype)
    found: dict[str, Judged] = {}
    for event in replayed.events:
        if event.owner is None or event.beside is None:
            continue
        floor = floors.get(event.key, Contrast())
        ratio, sign = ratio_of(event.beside, floor, least)
        page = event.owner[0]
        if page not in found or ratio > found[page].ratio:
            found[page] = Judged(
                event=replace(event, found=event.beside), ratio=ratio, sign=sign, floor=max(floor.error, least)
            )
    return found


def unlike_others(table: Sequence[ModuleRow], beside: Mapping[str, ModuleRow]) -> dict[str, Note]:
    """By page, modules that are off among others that compute the very bits of the lowered reference; with evidence.

    Then both sides run the same arithmetic, and the room for other kernels that `LIMIT` leaves is not needed.
    """
    equal = sum(row.found.exact for row in beside.values())
    if len(beside) < SEVERAL or equal < EQUAL * len(beside):
        return {}
    text = Note("fault.among_equals", equal=equal, total=len(beside))
    return {
        row.page: text
        for row in table
        if row.page in beside
        and LIMIT >= row.ratio > LIMIT_AMONG_EQUALS
        and beside[row.page].ratio > LIMIT_AMONG_EQUALS
    }


def ratio_of(found: Contrast, floor: Contrast, least: float) -> tuple[float, str]:
    """How many times the floor an error is, and in which sense it is that."""
    if found.exact:
        return 0.0, "exact"
    if found.absent:
        return math.inf, "absent"
    if found.shape:
        return (0.0 if floor.shape else math.inf), "shape"  # a router that flips by rounding sends fewer tokens
    if found.nonfinite:
        return math.inf, "nonfinite"  # the reference is finite there: no rounding does that, only a range too small
    if found.mismatched:
        ties = 0.0 if found.truth else TIES
        return found.mismatched / max(floor.mismatched, ties, 1e-300), "mismatched"
    # Rounding has no direction: a slope or an offset shows long before the norm does. Chance alone gives a slope of
    # error / sqrt(n), and real rounding up to a few times what the floor shows.
    chance = max(found.error, floor.error, least) / math.sqrt(max(found.count, 1))
    signs = {
        "error": found.error / max(floor.error, least),
        "row": found.row / max(floor.row, 2 * least),
        "column": found.column / max(floor.column, 2 * least),
        "calm": found.calm / max(floor.calm, 2 * least),
        "grid": FINER * found.error / max(floor.error, least) if found.grid and not floor.grid else 0.0,
        "slope": abs(found.slope) / max(2 * abs(floor.slope), 2 * chance, least / 4),
        "offset": abs(found.offset) / max(2 * abs(floor.offset), 2 * chance, least / 4),
    }
    sign = max(signs, key=lambda name: signs[name])
    return signs[sign], sign


def by_module(judged: Sequence[Judged], free: ReplayResult, pairing: Pairing) -> list[ModuleRow]:
    """Each module by its worst measurement, in order of execution."""
    owned: defaultdict[str, list[tuple[int, Judged]]] = defaultdict(list)
    arrives: dict[str, float] = {}
    returns: dict[str, float] = {}
    for order, one in enumerate(judged):
        page, _, end, _ = one.event.key
        here = {"entry": arrives, "exit": returns}.get(end)
        if here is not None:
            here[page] = max(here.get(page, 0.0), one.event.found.error)
        if one.event.owner is not None:
            owned[one.event.owner[0]].append((order, one))
    totals: dict[str, float] = {}
    for event in free.events:
        if event.key[2] == "exit":
            seen = math.inf if event.found.nonfinite else max(event.found.error, event.found.mismatched)
            totals[event.key[0]] = max(totals.get(event.key[0], 0.0), seen)
    leaves_at = Counter(one.event.key[:3] for one in judged)
    rows = []
    for page, ones in owned.items():
        above = [(order, one) for order, one in ones if one.ratio > LIMIT]
        order, worst = above[0] if above else max(ones, key=lambda pair: pair[1].ratio)
        key = worst.event.key
        rows.append(
            ModuleRow(
                path=pairing.name(page),
                page=page,
                kind=type(pairing.candidate[page]).__name__ if page in pairing.candidate else "",
                order=order,
                where=_where(worst.event, pairing, leaves_at[key[:3]] > 1),
                total=totals.get(page, math.nan),
                entry=arrives.get(page, math.nan),
                exit=returns.get(page, math.nan),
                local=worst.event.found.error if not worst.event.found.mismatched else worst.event.found.mismatched,
                floor=worst.floor,
                ratio=worst.ratio,
                sign=worst.sign,
                place=key,
                call=worst.event.owner[1] if worst.event.owner is not None else 0,
                found=worst.event.found,
                by_rank=worst.event.by_rank,
            )
        )
    return sorted(rows, key=lambda row: row.order)


def seen_at(row: ModuleRow, one: Judged, pairing: Pairing) -> ModuleRow:
    """The same module by another measurement."""
    found = one.event.found
    return replace(
        row,
        where=_where(one.event, pairing, several=False),
        local=found.error,
        floor=one.floor,
        ratio=one.ratio,
        sign=one.sign,
        place=one.event.key,
        call=one.event.owner[1] if one.event.owner is not None else 0,
        found=found,
    )


def _where(event: Event, pairing: Pairing, several: bool) -> str:
    page, call, end, leaf = event.key
    of = {"module": pairing.name(page)} if end in ("entry", "grad_output") else {}
    where = Note(f"where.{end}", **of)
    if leaf and (several or end == "param_grad"):
        where = Note("where.leaf", where=where, leaf=leaf)
    return Note("where.call", where=where, call=call) if call else where
