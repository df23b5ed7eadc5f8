"""A run whose ranks recorded parts of distributed tensors, as the run of one process: to compare other layouts with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow.compute as pc

from layertap.messages import tr
from layertap.site import Record, Statistics
from layertap.store.assembly import NotWhole, ReplicasDiffer, Whole, assembled, whole_of
from layertap.store.dtype import Bytes
from layertap.store.memory import MemoryWriter
from layertap.store.plans import Moment
from layertap.store.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A tensor that several ranks hold, and not all of them alike."""

    site: str
    step: int
    ranks: tuple[tuple[int, ...], ...]
    """Ranks with equal bits; those of the first are the ones that were taken."""
    replicas: bool
    """Whether the layout says that they must be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A run read as one."""

    run: Run
    divergences: tuple[Divergence, ...]
    ranks: tuple[int, ...]


def layouts_of(run: Run) -> frozenset[tuple[int, tuple[str, ...], tuple[int, ...]]]:
    """Rank, placements and mesh of the distributed tensors in a run of several ranks; empty where there are none."""
    index = run.index
    if len(np.unique(index.values("rank", np.arange(len(index))))) < 2:
        return frozenset()
    found: set[tuple[int, tuple[str, ...], tuple[int, ...]]] = set()
    for table in run.tables(["rank", "placements", "mesh_shape"]):
        cut = table.filter(pc.greater(pc.list_value_length(table.column("placements")), 0))
        columns = (column.to_pylist() for column in cut.columns)
        found |= {(rank, tuple(placements), tuple(mesh)) for rank, placements, mesh in zip(*columns, strict=True)}
    return frozenset(found)


def merged(run: Run) -> Merged:
    """The run with one record for each tensor; NotWhole where parts are missing.

    Slices are put together and summands added when the bytes are asked for, one tensor at a time. Statistics are
    merged. What is no distributed tensor and is on several ranks is taken from the first of them; a Divergence says
    where the others hold something else.
    """
    writer = MemoryWriter(info={"source": str(run.path), **run.info, "ranks_merged": True}, name=run.name)
    divergences: list[Divergence] = []
    ranks: set[int] = set()
    for step in run.index.steps().tolist():
        groups: dict[tuple[str, Moment], list[Record]] = defaultdict(list)
        records = sorted(run.records(step=step), key=lambda record: (record.rank, record.order))
        for record in records:
            moment = Moment(step, record.epoch, record.batch, record.phase)
            groups[str(record.site), moment].append(record)
            ranks.add(record.rank)
        for order, held in enumerate(groups.values()):
            record, data = _one(run, held, divergences)
            writer.add(replace(record, rank=0, order=order, sharding=None, kept_fingerprint=None), data)
        writer.commit()
    writer.problems += run.problems
    writer.close()
    if run.receipt is not None:
        writer.info["receipt"] = run.info.get("receipt")
    whole = Run(writer)
    whole.source = run.source
    return Merged(run=whole, divergences=tuple(divergences), ranks=tuple(sorted(ranks)))


def _one(run: Run, held: list[Record], divergences: list[Divergence]) -> tuple[Record, Callable[[], Bytes] | None]:
    first = held[0]
    if len(held) == 1 and (first.sharding is None or first.sharding.is_whole(first.shape)):
        return first, _reader(run, first)
    if any(record.sharding is None for record in held) or len({record.rank for record in held}) < len(held):
        _compare(held, divergences)
        return first, _reader(run, first)
    try:
        whole = whole_of(held)
    except ReplicasDiffer as error:
        divergences.append(
            Divergence(site=str(first.site), step=first.step, ranks=_taken_first(error.groups, first), replicas=True)
        )
        if first.sharding is None or not first.sharding.is_whole(first.shape):
            raise NotWhole(str(error)) from None
        return first, _reader(run, first)
    return _whole(run, whole)


def _whole(run: Run, whole: Whole) -> tuple[Record, Callable[[], Bytes] | None]:
    kept = all(record.kept == "tensor" for part in whole.parts for record in part.records)
    statistics = whole.statistics
    if statistics is None and not kept:
        raise NotWhole(tr("assembly.not_kept", site=whole.record.site, step=whole.record.step))
    # Fingerprint and sketch of the whole are not those of its parts; a comparison reads the bytes anyway.
    record = replace(
        whole.record,
        shape=whole.shape,
        statistics=statistics or _unknown(math.prod(whole.shape)),
        fingerprint=0,
        sketch=b"",
        kept="tensor" if kept else "stats",
        kept_shape=whole.shape if kept else (),
        kept_dtype=whole.dtype if kept else "",
    )
    return record, partial(assembled, whole, run.kept_bytes) if kept else None


def _unknown(count: int) -> Statistics:
    """Of a sum that was not computed yet."""
    names = ("mean", "std", "min", "max", "abs_mean", "l2")
    return Statistics(count=count, nan=0, pos_inf=0, neg_inf=0, zero=0, first=(), **dict.fromkeys(names, math.nan))


def _reader(run: Run, record: Record) -> Callable[[], Bytes] | None:
    return None if record.kept == "stats" else partial(run.kept_bytes, record)


def _compare(held: Sequence[Record], divergences: list[Divergence]) -> None:
    """Plain tensors of several ranks: nothing says that they must be equal, but who compares one of them must know."""
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for record in held:
        groups[record.fingerprint, record.shape].append(record.rank)
    if len(groups) > 1:
        first = held[0]
        ranks = tuple(tuple(group) for group in groups.values())
        divergences.append(Divergence(site=str(first.site), step=first.step, ranks=ranks, replicas=False))


def _taken_first(groups: Sequence[Sequence[int]], first: Record) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted((tuple(group) for group in groups), key=lambda group: first.rank not in group))
