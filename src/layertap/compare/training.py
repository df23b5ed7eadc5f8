"""Two trainings, recorded step by step: where do they part?

Fingerprints show the first step and site where a bit differs; the floor tells from where on the difference is more than
rounding. Rounding grows over the steps of a training, so what exceeds the floor only later is called inconclusive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layertap.compare.measuring import measure_pair
from layertap.compare.result import Pair
from layertap.errors import CorruptRun
from layertap.judge.floor import modelled_floor
from layertap.judge.pair import judge
from layertap.judge.roundoff import roundoff_of
from layertap.messages import tr
from layertap.result import EXIT_CODES, Note, Result, Verdict
from layertap.site import Record, Site
from layertap.store import Run

Source = Run | str | os.PathLike[str]
Place = tuple[int, str, str]
"""Rank, phase, site: what a record is within its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """A place where two trainings differ."""

    step: int
    epoch: int | None
    batch: int | None
    rank: int
    phase: str
    site: Site
    kind: str
    error: float
    """The relative L2 error, estimated from sketches; NaN where nothing is known."""
    ratio: float
    """The error against what rounding explains in one pass."""
    why: str

    @property
    def is_input(self) -> bool:
        """Whether it is the batch that differs, before any layer saw it."""
        return not self.site.path and self.site.role == "input"


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingReport(Result):
    """Two trainings, one verdict."""

    reference: str
    candidate: str
    verdict: Verdict
    reasons: tuple[str, ...]
    first: Parting | None
    """The first place, by step and order of execution, where a bit differs."""
    above: Parting | None
    """The first place where the difference is more than rounding explains."""
    steps: int
    """Steps that both have."""
    records: int
    """Records of those steps that were compared."""
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def is_training(run: Run) -> bool:
    """Whether a run was made by watching a training."""
    meta = run.info.get("meta")
    return isinstance(meta, dict) and bool(meta.get("training"))


def diff_training(
    reference: Source, candidate: Source, *, progress: Callable[[int, int], None] | None = None
) -> TrainingReport:
    """Lays two trainings side by side, step by step; of a step that was recorded twice, the later time counts."""
    ours, theirs = (_StepRows(side if isinstance(side, Run) else Run(side)) for side in (reference, candidate))
    shared = sorted(set(ours.rows) & set(theirs.rows))
    notes = [
        *_alone(ours, theirs, shared),
        *(Note("compare.of_run", name=run.name, text=text) for run in (ours.run, theirs.run) for text in run.problems),
    ]
    roundoff = roundoff_of(ours.run, theirs.run, computing=(ours.run, theirs.run))
    first: Parting | None = None
    above: Parting | None = None
    compared = 0
    missing: dict[str, str] = {}
    for done, step in enumerate(shared, start=1):
        mine, other = ours.at(step), theirs.at(step)
        compared += len(mine.keys() & other.keys())
        for place in mine.keys() ^ other.keys():
            missing.setdefault(place[2], ours.run.name if place in mine else theirs.run.name)
        if above is None:
            for parting, verdict in _partings(ours, theirs, mine, other, roundoff):
                first = first or parting
                if verdict == "fault" or parting.is_input:
                    above = parting
                    break
        if progress is not None:
            progress(done, len(shared))
    notes += [Note("training_diff.only_in", name=name, site=site) for site, name in sorted(missing.items())[:6]]
    alone = len(set(ours.rows) ^ set(theirs.rows))
    unknown = first is not None and not _data_is_known(ours, theirs, first)
    verdict, reasons = _whole(first, above, len(shared), compared, len(missing), alone, unknown)
    return TrainingReport(
        reference=ours.run.name,
        candidate=theirs.run.name,
        verdict=verdict,
        reasons=reasons,
        first=first,
        above=above,
        steps=len(shared),
        records=compared,
        notes=tuple(notes),
    )


def _partings(
    ours: _StepRows, theirs: _StepRows, mine: dict[Place, int], other: dict[Place, int], roundoff: float
) -> Iterator[tuple[Parting, Verdict]]:
    for place, row in mine.items():
        there = other.get(place)
        if there is None or ours.marks[row] == theirs.marks[there]:
            continue
        a, b = ours.run.record_at(row), theirs.run.record_at(there)
        if (a.fingerprint, a.dtype, a.shape) == (b.fingerprint, b.dtype, b.shape):
            continue
        yield _parting(ours.run, theirs.run, a, b, roundoff)


