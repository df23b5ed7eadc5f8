"""Two runs, one verdict: prove that they can be compared, align, measure, judge.

diff         the whole of it, below: read this first
comparable   the same inputs? real captures? or a placebo?
align        which tensor of one run is which of the other
measuring    one pass over each pair
floor        what rounding explains
judge        the verdict on a pair
precision    float32 outside, bfloat16 within
result       Pair, Row, Report
training     diff_training: two trainings, and the first step and site where they part
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from layertap.compare.align import align
from layertap.compare.comparable import Comparability, comparable
from layertap.compare.floor import Floor, Key, key_of, measured_floors, modelled_floor, roundoff_of
from layertap.compare.judge import judge
from layertap.compare.measuring import Measured, measure_pair
from layertap.compare.precision import by_the_runtime, silent_precision, told_precision
from layertap.compare.result import Alignment, Pair, Report, Row, Verdict
from layertap.compare.training import TrainingReport, diff_training
from layertap.errors import BadArgument
from layertap.store import Run
from layertap.store.foreign import open_run
from layertap.words import say

__all__ = ["Alignment", "Pair", "Report", "Row", "TrainingReport", "Verdict", "diff", "diff_training"]

Source = Run | str | os.PathLike[str]


def diff(
    reference: Source,
    candidate: Source,
    *,
    floor: Source | Iterable[Source] | None = None,
    mapping: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compares two runs (or folders and files in the foreign layouts) and says whether, where and how they part.

    `floor` is one or more runs of the reference in the candidate's arithmetic: what they differ by is rounding. Without
    it the floor is modelled from dtypes and depth. `mapping` renames the candidate's sites: {regex: replacement}.
    """
    runs = reference, candidate = open_run(reference), open_run(candidate)
    alignment = align(reference, candidate, mapping)
    proof = comparable(reference, candidate, alignment)
    floors = _floors(reference, floor)
    found: list[tuple[Pair, Measured]] = []
    for done, pair in enumerate(alignment.pairs, start=1):
        found.append((pair, measure_pair(reference, candidate, pair, proof.trim)))
        if progress is not None:
            progress(done, len(alignment.pairs))
    rows = _judged(found, floors, roundoff_of(reference, candidate, computing=[reference]))
    coarse = silent_precision(reference, candidate, alignment.pairs, rows)
    told = told_precision(reference, candidate)
    if told and any(row.verdict in ("fault", "inconclusive") for row in rows):
        roundoff = roundoff_of(reference, candidate, computing=[reference, candidate])
        rows, coarse = by_the_runtime(told, rows, _judged(found, floors, roundoff), coarse)
    verdict, reasons = _whole(rows, alignment, proof)
    return Report(
        reference=runs[0].name,
        candidate=runs[1].name,
        verdict=verdict,
        reasons=reasons,
        rows=tuple(rows),
        unmatched=(
            *(("reference", str(record.site)) for record in alignment.reference_only),
            *(("candidate", str(record.site)) for record in alignment.candidate_only),
        ),
        cause=coarse[0] if coarse else "",
        notes=(*((coarse[1],) if coarse else ()), *proof.notes, *alignment.shifted),
        plan=alignment.plan,
        floor_kind="measured" if floors else "modelled",
        placebo=proof.placebo,
    )


def _judged(found: Iterable[tuple[Pair, Measured]], floors: Mapping[Key, Floor], roundoff: float) -> list[Row]:
    rows: list[Row] = []
    for pair, measured in found:
        line = floors.get(key_of(pair.reference)) or modelled_floor(pair, roundoff)
        judged = judge(pair, measured, line)
        rows.append(
            Row(
                site=pair.reference.site,
                candidate_site=pair.candidate.site,
                kind=pair.reference.kind,
                order=pair.reference.order,
                step=pair.reference.step,
                verdict=judged.verdict,
                why=judged.why,
                difference=measured.difference,
                error=measured.error,
                estimated=measured.how == "sketch",
                floor=line.error,
                floor_kind=line.kind,
                ratio=judged.ratio,
                jump=_jump(rows, measured.error),
                rung=pair.rung,
            )
        )
    return rows


def _whole(rows: list[Row], alignment: Alignment, proof: Comparability) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on all: what makes it doubtful weighs more than any number."""
    if proof.reasons:
        return "inconclusive", proof.reasons
    if not rows:
        return "inconclusive", (say("no site of one run could be matched with one of the other; give a mapping="),)
    faults = [row for row in rows if row.verdict == "fault"]
    if faults:
        text = say("{count} of {total} sites are above what rounding explains", count=len(faults), total=len(rows))
        return "fault", (text,)
    unmatched = len(alignment.reference_only) + len(alignment.candidate_only)
    doubtful = [row for row in rows if row.verdict == "inconclusive"]
    if doubtful:
        template = "{count} of {total} sites cannot be judged: {why}"
        return "inconclusive", (say(template, count=len(doubtful), total=len(rows), why=doubtful[0].why),)
    if unmatched:
        template = "the {total} matched sites agree, but {count} were recorded on one side only"
        return "inconclusive", (say(template, total=len(rows), count=unmatched),)
    if all(row.verdict == "identical" for row in rows):
        return "identical", (say("all {total} sites are bit-identical", total=len(rows)),)
    return "noise", (say("all {total} sites are within what rounding explains", total=len(rows)),)


def _floors(reference: Run, floor: Source | Iterable[Source] | None) -> dict[Any, Any]:
    if floor is None:
        return {}
    sources = [floor] if isinstance(floor, (Run, str, os.PathLike)) else list(floor)
    runs = [open_run(source) for source in sources]
    for run in runs:
        reasons = comparable(reference, run, align(reference, run)).reasons
        if reasons:
            raise BadArgument(f"floor {run.name} is no run of the reference on the same input: {reasons[0]}")
    return measured_floors(reference, runs)


def _jump(rows: list[Row], error: float) -> float:
    before = next((row.error for row in reversed(rows) if not math.isnan(row.error)), 0.0)
    if not error or math.isnan(error):
        return 0.0
    return error / before if before else math.inf
