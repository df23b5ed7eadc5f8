"""From measured pairs to judged rows, in order of execution."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from layertap.compare.align import LEFT_OVER
from layertap.compare.columns import RowColumns
from layertap.compare.estimates import Estimates
from layertap.compare.result import Pair
from layertap.judge.calibration import LIMIT_OF_RUNS
from layertap.judge.floor import Floor, FloorKey, Prefix, floor_at, key_of, modelled_floor
from layertap.judge.measured import Measured
from layertap.judge.pair import Tolerance, judge, judge_estimate
from layertap.result import Note, Verdict


def rows_of(
    found: Iterable[tuple[Pair, Measured]],
    floors: Mapping[FloorKey, Floor],
    roundoff: float,
    tolerance: Tolerance | None = None,
) -> RowColumns:
    """Judges every pair by its floor, or by the tolerance where there is one."""
    judging = Judging(floors, roundoff, tolerance)
    for pair, measured in found:
        judging.add(pair, measured)
    return judging.rows()


class Judging:
    """Rows in the making; what a row is judged by depends on those before it in its step."""

    def __init__(self, floors: Mapping[FloorKey, Floor], roundoff: float, tolerance: Tolerance | None = None) -> None:
        self._floors = floors
        self._roundoff = roundoff
        self._tolerance = tolerance
        self._rows = RowColumns()
        self._merged: list[int] = []
        self._before = 0.0
        self._prefixes: dict[tuple[int, int], Prefix] = defaultdict(Prefix)

    def add(self, pair: Pair, measured: Measured) -> None:
        """Judges one pair."""
        one, error, tolerance = pair.reference, measured.error, self._tolerance
        prefix = self._prefixes[one.step, one.rank]
        line = self._floors.get(key_of(one)) if self._floors else None
        line = line or modelled_floor(pair.reference, self._roundoff, prefix)
        judged = judge(pair.reference, pair.candidate, measured, line, tolerance)
        prefix.add(one, judged.verdict)
        if measured.shapes is not None and measured.difference is not None:
            self._merged.append(len(self._rows))
        verdict, why = judged.verdict, judged.why
        if pair.rung == LEFT_OVER and verdict == "fault":
            verdict, why = "inconclusive", Note("judge.leftovers", why=why)
        self._rows.add(
            (one.site, pair.candidate.site, one.kind, pair.rung),
            (verdict, why, measured.how == "sketch", line.kind if tolerance is None else "tolerance"),
            measured.difference,
            one.order,
            one.step,
            error,
            line.error if tolerance is None else math.nan,
            judged.ratio,
            _jump(self._before, error),
        )
        self._before = self._before if math.isnan(error) else error

    def add_estimates(self, estimates: Estimates) -> None:
        """Judges the pairs of a block of which sketches tell all that there is to know; for the others calls `add`."""
        judgement: tuple[Verdict, str, bool, str]
        same: tuple[Verdict, str, bool, str] = "identical", Note("judge.identical"), False, "modelled"
        noise: dict[str, tuple[Verdict, str, bool, str]] = {}
        errors: dict[int, float] = {}
        rows, limit = self._rows, LIMIT_OF_RUNS
        for place, error in enumerate(estimates.errors):
            if error is None:
                self.add(*estimates.measured(place))
                continue
            step, rank, layers, order = estimates.moments[place]
            prefix = self._prefixes[step, rank]
            names = estimates.names(place)
            above = max(0, layers - prefix.depth)
            floor = errors.get(above)
            if floor is None:
                floor = errors[above] = floor_at(layers, names[0].path, self._roundoff, prefix).error
            ratio = error / floor
            if estimates.same[place]:
                judgement = same
            elif ratio > limit:
                judged = judge_estimate(error, floor_at(layers, names[0].path, self._roundoff, prefix))
                judgement = judged.verdict, judged.why, True, "modelled"
            elif (judgement := noise.get(text := f"{ratio:.3g}", same)) is same:  # many rows have one text
                why = judge_estimate(error, floor_at(layers, names[0].path, self._roundoff, prefix)).why
                judgement = noise[text] = "noise", why, True, "modelled"
            prefix.add_real(layers, judgement[0])
            rows.add(names, judgement, None, order, step, error, floor, ratio, _jump(self._before, error))
            self._before = error

    def rows(self) -> RowColumns:
        """The rows; those whose axes were merged are doubted if no site shows in which order."""
        rows = self._rows
        if not any(rows[place].verdict in ("identical", "noise") for place in self._merged):
            for place in self._merged:
                why = Note("judge.merged_axes", why=rows[place].why)
                rows.judge(place, "inconclusive", why)
        return rows


def _jump(before: float, error: float) -> float:
    if not error or math.isnan(error):
        return 0.0
    return error / before if before else math.inf
