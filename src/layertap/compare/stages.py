"""What a run of several ranks is, seen beside the other run: stages of a pipeline, and calls that are microbatches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from layertap.errors import BadArgument
from layertap.messages import tr
from layertap.site import Site
from layertap.store import Run
from layertap.store.index import Rows
from layertap.store.merged import Reading, ranks_of
from layertap.store.stated import StatedLayouts

Readings = tuple[Reading, Reading]


def readings_of(reference: Run, candidate: Run, stated: StatedLayouts | None) -> Readings:
    """How each of two runs is to be read beside the other."""
    runs = reference, candidate
    found = []
    for run, other in (runs, runs[::-1]):
        stages = _stages(run, other)
        found.append(Reading(stages=stages, microbatches=_microbatches(run, other)))
    if stated is None or not stated.rules:
        return found[0], found[1]
    ranks = [ranks_of(run) for run in runs]
    cut = [side for side in (0, 1) if set(ranks[side]) == set(stated.mesh.ranks)]
    if not cut:
        counts = dict(reference=len(ranks[0]), candidate=len(ranks[1]))
        raise BadArgument(tr("dims.mesh_ranks", mesh=stated.mesh, count=len(stated.mesh.ranks), **counts))
    for side in cut:
        found[side] = replace(found[side], stated=stated)
    return found[0], found[1]


def _stages(run: Run, other: Run) -> tuple[frozenset[int], ...]:
    """The ranks of each stage, in order, where ranks recorded other modules than their peers; empty elsewhere."""
    if len(ranks_of(run)) < 2 or set(ranks_of(run)) == set(ranks_of(other)):
        return ()
    index = run.index
    rows = index.asked()
    pairs = np.unique(np.stack([index.values("rank", rows), index.values("site", rows)]), axis=1)
    names: dict[int, set[str]] = defaultdict(set)
    for rank, code in pairs.T.tolist():
        site = index.sites[code]
        names[rank] |= {_name(site)} if site.path else set()
    stages: dict[frozenset[str], set[int]] = defaultdict(set)
    for rank, own in names.items():
        stages[frozenset(own)].add(rank)
    if len(stages) < 2 or any(one & two for one in stages for two in stages if one is not two) or frozenset() in stages:
        return ()
    order = {_name(site): number for number, site in enumerate(other.sites)}
    last = len(order)

    def first(stage: tuple[frozenset[str], set[int]]) -> tuple[int, int]:
        return min(order.get(name, last) for name in stage[0]), min(stage[1])

    return tuple(frozenset(ranks) for _, ranks in sorted(stages.items(), key=first))


def _microbatches(run: Run, other: Run) -> bool:
    """Whether each module was called equally often, where the other run calls it once on the whole batch."""
    here, there = _calls(run), _calls(other)
    if len(set(here.values())) != 1 or set(there.values()) != {1} or next(iter(here.values())) < 2:
        return False
    shared = [name for name in here if name in there]
    return bool(shared) and all(_batch(run, name) == _batch(other, name) for name in shared[:1] + shared[-1:])


def _calls(run: Run) -> dict[str, int]:
    """How often each module's value was recorded in one step."""
    found: dict[str, int] = defaultdict(int)
    for site in run.sites:
        if not site.role.startswith("param"):
            found[_name(site)] += 1
    return found


def _batch(run: Run, name: str) -> tuple[int, ...]:
    """The shape of a value with all calls of the first step along its first dimension, on one rank."""
    sites = [site for site in run.sites if _name(site) == name]
    shapes = [run.records_at(_first(run, site), sketches=False)[0].shape for site in sites]
    if not all(shapes) or any(shape[1:] != shapes[0][1:] for shape in shapes):
        return ()
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _first(run: Run, site: Site) -> Rows:
    return run.index.find(site)[:1]


def _name(site: Site) -> str:
    return str(Site(path=site.path, role=site.role, leaf=site.leaf))
