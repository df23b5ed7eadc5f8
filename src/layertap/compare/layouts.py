"""Runs of other layouts: four ranks against one, two against eight. Each is read as one process would have left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layertap.compare.columns import RowColumns, column
from layertap.compare.result import Row
from layertap.compare.stages import RankReadings, readings_of
from layertap.compare.tensors import array_of, changed, elements
from layertap.errors import RunError
from layertap.measure.pair import compare
from layertap.result import Note
from layertap.site import Record, Site
from layertap.store import Run
from layertap.store.assembly import NotWhole, Whole, whole_of
from layertap.store.merged import Divergence, Merged, layouts_of, merged, ranks_of
from layertap.store.rank_reading import RankReading
from layertap.store.stated import StatedLayouts

LEADS = 1.5
"""How far the error of a rank's part is above the average of all ranks where that rank stands out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOne:
    """Two runs, and what reading them as one showed."""

    runs: tuple[Run, Run]
    divergences: tuple[tuple[Divergence, ...], tuple[Divergence, ...]] = ((), ())
    notes: tuple[Note, ...] = ()
    readings: RankReadings = (RankReading(), RankReading())
    """What was known of each side beside its records."""


def read_as_one(reference: Run, candidate: Run, stated: StatedLayouts | None = None) -> AsOne:
    """Merges the ranks of a run whose tensors lie otherwise than the other run's; else both stay as they are."""
    runs = reference, candidate
    layouts = [layouts_of(run) for run in runs]
    readings = readings_of(reference, candidate, stated)
    if layouts[0] == layouts[1] and not any(readings):
        return AsOne(runs=runs)
    found: list[Merged | None] = []
    notes: list[Note] = []
    try:
        for side, run, layout, reading in zip(("reference", "candidate"), runs, layouts, readings, strict=True):
            found.append(merged(run, reading) if layout or reading else None)
            notes += _told(Note(f"layouts.{side}"), run, reading) if layout or reading else ()
    except NotWhole as error:
        if any(reading.stated for reading in readings):
            raise  # a part that is compared as if it were a whole would be no finding
        return AsOne(runs=runs, notes=(Note("layouts.not_whole", why=str(error)),))
    notes += stated.unused() if stated is not None else ()
    one, other = (run if made is None else made.run for run, made in zip(runs, found, strict=True))
    ours, theirs = (() if made is None else made.divergences for made in found)
    return AsOne(runs=(one, other), divergences=(ours, theirs), notes=tuple(notes), readings=readings)


def _told(side: Note, run: Run, reading: RankReading) -> list[Note]:
    """In words, how a run was read."""
    found, ranks = [], len(ranks_of(run))
    if reading.stages:
        found.append(Note("layouts.stages", side=side, ranks=ranks, stages=len(reading.stages.ranks)))
    elif ranks > 1:
        found.append(Note("layouts.merged", side=side, ranks=ranks))
    if reading.batches is not None:
        found.append(Note("layouts.microbatches", side=side, count=reading.batches.count))
        if reading.batches.skipped:
            found.append(Note("layouts.first_call", side=side, steps=len(reading.batches.skipped)))
    return found


def merge_ranks(run: Run, like: Run, one: AsOne) -> Run:
    """A further run of the reference, read as one where the reference was."""
    reading = one.readings[0]
    return merged(run, reading).run if like.info.get("ranks_merged") and (reading or layouts_of(run)) else run


def judge_replicas(rows: RowColumns, one: AsOne) -> None:
    """A row whose replicas differ is at fault, whatever the one that was compared holds."""
    wrong = {
        ((name, divergence.site), divergence.step): divergence
        for name, side in zip(("site", "candidate_site"), one.divergences, strict=True)
        for divergence in side
        if divergence.replicas
    }
    if not wrong:
        return
    for name in ("site", "candidate_site"):
        keys = zip(column(rows, name), column(rows, "step"), strict=True)
        for place, (site, step) in enumerate(keys):
            if (found := wrong.get(((name, str(site)), step))) is not None:
                rows.judge(place, "fault", Note("layouts.replicas", ranks=spans(found.ranks)))


def ranks_at_fault(opened: tuple[Run, Run], one: AsOne, row: Row | None) -> tuple[Note, ...]:
    """Whose parts of a tensor carry the error, where the ranks of one side were read as one."""
    notes = []
    for side in (0, 1):
        if row is None or row.difference is None or one.runs[side] is opened[side]:
            continue
        try:
            records = _parts(opened[side], (row.site, row.candidate_site)[side], row.step, one.readings[side])
            other = one.runs[1 - side][(row.site, row.candidate_site)[1 - side]].at(step=row.step).record
            whole = whole_of(records) if len(records) > 1 and all(record.sharding for record in records) else None
        except RunError:
            continue  # counted differently on the two sides
        if whole is not None and not whole.reduction and len(whole.parts) > 1 and other.kept_shape == whole.shape:
            errors = _errors(opened[side], whole, one.runs[1 - side], other)
            if ranks := [rank for rank, error in errors.items() if error > LEADS * sum(errors.values()) / len(errors)]:
                notes.append(Note("layouts.ranks_at_fault", site=row.site, step=row.step, ranks=spans([ranks])))
    return tuple(notes)


def _parts(run: Run, site: Site, step: int, reading: RankReading) -> list[Record]:
    """What all ranks recorded of a tensor in one step, with the layouts that are known of it."""
    if not reading:
        return run[site].at(step=step).listed()
    names = [known for known in run.index.sites if reading.group(known) == site]
    return reading.parts([record for known in names for record in run[known].at(step=step).listed()])


def _errors(run: Run, whole: Whole, against: Run, other: Record) -> dict[int, float]:
    """The squared error of the part of each rank."""
    reference = array_of(against, other)
    cells = elements(reference)
    found: dict[int, float] = {}
    for part in whole.parts:
        record = part.records[0]
        difference = compare(changed(reference, part.cut(cells)), array_of(run, record))
        error = difference.mse * difference.finite if difference.finite else 0.0
        found[record.rank] = found.get(record.rank, 0.0) + error
    return found


def doubts(one: AsOne) -> tuple[str, ...]:
    """What is on several ranks, need not be equal there, and is not: only the first rank's was compared."""
    found = [divergence for side in one.divergences for divergence in side if not divergence.replicas]
    return tuple(
        Note("layouts.ranks_differ", site=divergence.site, step=divergence.step, ranks=spans(divergence.ranks))
        for divergence in found[:4]
    )


def spans(groups: Sequence[Sequence[int]]) -> str:
    """Groups of ranks in words."""
    return " | ".join(", ".join(map(str, group)) for group in groups)
