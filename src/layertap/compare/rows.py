"""From measured pairs to judged rows, in order of execution."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from layertap.compare.align import LEFT_OVER
from layertap.compare.columns import RowColumns
from layertap.compare.floor import Floor, Key, Prefix, key_of, modelled_floor
from layertap.compare.judge import Tolerance, judge
from layertap.compare.measuring import Measured
from layertap.compare.result import Pair
from layertap.result import Note


def rows_of(
    found: Iterable[tuple[Pair, Measured]],
    floors: Mapping[Key, Floor],
    roundoff: float,
    tolerance: Tolerance | None = None,
) -> RowColumns:
    """Judges every pair by its floor, or by the tolerance where there is one."""
    rows = RowColumns()
    merged: list[int] = []
    before = 0.0
    prefixes: dict[tuple[int, int], Prefix] = defaultdict(Prefix)
    for pair, measured in found:
        prefix = prefixes[pair.reference.step, pair.reference.rank]
        line = floors.get(key_of(pair.reference)) if floors else None
        line = line or modelled_floor(pair, roundoff, prefix)
        judged = judge(pair, measured, line, tolerance)
        prefix.add(pair.reference, judged.verdict)
        merged += [len(rows)] if measured.shapes is not None and measured.difference is not None else []
        one, error = pair.reference, measured.error
        verdict, why = judged.verdict, judged.why
        if pair.rung == LEFT_OVER and verdict == "fault":
            verdict, why = "inconclusive", Note("judge.leftovers", why=why)
        rows.add(
            (one.site, pair.candidate.site, one.kind, pair.rung),
            (verdict, why, measured.how == "sketch", line.kind if tolerance is None else "tolerance"),
            measured.difference,
            one.order,
            one.step,
            error,
            line.error if tolerance is None else math.nan,
            judged.ratio,
            _jump(before, error),
        )
        before = before if math.isnan(error) else error
    if not any(rows[place].verdict in ("identical", "noise") for place in merged):
        for place in merged:
            why = Note("judge.merged_axes", why=rows[place].why)
            rows.judge(place, "inconclusive", why)
    return rows


def _jump(before: float, error: float) -> float:
    if not error or math.isnan(error):
        return 0.0
    return error / before if before else math.inf
