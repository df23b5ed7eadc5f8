"""A run whose ranks recorded parts of tensors, as the run of one process: to compare other layouts with.

    merged(run, reading)     one record for each tensor -> Merged
    Reading                  what is known beside the records: stated layouts, stages of a pipeline, microbatches

Records are read in blocks of at most `BLOCK`, without tensors and sketches, however many ranks there are. The bytes of
a tensor are put together when they are asked for; where there are more than `HELD` records of parts, they are read
again then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from layertap.errors import CorruptRun
from layertap.messages import tr
from layertap.site import Record, Sharding, Site, Statistics
from layertap.store.assembly import NotWhole, ReplicasDiffer, Whole, assembled, whole_of
from layertap.store.dtype import Bytes
from layertap.store.index import Rows
from layertap.store.memory import MemoryWriter
from layertap.store.run import Run
from layertap.store.stated import StatedLayouts

BLOCK = 1 << 16
"""Records of parts that are in memory at a time, but for those of one tensor."""
HELD = 1 << 16
"""Records of parts that are kept for the time when the bytes are asked for; more are read again then."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is known of a run of several ranks beside what its records say."""

    stated: StatedLayouts | None = None
    """How its plain tensors are cut."""
    stages: tuple[frozenset[int], ...] = ()
    """Of a pipeline, the ranks of each stage from the first to the last; empty where it is none."""
    microbatches: bool = False
    """Whether the calls of a module are parts of one batch."""

    def __bool__(self) -> bool:
        return bool((self.stated and self.stated.rules) or self.stages or self.microbatches)

    def wants(self, site: Site, rank: int) -> bool:
        """Whether a record counts: of the model itself, the first stage's input and the last one's output."""
        if not self.stages or site.path:
            return True
        return rank in self.stages[-1 if site.role in ("output", "grad_output") else 0]

    def group(self, site: Site) -> str:
        """Records of one name are parts of one tensor."""
        if self.microbatches and not site.role.startswith("param"):
            site = Site(path=site.path, role=site.role, leaf=site.leaf)
        return str(site)

    def parts(self, records: Sequence[Record]) -> list[Record]:
        """Records with the layouts that are known of them, in the order of calls and ranks."""
        found = [self._stated(record) for record in records]
        calls = sorted({record.site.call for record in found})
        if not self.microbatches or len(calls) < 2:
            return found
        sizes = {record.site.call: _length(record) for record in found}
        return [_microbatch(record, calls, sizes) for record in found]

    def _stated(self, record: Record) -> Record:
        if self.stated is None or record.sharding is not None:
            return record
        sharding = self.stated.sharding(record.site, record.shape, record.rank)
        return record if sharding is None else replace(record, sharding=sharding)


def _length(record: Record) -> int:
    """Of the first dimension of a microbatch, on all ranks; -1 where there is none."""
    shape = record.shape if record.sharding is None else record.sharding.global_shape
    return shape[0] if shape else -1


def _microbatch(record: Record, calls: Sequence[int], sizes: Mapping[int, int]) -> Record:
    """The calls of a module as one more axis of the mesh, which cuts the batch."""
    own = record.sharding or Sharding(placements=(), global_shape=record.shape, offset=(0,) * len(record.shape))
    whole = own.global_shape
    begin = own.offset or ((0,) * len(whole) if whole == record.shape else ())
    if not whole or not begin or (own.mesh_shape and not own.mesh_coordinate):
        raise NotWhole(tr("assembly.microbatch", site=record.site, step=record.step))
    number = calls.index(record.site.call)
    before = sum(sizes[call] for call in calls[:number])
    sharding = Sharding(
        placements=("Shard(dim=0)", *own.placements),
        global_shape=(sum(sizes.values()), *whole[1:]),
        offset=(before + begin[0], *begin[1:]),
        mesh_shape=(len(calls), *own.mesh_shape),
        mesh_coordinate=(number, *own.mesh_coordinate),
        mesh_origin=own.mesh_origin,
    )
    return replace(record, sharding=sharding)


def layouts_of(run: Run) -> frozenset[tuple[int, tuple[str, ...], tuple[int, ...]]]:
    """Rank, placements and mesh of the distributed tensors in a run of several ranks; empty where there are none."""
    if len(ranks_of(run)) < 2:
        return frozenset()
    found: set[tuple[int, tuple[str, ...], tuple[int, ...]]] = set()
    for table in run.tables(["rank", "placements", "mesh_shape"]):
        cut = table.filter(pc.greater(pc.list_value_length(table.column("placements")), 0))
        columns = (column.to_pylist() for column in cut.columns)
        found |= {(rank, tuple(placements), tuple(mesh)) for rank, placements, mesh in zip(*columns, strict=True)}
    return frozenset(found)


def ranks_of(run: Run) -> tuple[int, ...]:
    """The ranks that recorded something."""
    return tuple(np.unique(run.index.values("rank", np.arange(len(run.index)))).tolist())


