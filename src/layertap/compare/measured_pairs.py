"""Pairs measured by an engine, in their order: what was kept is read by whoever measures it, and numbers come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import NamedTuple

from layertap.compare.measuring import measure_pair
from layertap.compare.padding import Trim
from layertap.compare.result import Pair
from layertap.engine import Engine, Recipe
from layertap.errors import BadArgument
from layertap.formats import open_run
from layertap.judge.measured import Measured
from layertap.measure.pair import native
from layertap.messages import tr
from layertap.site import Record
from layertap.store import MemoryWriter, Run
from layertap.store.dtype import size_of
from layertap.store.merged import MergedRun, merged
from layertap.store.rank_reading import RankReading

TOGETHER = 64
"""Pairs that a task measures at most: a task costs about a millisecond."""
BYTES = 64 << 20
"""A task ends with the pair by which it has so many bytes to read."""

MarkedPair = tuple[Pair, bool]
"""A pair, and whether it is known to be bit-identical."""


class RunPair(NamedTuple):
    """Two runs, and how their pairs are measured."""

    reference: Run
    candidate: Run
    trims: tuple[Trim, ...] = ()
    limits: Mapping[str, float] = {}

    def measure(self, pair: Pair, same: bool) -> Measured:
        return measure_pair(self.reference, self.candidate, pair, self.trims, same=same, **self.limits)


def measured_pairs(engine: Engine, sides: RunPair, pairs: Iterable[MarkedPair]) -> Iterator[tuple[Pair, Measured]]:
    """Each pair with its measurement. Other processes get those of which something was kept; the rest is done here."""
    if not engine.remote:
        for pair, same in pairs:
            yield pair, sides.measure(pair, same)
        return
    ahead, behind = tee(_batches(pairs))
    sent = ([marked for marked in batch if _reads(sides, marked[0])] for batch in ahead)
    found = engine.map(
        _measure_all,
        (some for some in sent if some),
        here=sides,
        there=lambda: Recipe(prepare=_open, given=_given(sides)),
        called=_called,
    )
    for batch in behind:
        measured = iter(next(found)) if any(_reads(sides, pair) for pair, _ in batch) else iter(())
        for pair, same in batch:
            yield pair, next(measured) if _reads(sides, pair) else sides.measure(pair, same)


def _batches(pairs: Iterable[MarkedPair]) -> Iterator[list[MarkedPair]]:
    batch: list[MarkedPair] = []
    size = 0
    for marked in pairs:
        batch.append(marked)
        size += sum(_bytes(record) for record in _both(marked[0]))
        if len(batch) >= TOGETHER or size >= BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _both(pair: Pair) -> tuple[Record, Record]:
    return pair.reference, pair.candidate


def _bytes(record: Record) -> int:
    return 0 if record.kept == "stats" else size_of(record.kept_dtype, record.kept_shape) or 0


def _reads(sides: RunPair, pair: Pair) -> bool:
    """Whether something that was kept is read to measure a pair: both, or one whose bytes are checked."""
    both = all(record.kept != "stats" for record in _both(pair))
    return both or any(run.checks(record) for run, record in zip(sides[:2], _both(pair), strict=True))


def _called(batch: Sequence[MarkedPair]) -> str:
    first, last = (str(batch[place][0].reference.site) for place in (0, -1))
    return first if first == last else f"{first} … {last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunSource:
    """How another process opens a run."""

    name: str
    address: str
    """Its folder, file or URL; empty where it is in memory."""
    reading: RankReading | None
    """How its ranks are read as one; None where they are not."""
    verify: bool
    count: int

    @classmethod
    def of(cls, run: Run) -> _RunSource:
        reading = run.reading if isinstance(run, MergedRun) else None
        return cls(name=run.name, address=run.source, reading=reading, verify=run.verify, count=run.count)

    def open(self) -> Run:
        if not self.address:
            return Run(MemoryWriter(info={}, name=self.name))  # nothing was kept in it, so nothing is read of it
        run = open_run(self.address)
        run.verify = self.verify
        if self.reading is None:
            return run
        whole = merged(run, self.reading).run
        if whole.count != self.count:  # its tensors are numbered as they were met
            raise BadArgument(tr("engine.run_changed", name=self.name))
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunsGiven:
    reference: _RunSource
    candidate: _RunSource
    trims: tuple[Trim, ...]
    limits: dict[str, float]


def _given(sides: RunPair) -> _RunsGiven:
    runs = sides.reference, sides.candidate
    if all(map(_has_kept, runs)) and (gone := [run for run in runs if not run.source]):
        raise BadArgument(tr("engine.in_memory", name=gone[0].name))
    one, other = map(_RunSource.of, runs)
    return _RunsGiven(reference=one, candidate=other, trims=tuple(sides.trims), limits=dict(sides.limits))


def _has_kept(run: Run) -> bool:
    index = run.index
    return any(kept != "stats" for kept in index.values("kept", index.ordered).tolist())


def _open(given: _RunsGiven) -> RunPair:
    """In a worker: both runs, opened once. Each worker has one thread, since there are as many as processors."""
    native.use_threads(1)
    return RunPair(given.reference.open(), given.candidate.open(), given.trims, given.limits)


def _measure_all(sides: RunPair, batch: Sequence[MarkedPair]) -> list[Measured]:
    return [sides.measure(pair, same) for pair, same in batch]
