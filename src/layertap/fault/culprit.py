"""A closer look at the modules that are at fault: their operators, their causes, what putting values back removes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from layertap.fault.call_stack import CallStack
from layertap.fault.cancelling import Probe
from layertap.fault.cause import Absent, Clues, explain
from layertap.fault.drill import Departure, OpLog, depart
from layertap.fault.model_runner import ModelRunner
from layertap.fault.module_differences import below
from layertap.fault.quantised_kinds import MANY
from layertap.fault.reference_trace import ModuleCall, ReferenceTrace, ReplayResult
from layertap.fault.repro import ReproWriter, Witness
from layertap.fault.result import Finding, ModuleRow
from layertap.fault.search import FaultSearch
from layertap.fault.sharded_cause import explain_ranks
from layertap.fault.tensor_cache import CachedTensor
from layertap.fault.unjudged import judged_paths
from layertap.judge.signs import least_of
from layertap.result import Note, code_of
from layertap.site import Site

LAZY = {"xla", "lazy"}
"""Devices that drop writes in place under a TorchDispatchMode, which is how operators are seen (torch_xla 2.9)."""
CLOSELY = 4
"""So many modules are looked into; the others are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a search has found when some modules are out of line."""

    search: FaultSearch
    trace: ReferenceTrace
    forced: ReplayResult
    low: ModelRunner
    """The reference in the candidate's dtype, and its modules."""
    modules: dict[str, nn.Module]
    table: list[ModuleRow]
    absent: tuple[Absent, ...]
    total: float
    rounding: float
    standard: Mapping[Site, CachedTensor]
    """Values to judge by in the place of the reference's: those that its weights make, quantised."""
    weights: Mapping[str, Note]
    """By path, what is wrong with weights that are quantised."""
    reasons: Mapping[str, Note]
    """By path, why a module is at fault that is within its floor."""
    probe: Probe | None
    left_out: Mapping[str, Note]
    """By path, modules that are the reference's where what they work with is rearranged; with evidence."""


@dataclass(frozen=True, slots=True)
class _Logs:
    """Held runs of both sides, and the operators inside the calls that are looked into."""

    calls: frozenset[ModuleCall]
    kept: ReplayResult
    """The candidate's run."""
    theirs: dict[ModuleCall, Any]
    ours: dict[ModuleCall, Any]
    low: dict[ModuleCall, Any]
    before: ReplayResult | None = None
    """Of a candidate on several ranks, the run before, whose inputs were others."""


def accuse(faulty: list[ModuleRow], scene: Scene) -> Finding:
    """The finding on the first of them, with the others in it."""
    search = scene.search
    logs = _logs(faulty[:CLOSELY], scene)
    search.ours.rest()  # what a run writes, as running statistics are, is no difference of the models
    search.theirs.rest()
    found = [_examined(row, logs, scene) for row in faulty[:CLOSELY]]
    found += [
        Finding(verdict="fault", site=row.path, cause="unknown", local=row.local, floor=row.floor, ratio=row.ratio)
        for row in faulty[CLOSELY:]
    ]
    first = faulty[0]
    nothing = first.found.shape or first.found.absent or first.reference_path in scene.left_out
    return replace(
        found[0],
        evidence=(*found[0].evidence, *_among_its_kind(faulty, scene.table)),
        explained=math.nan if nothing else _explained(scene.total, _after(first, scene), scene.rounding),
        total=scene.total,
        others=tuple(found[1:]),
        table=tuple(scene.table),
        notes=tuple(search.notes),
    )


def is_under(path: str, rows: list[ModuleRow]) -> bool:
    """Whether a module is inside one of these."""
    return any(not row.reference_path or path.startswith(f"{row.reference_path}.") for row in rows)


def _after(first: ModuleRow, scene: Scene) -> float:
    """The error of the output with the reference's values put back at a module."""
    search, path = scene.search, first.reference_path
    ends = frozenset({(path, "output"), (path, "grad_input")})
    if scene.probe is not None and scene.probe.ends == ends:
        return scene.probe.total
    patched = search.with_put_back(scene.trace, ends)
    return search.total(scene.trace, patched, skip=path)


def _logs(rows: list[ModuleRow], scene: Scene) -> _Logs:
    search = scene.search
    keep = frozenset(key for row in rows for key in (row.site, Site(path=row.reference_path, call=row.call)))
    calls = frozenset(
        (row.reference_path, row.call) for row in rows if row.site.role not in ("param_grad", "grad_input")
    )
    lazy = {side.device.type for side in (search.ours, search.theirs)} & LAZY
    if search.parts is not None:  # operators on parts are not those on the whole
        kept, before = search.kept_twice(scene.trace, keep)
        return _Logs(frozenset(), kept, {}, {}, {}, before)
    if lazy:
        calls = frozenset()
        search.notes.append(Note("fault.operators_skipped", lazy=", ".join(lazy)))
    kept, theirs = _logged(scene, search.theirs, search.pairing.candidate, calls, keep)
    _, ours = _logged(scene, search.ours, search.pairing.reference, calls)
    low = ours if scene.low is search.ours else _logged(scene, scene.low, scene.modules, calls)[1]
    return _Logs(calls, kept, theirs, ours, low)


def _logged(
    scene: Scene,
    side: ModelRunner,
    modules: dict[str, nn.Module],
    calls: frozenset[ModuleCall],
    keep: frozenset[Site] = frozenset(),
) -> tuple[ReplayResult, dict[ModuleCall, Any]]:
    """A forced run whose operators inside some calls are written down."""
    search = scene.search
    if side.returns_output and not search.seeded and search.parts is None:
        modules = beside({call[0] for call in calls} | {key.path for key in keep}, modules)
    if not calls:
        return search.play(side, modules, scene.trace, force=True, keep=keep, judge=False), {}
    logs: list[OpLog] = []

    def within(stack: CallStack) -> OpLog:
        logs.append(OpLog(stack, calls, search.cache))
        return logs[0]

    replayed = search.play(side, modules, scene.trace, force=True, keep=keep, within=within, judge=False)
    return replayed, logs[0].ops