def _parting(reference: Run, candidate: Run, a: Record, b: Record, roundoff: float) -> tuple[Parting, Verdict]:
    pair = Pair(reference=a, candidate=b, rung="exact")
    measured = measure_pair(reference, candidate, pair)
    judged = judge(pair.reference, pair.candidate, measured, modelled_floor(pair.reference, roundoff))
    found = Parting(
        step=a.step,
        epoch=a.epoch,
        batch=a.batch,
        rank=a.rank,
        phase=a.phase,
        site=a.site,
        kind=a.kind,
        error=measured.error,
        ratio=judged.ratio,
        why=judged.why,
    )
    return found, judged.verdict


def _whole(
    first: Parting | None,
    above: Parting | None,
    steps: int,
    records: int,
    missing: int,
    alone: int,
    unknown: bool,
) -> tuple[Verdict, tuple[str, ...]]:
    if not records:
        return "inconclusive", (Note("training_diff.nothing_common"),)
    if first is None:
        if missing:
            return "inconclusive", (Note("training_diff.sites_alone", count=missing),)
        if alone:
            return "inconclusive", (Note("training_diff.steps_alone", steps=steps, count=alone),)
        return "identical", (Note("training_diff.identical", records=records, steps=steps),)
    if first.is_input:
        return "inconclusive", (Note("training_diff.other_data", step=first.step),)
    if unknown and above is not None:
        return "inconclusive", (Note("training_diff.data_unknown", step=first.step),)
    if above is None:
        return "noise", (Note("training_diff.rounding", step=first.step),)
    if above.step == first.step:
        return "fault", (Note("training_diff.fault", step=first.step),)
    return "inconclusive", (Note("training_diff.grown", first=first.step, above=above.step),)


def _data_is_known(ours: _StepRows, theirs: _StepRows, first: Parting) -> bool:
    """Whether something before the first difference says that both sides had the same data in that step."""
    mine, other = ours.at(first.step), theirs.at(first.step)
    for (rank, phase, site), row in mine.items():
        if (rank, phase, site) not in other or rank != first.rank:
            continue
        if Site.parse(site).role not in ("input", "output"):
            continue  # weights are the same whatever the data
        return ours.marks[row] == theirs.marks[other[rank, phase, site]] or first.is_input
    return False


def _alone(ours: _StepRows, theirs: _StepRows, shared: list[int]) -> list[str]:
    notes: list[str] = []
    for side in (ours, theirs):
        extra = sorted(set(side.rows) - set(shared))
        if extra:
            notes.append(
                Note(
                    "training_diff.steps_only_in",
                    count=len(extra),
                    extra=extra[0],
                    extra2=extra[-1],
                    name=side.run.name,
                )
            )
    return notes


class _StepRows:
    """The rows of a run by step, with their fingerprints; no record is read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: dict[int, npt.NDArray[np.int64]] = {}
        self.marks: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        if not run.count:
            return
        table = run.table(["fingerprint"])
        self.marks = np.array(table.column("fingerprint").combine_chunks().to_pylist(), np.uint64)
        index = run.index
        if len(index.values("step", np.arange(len(self.marks)))) != len(self.marks):
            raise CorruptRun(
                tr(
                    "compare.of_run",
                    name=run.name,
                    text=run.problems[-1] if run.problems else tr("training_diff.shards_disagree"),
                )
            )
        every = np.arange(len(self.marks))
        steps = index.values("step", every)
        order = np.argsort(steps, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(steps[order])) + 1):
            self.rows[int(steps[rows[0]])] = rows

    def at(self, step: int) -> dict[Place, int]:
        """The rows of one step, in order of execution; of a site that comes twice, the row of the later session."""
        index, rows = self.run.index, self.rows[step]
        columns = [index.values(name, rows) for name in ("rank", "phase", "site", "order")]
        latest: dict[Place, tuple[int, int]] = {}
        for row, rank, phase, code, order in zip(rows, *columns, strict=True):
            latest[int(rank), str(phase), str(index.sites[code])] = (int(order), int(row))
        return {place: row for place, (_, row) in sorted(latest.items(), key=lambda item: (item[0][0], item[1]))}
