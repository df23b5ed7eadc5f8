"""Two runs, one verdict: prove that they can be compared, align, measure, judge.

diff         the whole of it, below: read this first
comparable   whether the two can be compared at all: real captures, and
same_inputs  the same inputs, or the same but for padding
staleness    captures that cannot be of a model at work
claims       runs that are not what they are called; a placebo
align        which tensor of one run is which of the other
layouts      ranks that hold parts, read as one process would have left them
stages       stages of a pipeline, and calls that are microbatches
chosen       only the sites that were asked for
padding      padding, as ids or masks prove it
overlap      tensors of different lengths, and what part of them is the same
estimates    pairs without tensors, measured by columns
measuring    one pass over each pair
measured_pairs  all of them, in this process or by the workers of an engine
floors       what rounding explains, measured by further runs (modelled: judge)
part_sketches  statistics of parts against a tensor
sharded      records of a part of a tensor, and what both sides hold of it
rows         a row for each pair, in order of execution
columns      the same rows, held by columns
precision    float32 outside, bfloat16 within
result       Pair, Row, Report
training     diff_training: two trainings, and the first step and site where they part
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layertap.compare.align import align
from layertap.compare.chosen import chosen
from layertap.compare.columns import RowColumns, column
from layertap.compare.comparable import Comparability, comparable
from layertap.compare.estimates import blocks_of
from layertap.compare.floors import measured_floors
from layertap.compare.layouts import AsOne, doubts, judge_replicas, merge_ranks, ranks_at_fault, read_as_one
from layertap.compare.measured_pairs import MarkedPair, RunPair, measured_pairs
from layertap.compare.measuring import PartialPairs
from layertap.compare.precision import by_the_runtime, silent_precision, stated_precision
from layertap.compare.result import Alignment, Pair, Report, Row
from layertap.compare.rows import Judging, rows_of
from layertap.compare.training import TrainingReport, diff_training
from layertap.engine import Engine, EngineChoice, open_engine
from layertap.errors import BadArgument, CorruptRun
from layertap.formats import open_run
from layertap.judge.measured import Measured
from layertap.judge.pair import Tolerance
from layertap.judge.roundoff import roundoff_of
from layertap.messages import tr
from layertap.result import Note, Verdict, joined
from layertap.store import Run
from layertap.store.stated import stated_layouts

__all__ = ["Alignment", "Pair", "Report", "Row", "TrainingReport", "Verdict", "diff", "diff_training"]

Source = Run | str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any]
"""A run, its folder, a folder or file of another tool, or tensors themselves: a dict, or a tuple such as
`hidden_states`."""


def diff(
    reference: Source,
    candidate: Source,
    *,
    floor: Source | Iterable[Source] | None = None,
    mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    sites: str | Iterable[str] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    engine: EngineChoice = None,
    address: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compares two runs (or what other tools left, or dicts of tensors) and says whether, where and how they part.

    `floor` is one or more runs of the reference in the candidate's arithmetic: what they differ by is rounding. Without
    it the floor is modelled from dtypes and depth. `mapping` renames the candidate's sites: {regex: replacement}; it
    also says how plain tensors lie on the ranks of a run: {"mesh": {"tp": 4}, regex: {"dims": "b t h[tp]"}}.
    `sites` are patterns, as for `record`: only what they match is judged, and only that can be missing. `rtol` and
    `atol` replace the floor: |candidate - reference| <= atol + rtol x |reference| everywhere, or it is a fault.
    `engine="ray"` measures by the workers of the Ray cluster at `address`, or of this machine: the same, bit for bit.

    >>> import torch
    >>> x = torch.ones(1, 4, 8)
    >>> diff({"layers.0": x, "layers.1": 2 * x}, {"layers.0": x, "layers.1": 3 * x}).first.site
    Site('layers.1')
    """
    opened = open_run(reference), open_run(candidate)
    stated = stated_layouts(mapping)
    tolerance = _tolerance(rtol, atol, floor)
    options = DiffOptions(floor=floor, mapping=mapping, sites=sites, tolerance=tolerance, progress=progress)
    with open_engine(engine, address) as workers:
        while True:
            unread = [run.index.unread for run in opened]
            try:
                one = read_as_one(*opened, stated)
                return _diff(workers, one, opened, options)
            except CorruptRun:
                # What turns out to be damaged on the way is named in the run's problems and left out: the rest is
                # compared.
                if unread == [run.index.unread for run in opened]:
                    raise


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """The options of one `diff`, as its steps need them."""

    floor: Source | Iterable[Source] | None
    mapping: Mapping[str, Any] | str | os.PathLike[str] | None
    sites: str | Iterable[str] | None
    tolerance: Tolerance | None
    progress: Callable[[int, int], None] | None


