"""The judgement of one pair: its error against what rounding explains, never against a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layertap.compare.floor import SPREAD, Floor
from layertap.compare.measuring import Measured
from layertap.compare.result import Pair, Verdict
from layertap.measure.difference import Part
from layertap.site import Record
from layertap.words import say

LIMIT = 3.0
"""Two runs of the same arithmetic in other orders differ by about this much at most in their error."""
CERTAIN = {"measured": LIMIT, "modelled": 30.0, "its fellows": 10.0}
"""A modelled floor may be off by an order of magnitude: between LIMIT and this, only a measured floor can tell. Rows
and columns have their fellows in the same tensor as a measure, which is surer, but a flipped router moves one too."""
SHARE = 0.25
"""A row or column that stands out must also matter: carry this much of the squared error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, its reason, and how far above the floor."""

    verdict: Verdict
    why: str
    ratio: float


def judge(pair: Pair, measured: Measured, floor: Floor) -> Judgement:
    """Judges one pair. Order matters: what is certain comes first."""
    a, b = pair.reference, pair.candidate
    found = measured.difference
    if measured.identical:
        return Judgement(verdict="identical", why=say("bit for bit"), ratio=0.0)
    if measured.how.startswith("shapes differ"):
        return Judgement(verdict="fault", why=measured.how, ratio=math.inf)
    if found is not None and (found.nan_mismatch or found.inf_mismatch):
        return Judgement(verdict="fault", why=_masks(found.nan_mismatch, found.inf_mismatch), ratio=math.inf)
    if found is None and _nonfinite(a) != _nonfinite(b):
        why = f"NaN/Inf counts differ: {_nonfinite(a)} against {_nonfinite(b)}"
        return Judgement(verdict="fault", why=why, ratio=math.inf)
    if "float" not in a.dtype and "complex" not in a.dtype:
        share = "" if found is None else f" in {1 - found.close:.2%} of the places"
        return Judgement(verdict="fault", why=f"{a.dtype} values differ{share}; integers must be equal", ratio=math.inf)
    if math.isnan(measured.error):
        return Judgement(verdict="inconclusive", why=measured.how or "nothing to compare", ratio=math.nan)
    return _by_ratio(measured, floor)


def _by_ratio(measured: Measured, floor: Floor) -> Judgement:
    found = measured.difference
    signs = [(_over(measured.error, floor.error), floor.kind, "")]
    if found is not None:
        signs += _line("row", found.row, found.row_typical, floor.row, floor)
        signs += _line("channel", found.column, found.column_typical, floor.column, floor)
    ratio, beside, where = max(signs, key=lambda sign: sign[0] / CERTAIN[sign[1]])
    times = f"{ratio:.3g}"
    text = say("{ratio} × the error of its fellows", ratio=times)
    if beside != "its fellows":
        text = say("{ratio} × the {kind} floor", ratio=times, kind=say(beside))
    text = f"{text}; {where}" if where else text
    if ratio > CERTAIN[beside]:
        return Judgement(verdict="fault", why=text, ratio=ratio)
    if ratio > LIMIT:
        return Judgement(verdict="inconclusive", why=f"{text}; {say('a measured floor= would tell')}", ratio=ratio)
    if measured.how == "statistics":
        return Judgement(verdict="inconclusive", why="statistics alone: no contradiction, no proof", ratio=ratio)
    return Judgement(verdict="noise", why=text, ratio=ratio)


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