def beside(paths: Collection[str], modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The modules that have to be forced for what is at some to be right: those inside them, those next to them and
    next to what is around them. What is inside the others has no effect, as these return the reference's values.

    >>> sorted(beside({"a.1"}, dict.fromkeys(["", "a", "a.0", "a.0.x", "a.1", "a.1.x", "a.1.x.y", "b", "b.z"])))
    ['', 'a', 'a.0', 'a.1', 'a.1.x', 'a.1.x.y', 'b']
    """
    around = {"", *paths}
    for path in paths:
        while path := path.rpartition(".")[0]:
            around.add(path)
    inside = tuple(f"{path}." if path else "" for path in paths)
    return {
        path: module for path, module in modules.items() if path.rpartition(".")[0] in around or path.startswith(inside)
    }


def _examined(row: ModuleRow, logs: _Logs, scene: Scene) -> Finding:
    pairing, trace = scene.search.pairing, scene.trace
    ours, theirs = pairing.reference.get(row.reference_path), pairing.candidate.get(row.reference_path)
    departure = _departure(row, logs, scene)
    slot = scene.standard.get(row.site, trace.slots.get(row.site))
    clues = Clues(
        row=row,
        trace=trace,
        right=slot.get() if slot is not None else None,
        found=logs.kept.kept.get(row.site),
        departure=departure,
        absent=tuple(
            one
            for one in scene.absent
            if one.reference_path == row.reference_path or is_under(one.reference_path, [row])
        ),
        weights=scene.weights.get(row.reference_path),
        by_its_weights=row.site in scene.standard,
    )
    if scene.search.parts is not None and logs.before is not None:
        return _on_ranks(row, clues, (ours, theirs), logs, scene)
    if row.reference_path in scene.left_out:
        cause = "weights" if theirs is not None and next(theirs.parameters(), None) is not None else "structure"
        evidence: tuple[str, ...] = (scene.left_out[row.reference_path],)
    else:
        cause, evidence = explain(clues, ours, theirs)
    evidence = (*evidence, *(reason for path, reason in scene.reasons.items() if path == row.reference_path))
    lost = any(one.lost for one in clues.absent)
    inner = (
        below(ours, theirs, row.reference_path, judged_paths(scene.forced)) if ours and theirs and not lost else None
    )
    site = row.path
    if inner is not None:
        (path, (cause, evidence)) = inner
        caller = row.path or Note("fault.model")
        called = "fault.calls_it" if logs.kept.calls[path] else "fault.reads_it"
        evidence = (*evidence, Note(called, caller=caller), Note("cause.seen_there", where=row.where))
        site = pairing.name(path)
    witness = Witness(
        row=row,
        reference=None if ours is None else weakref.ref(ours),
        candidate=None if theirs is None else weakref.ref(theirs),
        arguments=logs.kept.arguments.get(row.reference_path),
        right=trace.at(row.reference_path, row.call, "output"),
        cause=cause,
        evidence=evidence,
    )
    return Finding(
        verdict="fault",
        site=site,
        op=str(departure.op) if departure is not None else "",
        cause=cause,
        evidence=evidence,
        local=row.local,
        floor=row.floor,
        ratio=row.ratio,
        write_repro=ReproWriter(witness),
    )


def _on_ranks(
    row: ModuleRow, clues: Clues, modules: tuple[nn.Module | None, nn.Module | None], logs: _Logs, scene: Scene
) -> Finding:
    parts = scene.search.parts
    assert parts is not None
    assert logs.before is not None
    told = explain_ranks(row, clues, modules, parts, (logs.kept, logs.before))
    seen = Note("cause.seen_at", where=row.where, line="")
    reasons = tuple(reason for path, reason in scene.reasons.items() if path == row.reference_path)
    return Finding(
        verdict="fault",
        site=row.path,
        cause=told.cause,
        ranks=told.ranks,
        evidence=(*(note for note in told.evidence if code_of(note) != "cause.seen_at"), *reasons, seen),
        local=row.local,
        floor=row.floor,
        ratio=row.ratio,
    )


def _departure(row: ModuleRow, logs: _Logs, scene: Scene) -> Departure | None:
    place = (row.reference_path, row.call)
    if place not in logs.calls:
        return None
    right = logs.low if row.site in scene.standard else logs.ours
    return depart(right[place], logs.theirs[place], logs.low[place], least_of(scene.search.dtype))


def _among_its_kind(faulty: list[ModuleRow], table: list[ModuleRow]) -> tuple[str, ...]:
    """Whether the first is one of many: then what they share is to blame, not one of them alone."""
    kind = faulty[0].kind
    alike, out = ([row for row in rows if row.kind == kind] for rows in (table, faulty))
    if len(out) < MANY or len(out) <= len(alike) / 2:
        return ()
    return (Note("fault.first_of_kind", count=len(out), count2=len(alike), kind=kind),)


def _explained(before: float, after: float, rounding: float) -> float:
    """The share of the error, beyond rounding, that is gone; independent errors add as squares."""
    if math.isnan(before) or math.isnan(after) or before == 0:
        return math.nan  # no error came through to the output: whole numbers, such as tokens, may stay the same
    if not math.isfinite(before):
        return 1.0 if math.isfinite(after) else 0.0
    rounding = min(rounding, after)
    excess, left = before**2 - rounding**2, max(after**2 - rounding**2, 0.0)
    return 1 - math.sqrt(min(left / excess, 1.0)) if excess > 0 else 0.0