def _diff(engine: Engine, one: AsOne, opened: tuple[Run, Run], options: DiffOptions) -> Report:
    reference, candidate = one.runs
    tolerance, progress = options.tolerance, options.progress
    alignment = align(reference, candidate, options.mapping)
    proof = comparable(reference, candidate, alignment)
    if options.sites is not None:
        alignment = chosen(alignment, options.sites)
    floors = _floors(engine, reference, options.floor, one)
    limits = {} if tolerance is None else {"rtol": tolerance.rtol, "atol": tolerance.atol}
    sides = RunPair(reference, candidate, alignment.trims, limits)
    parts = PartialPairs()
    coarser = stated_precision(reference, candidate)
    roundoff = roundoff_of(reference, candidate, computing=[reference])
    found: Iterable[tuple[Pair, Measured]] = ()
    rows: Sequence[Row]
    if coarser or floors or tolerance is not None:
        found = _measured(engine, sides, alignment, progress, parts)
        if coarser:
            found = list(found)  # judged twice; else one block of a long training is in memory at a time
        rows = rows_of(found, floors, roundoff, tolerance)
    else:
        rows = _by_blocks(engine, sides, alignment, roundoff, progress, parts)
    coarse = silent_precision(reference, candidate, alignment.pairs, rows)
    if coarser and tolerance is None and not {"fault", "inconclusive"}.isdisjoint(column(rows, "verdict")):
        roundoff = roundoff_of(reference, candidate, computing=[reference, candidate])
        rows, coarse = by_the_runtime(coarser, rows, rows_of(found, floors, roundoff), coarse)
    if isinstance(rows, RowColumns):
        judge_replicas(rows, one)
    verdict, reasons = _whole(rows, alignment, proof, asked=options.sites is not None)
    if verdict in ("identical", "noise") and (uncertain := doubts(one)):
        verdict, reasons = "inconclusive", uncertain
    report = Report(
        reference=reference.name,
        candidate=candidate.name,
        verdict=verdict,
        reasons=reasons,
        rows=rows,
        unmatched=(
            *(("reference", str(record.site)) for record in alignment.reference_only),
            *(("candidate", str(record.site)) for record in alignment.candidate_only),
        ),
        cause=coarse[0] if coarse else "",
        notes=(*((coarse[1],) if coarse else ()), *one.notes, *proof.notes, *parts.notes(), *alignment.shifted),
        plan=alignment.plan,
        floor_kind="tolerance" if tolerance else "measured" if floors else "modelled",
        tolerance="" if tolerance is None else str(tolerance),
        placebo=proof.placebo,
    )
    if verdict == "fault" and (ranks := ranks_at_fault(opened, one, report.first)):
        return replace(report, notes=(*ranks, *report.notes))
    return report


def _measured(
    engine: Engine,
    sides: RunPair,
    alignment: Alignment,
    progress: Callable[[int, int], None] | None,
    parts: PartialPairs,
) -> Iterator[tuple[Pair, Measured]]:
    for done, (pair, measured) in enumerate(measured_pairs(engine, sides, alignment.pairs.marked()), start=1):
        parts.add(pair, measured)
        yield pair, measured
        if progress is not None:
            progress(done, len(alignment.pairs))


def _by_blocks(
    engine: Engine,
    sides: RunPair,
    alignment: Alignment,
    roundoff: float,
    progress: Callable[[int, int], None] | None,
    parts: PartialPairs,
) -> Sequence[Row]:
    """The same, judged by the modelled floor; pairs without tensors are measured and judged by columns."""
    done = 0

    def measure(pairs: Iterable[MarkedPair]) -> Iterator[tuple[Pair, Measured]]:
        for one, (pair, measured) in enumerate(measured_pairs(engine, sides, pairs), start=1):
            parts.add(pair, measured)
            yield pair, measured
            if progress is not None and engine.remote:
                progress(done + one, len(alignment.pairs))

    judging = Judging({}, roundoff)
    for block in blocks_of(alignment.pairs, measure):
        judging.add_estimates(block)
        parts.add_whole(len(block.errors) - block.errors.count(None))
        done += len(block.errors)
        if progress is not None:
            progress(done, len(alignment.pairs))
    return judging.rows()


def _whole(
    rows: Sequence[Row], alignment: Alignment, proof: Comparability, *, asked: bool
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on all: what makes it doubtful weighs more than any number."""
    if proof.reasons:
        return "inconclusive", proof.reasons
    if not rows:
        return "inconclusive", (Note("compare.nothing_matched"),)
    verdicts = Counter(column(rows, "verdict"))
    if faults := verdicts["fault"]:
        text = Note("compare.sites_above", count=faults, total=len(rows))
        if rows[0].floor_kind == "tolerance":
            text = Note("compare.sites_outside", count=faults, total=len(rows))
        return "fault", (text,)
    unmatched = len(alignment.reference_only) + len(alignment.candidate_only)
    if doubtful := verdicts["inconclusive"]:
        why = next(row.why for row in rows if row.verdict == "inconclusive")
        return "inconclusive", (Note("compare.sites_not_judged", count=doubtful, total=len(rows), why=why),)
    if unmatched:
        return "inconclusive", (
            joined(Note("compare.one_side_only", total=len(rows), count=unmatched), Note("compare.sites_or_mapping")),
        )
    if proof.missing and not asked:
        return "inconclusive", proof.missing
    if verdicts["identical"] == len(rows):
        return "identical", (Note("compare.all_identical", total=len(rows)),)
    if rows[0].floor_kind == "tolerance":
        return "noise", (Note("compare.all_within_tolerances", total=len(rows)),)
    return "noise", (Note("compare.all_within_rounding", total=len(rows)),)


def _tolerance(rtol: float | None, atol: float | None, floor: Any) -> Tolerance | None:
    if rtol is None and atol is None:
        return None
    if floor is not None:
        raise BadArgument(tr("compare.tolerance_and_floor"))
    given = {"rtol": rtol or 0.0, "atol": atol or 0.0}
    for name, value in given.items():
        if not 0 <= value < math.inf:
            raise BadArgument(tr("compare.number_expected", name=name, value=value))
    return Tolerance(**given)


def _floors(engine: Engine, reference: Run, floor: Source | Iterable[Source] | None, one: AsOne) -> dict[Any, Any]:
    if floor is None:
        return {}
    sources = [floor] if isinstance(floor, (Run, str, os.PathLike, Mapping)) else list(floor)
    runs = [merge_ranks(open_run(source), reference, one) for source in sources]
    for run in runs:
        reasons = comparable(reference, run, align(reference, run)).reasons
        if reasons:
            raise BadArgument(tr("compare.floor_other_input", name=run.name, reasons=reasons[0]))
    return measured_floors(engine, reference, runs)