@dataclass(slots=True)
class _Merging:
    """What is under way."""

    run: Run
    reading: Reading
    divergences: list[Divergence] = field(default_factory=list)
    held: int = 0


def merged(run: Run, reading: Reading | None = None) -> Merged:
    """The run with one record for each tensor; NotWhole where parts are missing.

    Slices are put together and summands added when the bytes are asked for, one tensor at a time. Statistics are
    merged. What is no distributed tensor and is on several ranks is taken from the first of them; a Divergence says
    where the others hold something else.
    """
    writer = MemoryWriter(info={"source": str(run.path), **run.info, "ranks_merged": True}, name=run.name)
    state = _Merging(run, reading or Reading())
    for step in run.index.steps().tolist():
        order = 0
        for groups in _blocks(state, step):
            for record, data in _read(state, groups):
                site = record.site
                if state.reading.microbatches:
                    site = Site.parse(state.reading.group(site))
                record = replace(record, site=site, rank=0, order=order, sharding=None, kept_fingerprint=None)
                writer.add(record, data)
                order += 1
        writer.commit()
    writer.problems += run.problems
    writer.close()
    if run.receipt is not None:
        writer.info["receipt"] = run.info.get("receipt")
    return Merged(run=Run(writer), divergences=tuple(state.divergences), ranks=ranks_of(run))


def _blocks(state: _Merging, step: int) -> Iterator[list[Rows]]:
    """The rows of each tensor of a step, in order of ranks and execution, as many tensors as make one block."""
    index = state.run.index
    rows = index.ordered
    rows = rows[index.values("step", rows) == step]
    columns = [index.values(name, rows).tolist() for name in ("site", "rank", "epoch", "batch", "phase")]
    names: dict[int, str] = {}
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, code, rank, *moment in zip(rows.tolist(), *columns, strict=True):
        if code not in names:
            names[code] = state.reading.group(index.sites[code])
        if state.reading.wants(index.sites[code], rank):
            groups[(names[code], *moment)].append(row)
    block: list[Rows] = []
    count = 0
    for held in groups.values():
        if block and count + len(held) > BLOCK:
            yield block
            block, count = [], 0
        block.append(np.array(held))
        count += len(held)
    if block:
        yield block


def _read(state: _Merging, groups: list[Rows]) -> Iterator[tuple[Record, Callable[[], Bytes] | None]]:
    """One record for each group, and what gives its bytes."""
    run, found = state.run, _records(state.run, np.concatenate(groups))
    made = []
    for rows in groups:
        if held := [found[row] for row in rows.tolist() if row in found]:
            state.held += len(held)
            made.append(_one(state, held, partial(list, held) if state.held <= HELD else partial(_again, run, rows)))
    # Sketches are most of what is on disk, and of a tensor in parts there is none: so they are read at the end.
    rows_of = {id(record): row for row, record in found.items()}
    alone = [rows_of[id(record)] for record, _ in made if id(record) in rows_of]
    whole = _records(run, np.array(alone, np.int64), sketches=True)
    for record, data in made:
        yield whole.get(rows_of.get(id(record), -1), record), data


def _records(run: Run, rows: Rows, *, sketches: bool = False) -> dict[int, Record]:
    """The records at these rows, by row; those that cannot be read are named in the run's problems."""
    while len(rows := run.index.left(rows)):
        with suppress(CorruptRun):  # which is reported, and leaves fewer rows
            return dict(zip(rows.tolist(), run.records_at(rows, sketches=sketches), strict=True))
    return {}


def _again(run: Run, rows: Rows) -> list[Record]:
    return run.records_at(run.index.left(rows), sketches=False)


def _one(
    state: _Merging, held: list[Record], again: Callable[[], list[Record]]
) -> tuple[Record, Callable[[], Bytes] | None]:
    first, run = held[0], state.run
    records = state.reading.parts(held)
    if len(held) == 1 and (records[0].sharding is None or records[0].sharding.is_whole(first.shape)):
        return first, _reader(run, first)
    places = {(record.rank, record.site.call) for record in records}
    if any(record.sharding is None for record in records) or len(places) < len(records):
        _compare(held, state.divergences)
        return first, _reader(run, first)
    try:
        whole = whole_of(records)
    except ReplicasDiffer as error:
        state.divergences.append(
            Divergence(site=str(first.site), step=first.step, ranks=_taken_first(error.groups, first), replicas=True)
        )
        if not records[0].sharding or not records[0].sharding.is_whole(first.shape):
            raise NotWhole(str(error)) from None
        return first, _reader(run, first)
    return _whole(state, whole, again)


def _whole(
    state: _Merging, whole: Whole, again: Callable[[], list[Record]]
) -> tuple[Record, Callable[[], Bytes] | None]:
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
    return record, partial(_bytes, state.run, state.reading, again) if kept else None


def _bytes(run: Run, reading: Reading, again: Callable[[], list[Record]]) -> Bytes:
    return assembled(whole_of(reading.parts(again())), run.kept_bytes)


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
