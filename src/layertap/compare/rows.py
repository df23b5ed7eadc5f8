"""From measured pairs to judged rows, in order of execution."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from layertap.compare.align import LEFT_OVER
from layertap.compare.floor import Floor, Key, Prefix, key_of, modelled_floor
from layertap.compare.judge import Tolerance, judge
from layertap.compare.measuring import Measured
from layertap.compare.result import Pair, Row
from layertap.words import say


def rows_of(
    found: Iterable[tuple[Pair, Measured]],
    floors: Mapping[Key, Floor],
    roundoff: float,
    tolerance: Tolerance | None = None,
) -> list[Row]:
    """Judges every pair by its floor, or by the tolerance where there is one."""
    rows: list[Row] = []
    merged: list[int] = []
    prefixes: dict[tuple[int, int], Prefix] = defaultdict(Prefix)
    for pair, measured in found:
        prefix = prefixes[pair.reference.step, pair.reference.rank]
        line = floors.get(key_of(pair.reference)) or modelled_floor(pair, roundoff, prefix)
        judged = judge(pair, measured, line, tolerance)
        prefix.add(pair.reference, judged.verdict)
        merged += [len(rows)] if measured.shapes is not None and measured.difference is not None else []
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
                floor=line.error if tolerance is None else math.nan,
                floor_kind=line.kind if tolerance is None else "tolerance",
                ratio=judged.ratio,
                jump=_jump(rows, measured.error),
                rung=pair.rung,
            )
        )
        if pair.rung == LEFT_OVER and judged.verdict == "fault":
            why = say(
                "{why}; but the two are paired only because nothing else was left; a mapping= settles it",
                why=judged.why,
            )
            rows[-1] = replace(rows[-1], verdict="inconclusive", why=why)
    if not any(rows[place].verdict in ("identical", "noise") for place in merged):
        for place in merged:
            why = say("{why}; but one side merges axes, and no site shows in which order", why=rows[place].why)
            rows[place] = replace(rows[place], verdict="inconclusive", why=why)
    return rows


def _jump(rows: list[Row], error: float) -> float:
    before = next((row.error for row in reversed(rows) if not math.isnan(row.error)), 0.0)
    if not error or math.isnan(error):
        return 0.0
    return error / before if before else math.inf
