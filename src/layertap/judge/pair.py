"""The judgement of one pair: its error against what rounding explains, never against a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from layertap.judge.calibration import CERTAIN, LIMIT_OF_RUNS, QUIET_BEFORE, SHARE, SPREAD, TIPPED
from layertap.judge.floor import Floor
from layertap.judge.measured import Measured
from layertap.judge.shapes import Shape, lengths, leveled
from layertap.judge.shapes import text as text_of
from layertap.measure.pair.difference import Concentration, Difference
from layertap.result import Note, Verdict, joined
from layertap.site import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, its reason, and how far above the floor."""

    verdict: Verdict
    why: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What the user calls equal, in place of what rounding explains."""

    rtol: float
    atol: float

    def __str__(self) -> str:
        return f"rtol={self.rtol:g}, atol={self.atol:g}"


def judge(a: Record, b: Record, measured: Measured, floor: Floor, tolerance: Tolerance | None = None) -> Judgement:
    """Judges one pair, the reference first; where only a part of a tensor was recorded, that part."""
    found = _judge(a, b, measured, floor, tolerance)
    if not measured.part:
        return found
    if measured.difference is None:
        return Judgement(verdict="inconclusive", why=measured.part, ratio=math.nan)
    return replace(found, why=joined(found.why, measured.part))


def _judge(a: Record, b: Record, measured: Measured, floor: Floor, tolerance: Tolerance | None) -> Judgement:
    """Order matters: what is certain comes first."""
    found = measured.difference
    if measured.identical:
        nan = a.statistics.nan
        why = Note("judge.identical_with_nan", count=nan) if nan else Note("judge.identical")
        return Judgement(verdict="identical", why=why, ratio=0.0)
    if measured.shapes is not None and found is None:
        return Judgement(verdict="inconclusive", why=_shapes(*measured.shapes), ratio=math.nan)
    if found is not None and (found.nan_mismatch or found.inf_mismatch):
        return Judgement(verdict="fault", why=_masks(found.nan_mismatch, found.inf_mismatch), ratio=math.inf)
    if found is None and _nonfinite(a) != _nonfinite(b):
        why = Note("judge.nonfinite_counts", nonfinite=_nonfinite(a), nonfinite2=_nonfinite(b))
        return Judgement(verdict="fault", why=why, ratio=math.inf)
    if "float" not in a.dtype and "complex" not in a.dtype:
        return _whole_numbers(a, b, found, floor)
    if tolerance is not None:
        return _by_tolerance(found, tolerance)
    if math.isnan(measured.error):
        nothing = "judge.nothing_to_compare" if found is None else "judge.nothing_finite"
        return Judgement(verdict="inconclusive", why=measured.why or Note(nothing), ratio=math.nan)
    return _by_ratio(measured, floor)


def judge_estimate(error: float, floor: Floor) -> Judgement:
    """Judges an error that was estimated from sketches, of which nothing else is known."""
    return _by_ratio(Measured(error=error, how="sketch"), floor)


def _whole_numbers(a: Record, b: Record, found: Difference | None, floor: Floor) -> Judgement:
    if found is not None and found.max_abs == 0 and found.finite == found.count:
        why = Note("judge.equal_values", one=a.dtype, other=b.dtype)
        return Judgement(verdict="noise", why=why, ratio=0.0)
    share = "" if found is None else Note("judge.share_of_places", value=1 - found.close)
    if found is not None and floor.rounded_before and floor.kind == "modelled" and 1 - found.close <= TIPPED:
        why = Note(
            "judge.choice_by_rounding",
            dtype=a.dtype,
            share=share,
        )
        return Judgement(verdict="inconclusive", why=why, ratio=math.nan)
    why = Note("judge.integers_differ", dtype=a.dtype, share=share)
    return Judgement(verdict="fault", why=why, ratio=math.inf)


def _by_tolerance(found: Difference | None, tolerance: Tolerance) -> Judgement:
    if found is None:
        why = Note("judge.tolerance_needs_tensors", tolerance=tolerance)
        return Judgement(verdict="inconclusive", why=why, ratio=math.nan)
    if not found.finite:
        return Judgement(verdict="inconclusive", why=Note("judge.nothing_finite"), ratio=math.nan)
    if found.close == 1.0:
        return Judgement(verdict="noise", why=Note("judge.within_tolerance", tolerance=tolerance), ratio=0.0)
    outside = round((1 - found.close) * found.finite)
    why = Note("judge.outside_tolerance", count=outside, total=found.count, tolerance=tolerance)
    return Judgement(verdict="fault", why=why, ratio=math.inf)


def _by_ratio(measured: Measured, floor: Floor) -> Judgement:
    found = measured.difference
    certain = dict(CERTAIN)
    if floor.tipped_before:
        certain["similar"] = CERTAIN["modelled"]
    elif floor.quiet_before >= QUIET_BEFORE:
        certain["modelled"] = CERTAIN["similar"]
    signs = [(_over(measured.error, floor.error), floor.kind, "")]
    if found is not None:
        signs += _line("row", found.row, found.row_typical, floor.row, floor)
        signs += _line("channel", found.column, found.column_typical, floor.column, floor)
    ratio, beside, where = max(signs, key=lambda sign: sign[0] / certain[sign[1]])
    times = f"{ratio:.3g}"
    text = Note("judge.over_similar", ratio=times)
    if beside != "similar":
        text = Note("judge.over_floor", ratio=times, kind=Note(f"judge.{beside}"))
    text = joined(text, where) if where else text
    if ratio > LIMIT_OF_RUNS and floor.tipped_here:
        why = Note("judge.choice_differs", why=text)
        return Judgement(verdict="inconclusive", why=why, ratio=ratio)
    if ratio > certain[beside]:
        if beside == "modelled" and not floor.tipped_before and floor.quiet_before >= QUIET_BEFORE:
            quiet = Note("judge.quiet_before", count=floor.quiet_before)
            text = joined(text, quiet)
        return Judgement(verdict="fault", why=text, ratio=ratio)
    if ratio > LIMIT_OF_RUNS:
        return Judgement(verdict="inconclusive", why=joined(text, Note("judge.needs_floor")), ratio=ratio)
    if measured.how == "statistics":
        return Judgement(verdict="inconclusive", why=Note("judge.statistics_only"), ratio=ratio)
    return Judgement(verdict="noise", why=text, ratio=ratio)


def _shapes(one: Shape, other: Shape) -> str:
    shapes = Note("judge.shapes", one=text_of(one), other=text_of(other))
    sizes = lengths(one, other)
    if sizes is None:
        return joined(shapes, Note("judge.layout_needed"))
    axis = next(k for k, (a, b) in enumerate(zip(*leveled(one, other), strict=True)) if a != b)
    short, long = sorted(sizes)
    if sizes[1] == long:
        way = Note(
            "judge.record_ids_or_slice",
            axis=axis + max(0, len(other) - len(one)),
            short=short,
        )
    else:
        way = Note("judge.record_ids")
    return joined(Note("judge.no_common_part", shapes=shapes), way)


def _line(
    name: str, part: Concentration | None, typical: float, measured: float, floor: Floor
) -> list[tuple[float, str, str]]:
    """A row or column against its own floor; where that is only modelled, against the others of its tensor."""
    if part is None:
        return []
    index, share = ", ".join(map(str, part.index)), f"{part.share:.0%}"
    where = Note(f"judge.{name}_share", index=index, share=share)
    if floor.kind == "measured":
        return [(_over(part.relative, measured), "measured", where)]
    if part.share < SHARE:
        return []
    return [(_over(part.relative, max(SPREAD * typical, floor.least)), "similar", where)]


def _over(error: float, floor: float) -> float:
    if error == 0:
        return 0.0
    return error / floor if floor > 0 else math.inf


def _nonfinite(record: Record) -> int:
    return record.statistics.nonfinite


def _masks(nan: int, inf: int) -> str:
    parts = [f"{count} {name}" for count, name in ((nan, "NaN"), (inf, "Inf")) if count]
    return Note("judge.one_side_only", parts=", ".join(parts))
