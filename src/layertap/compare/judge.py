"""The judgement of one pair: its error against what rounding explains, never against a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from layertap.compare.floor import SPREAD, Floor
from layertap.compare.measuring import Measured
from layertap.compare.result import Pair
from layertap.compare.shapes import Shape, lengths, leveled
from layertap.compare.shapes import text as text_of
from layertap.measure.difference import Difference, Part
from layertap.result import Verdict
from layertap.site import Record
from layertap.words import say

LIMIT = 3.0
"""Two runs of the same arithmetic in other orders differ by about this much at most in their error."""
CERTAIN = {"measured": LIMIT, "modelled": 30.0, "its fellows": 10.0}
"""A modelled floor may be off by an order of magnitude: between LIMIT and this, only a measured floor can tell. Rows
and columns have their fellows in the same tensor as a measure, which is surer, but a flipped router moves one too."""
QUIET_BEFORE = 3
"""After so many sites, all within LIMIT of the modelled floor, it has proven itself on this model: what jumps from
there to CERTAIN["its fellows"] at a single site is no rounding. (Rounding that grows faster than modelled does so bit
by bit, and is inconclusive on its way.)"""
TIPPED = 0.1
"""Where rounding came before, no more than this part of a router's choices is tipped by it."""
SHARE = 0.25
"""A row or column that stands out must also matter: carry this much of the squared error."""


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


def judge(pair: Pair, measured: Measured, floor: Floor, tolerance: Tolerance | None = None) -> Judgement:
    """Judges one pair; where only a part of a tensor was recorded, that part."""
    found = _judge(pair, measured, floor, tolerance)
    if not measured.part:
        return found
    if measured.difference is None:
        return Judgement(verdict="inconclusive", why=measured.part, ratio=math.nan)
    return replace(found, why=f"{found.why}; {measured.part}")


def _judge(pair: Pair, measured: Measured, floor: Floor, tolerance: Tolerance | None) -> Judgement:
    """Order matters: what is certain comes first."""
    a, b = pair.reference, pair.candidate
    found = measured.difference
    if measured.identical:
        both = say("; both sides hold {count} NaN", count=a.statistics.nan) if a.statistics.nan else ""
        return Judgement(verdict="identical", why=say("bit for bit") + both, ratio=0.0)
    if measured.shapes is not None and found is None:
        return Judgement(verdict="inconclusive", why=_shapes(*measured.shapes), ratio=math.nan)
    if found is not None and (found.nan_mismatch or found.inf_mismatch):
        return Judgement(verdict="fault", why=_masks(found.nan_mismatch, found.inf_mismatch), ratio=math.inf)
    if found is None and _nonfinite(a) != _nonfinite(b):
        why = f"NaN/Inf counts differ: {_nonfinite(a)} against {_nonfinite(b)}"
        return Judgement(verdict="fault", why=why, ratio=math.inf)
    if "float" not in a.dtype and "complex" not in a.dtype:
        return _whole_numbers(pair, found, floor)
    if tolerance is not None:
        return _by_tolerance(found, tolerance)
    if math.isnan(measured.error):
        why = say("no value is finite on both sides") if found is not None else measured.how
        return Judgement(verdict="inconclusive", why=why or "nothing to compare", ratio=math.nan)
    return _by_ratio(measured, floor)


def _whole_numbers(pair: Pair, found: Difference | None, floor: Floor) -> Judgement:
    if found is not None and found.max_abs == 0 and found.finite == found.count:
        why = say("equal values, as {one} and as {other}", one=pair.reference.dtype, other=pair.candidate.dtype)
        return Judgement(verdict="noise", why=why, ratio=0.0)
    share = "" if found is None else f" in {1 - found.close:.2%} of the places"
    if found is not None and floor.rounded_before and floor.kind == "modelled" and 1 - found.close <= TIPPED:
        why = say(
            "{dtype} values differ{share}: rounding may tip a choice between near equals; pass floor= to decide",
            dtype=pair.reference.dtype,
            share=share,
        )
        return Judgement(verdict="inconclusive", why=why, ratio=math.nan)
    why = f"{pair.reference.dtype} values differ{share}; integers must be equal"
    return Judgement(verdict="fault", why=why, ratio=math.inf)


