"""What a run of several ranks is, seen beside the other run: stages of a pipeline, and calls that are microbatches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.store import Run
from layertap.store.merged import ranks_of
from layertap.store.rank_reading import Microbatches, RankReading, Stages, plain_name
from layertap.store.stated import PIPELINE, StatedLayouts

RankReadings = tuple[RankReading, RankReading]

STAND_IN = "Identity"
"""The kind of module that is put in the place of what is on another rank."""


def readings_of(reference: Run, candidate: Run, stated: StatedLayouts | None) -> RankReadings:
    """How each of two runs is to be read beside the other."""
    runs = reference, candidate
    ranks = [ranks_of(run) for run in runs]
    found = []
    for side, run in enumerate(runs):
        several = len(ranks[side]) > 1 and ranks[0] != ranks[1]
        stages = _stages(run, runs[1 - side], stated) if several else None
        found.append(RankReading(stages=stages, batches=_batches(run, runs[1 - side], stages)))
    if stated is None or not stated.rules:
        return found[0], found[1]
    cut = [side for side in (0, 1) if set(ranks[side]) == set(stated.mesh.ranks)]
    if not cut:
        counts = dict(reference=len(ranks[0]), candidate=len(ranks[1]))
        raise BadArgument(tr("dims.mesh_ranks", mesh=stated.mesh, count=len(stated.mesh.ranks), **counts))
    for side in cut:
        found[side] = replace(found[side], stated=stated)
    return found[0], found[1]


def _stages(run: Run, other: Run, stated: StatedLayouts | None) -> Stages | None:
    """The stages of a pipeline, where ranks recorded other modules than their peers; None elsewhere.

    A module that stands in for what is on another rank returns what it is given; one that contains modules of several
    stages is on all of their ranks. All others must be on one stage only, unless the mesh has an axis `pp`.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    owned: dict[int, set[str]] = defaultdict(set)
    tables = [table.group_by(["rank", "path", "kind"]).aggregate([]) for table in run.tables(["rank", "path", "kind"])]
    for rank, path, kind in (row.values() for table in tables for row in table.to_pylist()):
        kinds[path].add(kind)
        owned[rank] |= {path} if kind != STAND_IN else set()
    above = {parent for path in kinds for parent in _parents(path)}
    ends = {rank: frozenset(path for path in paths if path not in above) for rank, paths in owned.items()}
    by_ends: dict[Any, set[int]] = defaultdict(set)
    if stated is not None and PIPELINE in stated.mesh.names:
        for rank in ends:
            by_ends[(stated.mesh.place(rank) or {}).get(PIPELINE)].add(rank)
    else:
        for rank, paths in ends.items():
            by_ends[paths].add(rank)
        if any(not one or one & two for one, two in permutations(by_ends, 2)):
            return None
    if len(by_ends) < 2:
        return None
    order = {site.path: number for number, site in reversed(list(enumerate(other.sites)))}

    def first(ranks: set[int]) -> tuple[int, int]:
        return min((order.get(path, len(order)) for rank in ranks for path in ends[rank]), default=0), min(ranks)

    stand_ins = frozenset(path for path, found in kinds.items() if STAND_IN in found and len(found) > 1)
    ranked = tuple(frozenset(ranks) for ranks in sorted(by_ends.values(), key=first))
    shared: dict[str, tuple[frozenset[int], frozenset[int]]] = {}
    for path in above | {""}:
        on = [stage for stage in ranked if any(path in owned[rank] for rank in stage)]
        shared |= {path: (on[0], on[-1])} if len(on) > 1 else {}
    return Stages(ranks=ranked, shared=shared, stand_ins=stand_ins)


def _parents(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path


def _batches(run: Run, other: Run, stages: Stages | None) -> Microbatches | None:
    """The microbatches of a run, where the other run calls each module on the whole batch; None elsewhere.

    Each module was called so many times as often, and the first dimensions of its values add up to the whole one's.
    torch's pipelining may run a stage once more before the first microbatch, to see its shapes: that call is left out.
    """
    here, there = _calls(run), _calls(other)
    times = {here[name] / there[name] for name in here if name in there}
    if len(times) != 1 or (count := times.pop()) != int(count) or count < 2:
        return None
    constant = _constant(run, other, here.keys() & there.keys())
    probes = [name for name in here if there.get(name) == 1 and name not in constant and len(other.index.find(name))]
    found = [_look(run, other, name, int(count), stages) for name in (*probes[:1], *probes[-1:])]
    if not found or None in found or found[0] != found[-1]:
        return None
    skipped = found[0] or frozenset()
    first = int(run.index.steps()[0])
    return Microbatches(count=int(count) - (first in skipped), calls=there, skipped=skipped, constant=constant)


def _constant(run: Run, other: Run, names: Collection[str]) -> frozenset[str]:
    """Values that are as large in one call as in the other run: positions, cosines, a mask for all."""
    listed = [name for name in sorted(names) if len(run.index.find(name)) and len(other.index.find(name))]
    pairs = zip(
        listed,
        *(
            side.records_at(np.array([side.index.find(name)[0] for name in listed], np.int64), sketches=False)
            for side in (run, other)
        ),
        strict=True,
    )
    return frozenset(
        name
        for name, one, whole in pairs
        if (one.shape if one.sharding is None else one.sharding.global_shape) == whole.shape
    )


def _calls(run: Run) -> dict[str, int]:
    """How often each module's value was recorded in the first step."""
    steps = run.index.steps()
    rows = run.index.asked()
    rows = rows[run.index.values("step", rows) == steps[0]] if len(steps) else rows
    found: dict[str, int] = defaultdict(int)
    for code in np.unique(run.index.values("site", rows)).tolist() if len(rows) else ():
        site = run.index.sites[code]
        if not site.role.startswith("param"):
            found[plain_name(site)] += 1
    return found


def _look(run: Run, other: Run, name: str, count: int, stages: Stages | None) -> frozenset[int] | None:
    """The steps whose first call is none of the batch; None where the calls do not make the other run's batch."""
    whole = other.record_at(int(other.index.find(name)[0]))
    lengths: dict[int, dict[int, int]] = defaultdict(dict)
    for call in range(count):
        rows = run.index.find(name if not call else f"{name}@{call}")
        for record in run.records_at(rows, sketches=False):
            if stages is not None and not stages.wants(record):
                continue
            if not record.shape or (record.shape[1:] != whole.shape[1:] and record.sharding is None):
                return None
            lengths[record.step][call] = record.shape[0] if record.sharding is None else record.sharding.global_shape[0]
    skipped = set()
    for step, by_call in lengths.items():
        if sum(by_call.values()) == whole.shape[0]:
            continue
        if sum(by_call.values()) - by_call.get(0, 0) != whole.shape[0]:
            return None
        skipped.add(step)
    return frozenset(skipped)
