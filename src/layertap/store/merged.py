"""A run whose ranks recorded parts of tensors, as the run of one process: to compare other layouts with.

    merged(run, reading)     one record for each tensor -> Merged
    RankReading                  what is known beside the records: stated layouts, stages of a pipeline, microbatches

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


class MergedRun(Run):
    """A run read as one, which knows of what its records were made."""

    def __init__(
        self, writer: MemoryWriter, parts: Mapping[Any, Callable[[], list[Record]]], reading: RankReading
    ) -> None:
        super().__init__(writer)
        self._parts = parts
        self.reading = reading
        """How its source was read."""

    def parts_of(self, record: Record) -> list[Record]:
        """The parts of which a record of statistics was merged, with their sketches; empty for others."""
        found = self._parts.get(_moment(record))
        return [] if found is None else found()


def _moment(record: Record) -> Any:
    return str(record.site), record.step, record.epoch, record.batch, record.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A run read as one."""

    run: MergedRun
    divergences: tuple[Divergence, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a pipeline."""

    ranks: tuple[frozenset[int], ...]
    """Of each stage, from the first to the last."""
    shared: Mapping[str, tuple[frozenset[int], frozenset[int]]]
    """Modules that are on several stages because they contain others, as the model itself: the ranks of the first
    stage that has them, and of the last."""
    stand_ins: frozenset[str]
    """Modules in whose place another rank has one that returns what it is given."""

    def wants(self, record: Record) -> bool:
        """Whether a record counts: of what is on several stages the first one's input and the last one's output."""
        site = record.site
        if site.path in self.stand_ins and record.kind == "Identity":
            return False
        if site.path not in self.shared or site.role.startswith("param"):
            return True
        return record.rank in self.shared[site.path][site.role in ("output", "grad_output")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatches:
    """Calls of each module that are parts of one batch."""

    count: int
    """How many parts there are."""
    calls: Mapping[str, int]
    """How often a module is called in one of them, by the name of its value; once if it is not here."""
    skipped: frozenset[int]
    """The steps in which the first call is none of them."""
    constant: frozenset[str]
    """Names of values that have no batch, such as positions: the same in all calls."""

    def number(self, site: Site, step: int) -> int:
        """Of which microbatch a call is; -1 if of none."""
        return site.call // self.calls.get(plain_name(site), 1) - (step in self.skipped)

    def whole(self, site: Site) -> Site:
        """The name of a value of the whole batch."""
        return replace(site, call=site.call % self.calls.get(plain_name(site), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """What is known of a run of several ranks beside what its records say."""

    stated: StatedLayouts | None = None
    """How its plain tensors are cut."""
    stages: Stages | None = None
    batches: Microbatches | None = None

    def __bool__(self) -> bool:
        return bool((self.stated and self.stated.rules) or self.stages or self.batches)

    def group(self, site: Site) -> Site:
        """Records of one name are parts of one tensor."""
        return site if self.batches is None or site.role.startswith("param") else self.batches.whole(site)

    def parts(self, records: Sequence[Record]) -> list[Record]:
        """Those that count, with the layouts that are known of them."""
        found = [self._stated(record) for record in records if self.stages is None or self.stages.wants(record)]
        batches = self.batches
        if batches is None or (found and found[0].site.role.startswith("param")):
            return found
        numbers = [batches.number(record.site, record.step) for record in found]
        sizes = {number: _length(record) for number, record in zip(numbers, found, strict=True) if number >= 0}
        if len(sizes) < 2:
            return [record for number, record in zip(numbers, found, strict=True) if number >= 0]
        constant = plain_name(found[0].site) in batches.constant
        return [
            _microbatch(record, number, sizes, constant)
            for number, record in zip(numbers, found, strict=True)
            if number >= 0
        ]

    def _stated(self, record: Record) -> Record:
        if self.stated is None or self.stated.of(record.site) is None or record.sharding is not None:
            return record
        sharding = self.stated.sharding(record.site, record.shape, record.rank)
        return record if sharding is None else replace(record, sharding=sharding)


def _length(record: Record) -> int:
    """Of the first dimension of a microbatch, on all ranks; -1 where there is none."""
    shape = record.shape if record.sharding is None else record.sharding.global_shape
    return shape[0] if shape else -1


def _microbatch(record: Record, number: int, sizes: Mapping[int, int], constant: bool) -> Record:
    """The calls of a module as one more axis of the mesh, which cuts the batch."""
    own = record.sharding or Sharding(placements=(), global_shape=record.shape, offset=(0,) * len(record.shape))
    whole = own.global_shape
    begin = own.offset or ((0,) * len(whole) if whole == record.shape else ())
    if len(whole) != len(begin) or not (whole or constant) or (own.mesh_shape and not own.mesh_coordinate):
        raise NotWhole(tr("assembly.microbatch", site=record.site, step=record.step))
    if not constant:
        begin = sum(size for other, size in sizes.items() if other < number) + begin[0], *begin[1:]
        whole = sum(sizes.values()), *whole[1:]
    sharding = Sharding(
        placements=("Replicate()" if constant else "Shard(dim=0)", *own.placements),
        global_shape=whole,
        offset=begin,
        mesh_shape=(len(sizes), *own.mesh_shape),
        mesh_coordinate=(sorted(sizes).index(number), *own.mesh_coordinate),
        mesh_origin=own.mesh_origin,
    )
    return replace(record, sharding=sharding)


def plain_name(site: Site) -> str:
    """A site without the number of the call."""
    return str(replace(site, call=0))


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
    reading: RankReading
    divergences: list[Divergence] = field(default_factory=list)
    held: int = 0
    parts: dict[Any, Callable[[], list[Record]]] = field(default_factory=dict)
    """By site and moment, what reads the parts of a record of which statistics alone were kept."""


def merged(run: Run, reading: RankReading | None = None) -> Merged:
    """The run with one record for each tensor; NotWhole where parts are missing.

    Slices are put together and summands added when the bytes are asked for, one tensor at a time. Statistics are
    merged. What is no distributed tensor and is on several ranks is taken from the first of them; a Divergence says
    where the others hold something else.
    """
    writer = MemoryWriter(info={"source": str(run.path), **run.info, "ranks_merged": True}, name=run.name)
    state = _Merging(run, reading or RankReading())
    for step in run.index.steps().tolist():
        order = 0
        for groups in _blocks(state, step):
            for record, data in _read(state, groups):
                site = state.reading.group(record.site)
                record = replace(record, site=site, rank=0, order=order, sharding=None, kept_fingerprint=None)
                writer.add(record, data)
                order += 1
        writer.commit()
    writer.problems += run.problems
    writer.close()
    if run.receipt is not None:
        writer.info["receipt"] = run.info.get("receipt")
    whole = MergedRun(writer, state.parts, state.reading)
    whole.source = run.source
    return Merged(run=whole, divergences=tuple(state.divergences), ranks=ranks_of(run))


def _blocks(state: _Merging, step: int) -> Iterator[list[Rows]]:
    """The rows of each tensor of a step, in order of ranks and execution, as many tensors as make one block."""
    index = state.run.index
    rows = index.ordered
    rows = rows[index.values("step", rows) == step]
    columns = [index.values(name, rows).tolist() for name in ("site", "epoch", "batch", "phase")]
    names: dict[int, str] = {}
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row, code, *moment in zip(rows.tolist(), *columns, strict=True):
        if code not in names:
            names[code] = str(state.reading.group(index.sites[code]))
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
    made: list[tuple[Record, Callable[[], Bytes] | None, int]] = []
    for rows in groups:
        held = {row: found[row] for row in rows.tolist() if row in found}
        if parts := state.reading.parts([*held.values()]):
            state.held += len(held)
            again = partial(list, parts) if state.held <= HELD else partial(_again, run, rows, state.reading)
            record, data, whole = _one(state, parts, again)
            places = {(one.site, one.rank, one.order): row for row, one in held.items()}
            if whole and data is None:
                named = replace(record, site=state.reading.group(record.site))
                state.parts[_moment(named)] = partial(_again, run, rows, state.reading, sketches=True)
            made.append((record, data, -1 if whole else places[record.site, record.rank, record.order]))
    # Sketches are most of what is on disk, and a tensor in parts has none: so they are read at the end.
    alone = _records(run, np.array([row for _, _, row in made if row >= 0], np.int64), sketches=True)
    for record, data, row in made:
        yield alone.get(row, record), data


def _records(run: Run, rows: Rows, *, sketches: bool = False) -> dict[int, Record]:
    """The records at these rows, by row; those that cannot be read are named in the run's problems."""
    while len(rows := run.index.left(rows)):
        with suppress(CorruptRun):  # which is reported, and leaves fewer rows
            return dict(zip(rows.tolist(), run.records_at(rows, sketches=sketches), strict=True))
    return {}


def _again(run: Run, rows: Rows, reading: RankReading, *, sketches: bool = False) -> list[Record]:
    return reading.parts(run.records_at(run.index.left(rows), sketches=sketches))


def _one(
    state: _Merging, records: list[Record], again: Callable[[], list[Record]]
) -> tuple[Record, Callable[[], Bytes] | None, bool]:
    """A record of all these, what gives its bytes, and whether it is more than the first of them."""
    first, run = records[0], state.run
    if len(records) == 1 and (first.sharding is None or first.sharding.is_whole(first.shape)):
        return first, _reader(run, first), False
    places = {(record.rank, record.site.call) for record in records}
    if any(record.sharding is None for record in records) or len(places) < len(records):
        _compare(records, state.divergences)
        return first, _reader(run, first), False
    try:
        whole = whole_of(records)
    except ReplicasDiffer as error:
        state.divergences.append(
            Divergence(site=str(first.site), step=first.step, ranks=_taken_first(error.groups, first), replicas=True)
        )
        if first.sharding is None or not first.sharding.is_whole(first.shape):
            raise NotWhole(str(error)) from None
        return first, _reader(run, first), False
    return *_whole(state, whole, again), True


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
    return record, partial(_bytes, state.run, again) if kept else None


def _bytes(run: Run, again: Callable[[], list[Record]]) -> Bytes:
    return assembled(whole_of(again()), run.kept_bytes)


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
