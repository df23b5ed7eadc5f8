"""A run whose ranks recorded parts of tensors, as the run of one process: to compare other layouts with.

    merged(run, reading)     one record for each tensor -> Merged; rank_reading: what is known beside the records

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
from layertap.measure.result import merge_sketches
from layertap.messages import tr
from layertap.site import Record, Statistics
from layertap.store.assembly import NotWhole, ReplicasDiffer, Whole, assembled, whole_of
from layertap.store.dtype import Bytes
from layertap.store.index import Rows
from layertap.store.kept import checksum
from layertap.store.memory import MemoryWriter
from layertap.store.rank_reading import RankReading
from layertap.store.run import Run
from layertap.store.schema import SKETCHES

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
        self, writer: MemoryWriter, parts: Mapping[Any, Callable[[], list[Record]]], reading: RankReading, source: Run
    ) -> None:
        super().__init__(writer)
        self._parts = parts
        self.source, self.verify = source.source, source.verify
        self.reading = reading
        """How its source was read."""

    def checks(self, record: Record) -> bool:
        """The bytes that its source keeps are checked as its source's are."""
        return self.verify and checksum(record) is not None

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
    source = {} if run.path is None else {"source": str(run.path)}
    writer = MemoryWriter(info={**source, **run.info, "ranks_merged": True}, name=run.name)
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
    return Merged(
        run=MergedRun(writer, state.parts, state.reading, run),
        divergences=tuple(state.divergences),
        ranks=ranks_of(run),
    )


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
    wholes: dict[int, tuple[str, list[int]]] = {}
    for rows in groups:
        held = {row: found[row] for row in rows.tolist() if row in found}
        if parts := state.reading.parts([*held.values()]):
            state.held += len(held)
            again = partial(list, parts) if state.held <= HELD else partial(_again, run, rows, state.reading)
            record, data, whole = _one(state, parts, again)
            places = {(one.site, one.rank, one.order): row for row, one in held.items()}
            if whole is not None and data is None:
                named = replace(record, site=state.reading.group(record.site))
                state.parts[_moment(named)] = partial(_again, run, rows, state.reading, sketches=True)
                if whole.fingerprint is not None:
                    taken = [part.records[0] for part in whole.parts]
                    column = "sketch" if taken[0].fingerprint_in_whole is None else "sketch_in_whole"
                    wholes[len(made)] = column, [places[one.site, one.rank, one.order] for one in taken]
            made.append((record, data, -1 if whole is not None else places[record.site, record.rank, record.order]))
    # Sketches are most of what is on disk, so they are read at the end, of what is taken.
    alone = _records(run, np.array([row for _, _, row in made if row >= 0], np.int64), sketches=True)
    sketches = dict(zip(wholes, _sketches(run, [*wholes.values()]), strict=True))
    for number, (record, data, row) in enumerate(made):
        yield (replace(record, sketch=sketches[number]) if number in sketches else alone.get(row, record)), data


def _sketches(run: Run, wholes: Sequence[tuple[str, Sequence[int]]]) -> list[bytes]:
    """The sketch of each whole: the column in which its parts have theirs, and their rows; empty where one has none."""
    columns = {}
    for name in SKETCHES:
        rows = np.array([row for column, some in wholes if column == name for row in some], np.int64)
        columns[name] = iter(run.columns_at(rows, (name,)).column(0))
    found = []
    for name, some in wholes:
        parts = [next(columns[name]).as_py() for _ in some]
        found.append(merge_sketches(parts) if all(parts) else b"")
    return found


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
) -> tuple[Record, Callable[[], Bytes] | None, Whole | None]:
    """A record of all these, what gives its bytes, and the whole that it is of; None where it is the first of them."""
    first, run = records[0], state.run
    if len(records) == 1 and (first.sharding is None or first.sharding.is_whole(first.shape)):
        return first, _reader(run, first), None
    places = {(record.rank, record.site.call) for record in records}
    if any(record.sharding is None for record in records) or len(places) < len(records):
        _compare(records, state.divergences)
        return first, _reader(run, first), None
    try:
        whole = whole_of(records)
    except ReplicasDiffer as error:
        state.divergences.append(
            Divergence(site=str(first.site), step=first.step, ranks=_taken_first(error.groups, first), replicas=True)
        )
        if first.sharding is None or not first.sharding.is_whole(first.shape):
            raise NotWhole(str(error)) from None
        return first, _reader(run, first), None
    return *_whole(state, whole, again), whole


def _whole(
    state: _Merging, whole: Whole, again: Callable[[], list[Record]]
) -> tuple[Record, Callable[[], Bytes] | None]:
    kept = all(record.kept == "tensor" for part in whole.parts for record in part.records)
    statistics = whole.statistics
    if statistics is None and not kept:
        raise NotWhole(tr("assembly.not_kept", site=whole.record.site, step=whole.record.step))
    # The sketch is read later, and only where no bytes were kept: a comparison reads those.
    record = replace(
        whole.record,
        shape=whole.shape,
        statistics=statistics or _unknown(math.prod(whole.shape)),
        fingerprint=whole.fingerprint or 0,
        sketch=b"",
        fingerprint_in_whole=None,
        sketch_in_whole=None,
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
