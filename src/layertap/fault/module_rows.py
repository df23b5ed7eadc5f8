"""Which modules stand out: each measurement against the floor under it, then each module by its worst."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from layertap.fault.pairing import Pairing
from layertap.fault.reference_trace import Event, ReplayResult, end_of
from layertap.fault.result import ModuleRow
from layertap.judge.calibration import LIMIT_AMONG_EQUALS, LIMIT_OF_MODULES, SEVERAL_MODULES, SHARE_OF_EQUALS
from layertap.judge.signs import least_of, ratio_of
from layertap.measure.pair.difference import UNMEASURED, Difference
from layertap.result import Note
from layertap.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One measurement with its ratio."""

    event: Event
    ratio: float
    sign: str
    floor: float


def floors_of(runs: Iterable[ReplayResult]) -> dict[Site, Difference]:
    """The largest of what clean runs showed at each place."""
    floors: dict[Site, Difference] = {}
    for replayed in runs:
        for event in replayed.events:
            known = floors.get(event.site)
            floors[event.site] = event.found if known is None else event.found.worst(known)
    return floors


def judge_events(replayed: ReplayResult, floors: Mapping[Site, Difference], dtype: str) -> list[Judged]:
    """The ratio of every measurement to its floor."""
    least = least_of(dtype)
    judged = []
    for event in replayed.events:
        floor = floors.get(event.site, UNMEASURED)
        ratio, sign = ratio_of(event.found, floor, least)
        judged.append(Judged(event=event, ratio=ratio, sign=sign, floor=max(floor.error, least)))
    return judged


def judge_beside(replayed: ReplayResult, floors: Mapping[Site, Difference], dtype: str) -> dict[str, Judged]:
    """By path, where a module is furthest from the lowered reference, against what moved inputs do to that."""
    least = least_of(dtype)
    found: dict[str, Judged] = {}
    for event in replayed.events:
        if event.owner is None or event.beside is None:
            continue
        floor = floors.get(event.site, UNMEASURED)
        ratio, sign = ratio_of(event.beside, floor, least)
        path = event.owner[0]
        if path not in found or ratio > found[path].ratio:
            found[path] = Judged(
                event=replace(event, found=event.beside), ratio=ratio, sign=sign, floor=max(floor.error, least)
            )
    return found


def unlike_others(table: Sequence[ModuleRow], beside: Mapping[str, ModuleRow]) -> dict[str, Note]:
    """By path, modules that are off among others that compute the very bits of the lowered reference; with evidence.

    Then both sides run the same arithmetic, and `LIMIT_OF_MODULES`, which leaves room for other kernels, is too wide.
    """
    equal = sum(row.found.equal for row in beside.values())
    if len(beside) < SEVERAL_MODULES or equal < SHARE_OF_EQUALS * len(beside):
        return {}
    text = Note("fault.among_equals", equal=equal, total=len(beside))
    return {
        row.reference_path: text
        for row in table
        if row.reference_path in beside
        and LIMIT_OF_MODULES >= row.ratio > LIMIT_AMONG_EQUALS
        and beside[row.reference_path].ratio > LIMIT_AMONG_EQUALS
    }


def by_module(judged: Sequence[Judged], free: ReplayResult, pairing: Pairing) -> list[ModuleRow]:
    """Each module by its worst measurement, in order of execution."""
    owned: defaultdict[str, list[tuple[int, Judged]]] = defaultdict(list)
    arrives: dict[str, float] = {}
    returns: dict[str, float] = {}
    for order, one in enumerate(judged):
        path, end = one.event.site.path, one.event.site.role
        here = {"input": arrives, "output": returns}.get(end)
        if here is not None:
            here[path] = max(here.get(path, 0.0), one.event.found.error)
        if one.event.owner is not None:
            owned[one.event.owner[0]].append((order, one))
    totals: dict[str, float] = {}
    for event in free.events:
        if event.site.role == "output":
            seen = math.inf if event.found.nonfinite_mismatch else max(event.found.error, event.found.mismatched)
            totals[event.site.path] = max(totals.get(event.site.path, 0.0), seen)
    leaves_at = Counter(end_of(one.event.site) for one in judged)
    rows = []
    for path, ones in owned.items():
        above = [(order, one) for order, one in ones if one.ratio > LIMIT_OF_MODULES]
        order, worst = above[0] if above else max(ones, key=lambda pair: pair[1].ratio)
        key = worst.event.site
        rows.append(
            ModuleRow(
                path=pairing.name(path),
                reference_path=path,
                kind=type(pairing.candidate[path]).__name__ if path in pairing.candidate else "",
                order=order,
                where=_where(worst.event, pairing, leaves_at[end_of(key)] > 1),
                total=totals.get(path, math.nan),
                entry=arrives.get(path, math.nan),
                exit=returns.get(path, math.nan),
                local=worst.event.found.error if not worst.event.found.mismatched else worst.event.found.mismatched,
                floor=worst.floor,
                ratio=worst.ratio,
                sign=worst.sign,
                site=key,
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
        site=one.event.site,
        call=one.event.owner[1] if one.event.owner is not None else 0,
        found=found,
    )


def _where(event: Event, pairing: Pairing, several: bool) -> str:
    path, call, end, leaf = event.site.path, event.site.call, event.site.role, event.site.leaf
    of = {"module": pairing.name(path)} if end in ("input", "grad_output") else {}
    where = Note(f"where.{end}", **of)
    if leaf and (several or end == "param_grad"):
        where = Note("where.leaf", where=where, leaf=leaf)
    return Note("where.call", where=where, call=call) if call else where