def _by_tolerance(found: Difference | None, tolerance: Tolerance) -> Judgement:
    if found is None:
        why = say("{tolerance} cannot be applied: the tensors were not kept", tolerance=tolerance)
        return Judgement(verdict="inconclusive", why=why, ratio=math.nan)
    if not found.finite:
        return Judgement(verdict="inconclusive", why=say("no value is finite on both sides"), ratio=math.nan)
    if found.close == 1.0:
        return Judgement(verdict="noise", why=say("all values within {tolerance}", tolerance=tolerance), ratio=0.0)
    outside = round((1 - found.close) * found.finite)
    why = say(
        "{count} of {total} values are outside {tolerance}", count=outside, total=found.count, tolerance=tolerance
    )
    return Judgement(verdict="fault", why=why, ratio=math.inf)


def _by_ratio(measured: Measured, floor: Floor) -> Judgement:
    found = measured.difference
    certain = dict(CERTAIN)
    if floor.tipped_before:
        certain["its fellows"] = CERTAIN["modelled"]
    elif floor.quiet_before >= QUIET_BEFORE:
        certain["modelled"] = CERTAIN["its fellows"]
    signs = [(_over(measured.error, floor.error), floor.kind, "")]
    if found is not None:
        signs += _line("row", found.row, found.row_typical, floor.row, floor)
        signs += _line("channel", found.column, found.column_typical, floor.column, floor)
    ratio, beside, where = max(signs, key=lambda sign: sign[0] / certain[sign[1]])
    times = f"{ratio:.3g}"
    text = say("{ratio} × the error of its fellows", ratio=times)
    if beside != "its fellows":
        text = say("{ratio} × the {kind} floor", ratio=times, kind=say(beside))
    text = f"{text}; {where}" if where else text
    if ratio > LIMIT and floor.tipped_here:
        why = say("{why}; a choice made here differs, which rounding may have tipped", why=text)
        return Judgement(verdict="inconclusive", why=why, ratio=ratio)
    if ratio > certain[beside]:
        if beside == "modelled" and not floor.tipped_before and floor.quiet_before >= QUIET_BEFORE:
            quiet = say("the {count} sites before it are equal but for rounding", count=floor.quiet_before)
            text = f"{text}; {quiet}"
        return Judgement(verdict="fault", why=text, ratio=ratio)
    if ratio > LIMIT:
        return Judgement(verdict="inconclusive", why=f"{text}; {say('a measured floor= would tell')}", ratio=ratio)
    if measured.how == "statistics":
        return Judgement(verdict="inconclusive", why="statistics alone: no contradiction, no proof", ratio=ratio)
    return Judgement(verdict="noise", why=text, ratio=ratio)


def _shapes(one: Shape, other: Shape) -> str:
    told = say("shapes differ: {one} against {other}", one=text_of(one), other=text_of(other))
    sizes = lengths(one, other)
    if sizes is None:
        return f"{told}; {say('a mapping with a layout says how they belong together')}"
    axis = next(k for k, (a, b) in enumerate(zip(*leveled(one, other), strict=True)) if a != b)
    short, long = sorted(sizes)
    if sizes[1] == long:
        way = say(
            "record the input ids or the mask on both sides, or say which part is meant with a mapping whose layout is "
            "slice({axis},0,{short})",
            axis=axis + max(0, len(other) - len(one)),
            short=short,
        )
    else:
        way = say("record the input ids or the mask on both sides")
    return f"{told}, {say('and nothing proves which part is the same')}; {way}"


def _line(name: str, part: Part | None, typical: float, measured: float, floor: Floor) -> list[tuple[float, str, str]]:
    """A row or column against its own floor; where that is only modelled, against the others of its tensor."""
    if part is None:
        return []
    index, share = ", ".join(map(str, part.index)), f"{part.share:.0%}"
    where = say(name + " {index} carries {share} of the error", index=index, share=share)
    if floor.kind == "measured":
        return [(_over(part.relative, measured), "measured", where)]
    if part.share < SHARE:
        return []
    return [(_over(part.relative, max(SPREAD * typical, floor.least)), "its fellows", where)]


def _over(error: float, floor: float) -> float:
    if error == 0:
        return 0.0
    return error / floor if floor > 0 else math.inf


def _nonfinite(record: Record) -> int:
    return record.statistics.nonfinite


def _masks(nan: int, inf: int) -> str:
    parts = [f"{count} {name}" for count, name in ((nan, "NaN"), (inf, "Inf")) if count]
    return f"{' and '.join(parts)} on one side only"
