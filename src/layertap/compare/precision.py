"""A candidate that computes more coarsely than its tensors say: float32 outside, bfloat16 within.

Runtimes do this unasked: OpenVINO computes in bfloat16 where a CPU has it, and saves weights as float16 by default. It
shows as an error at nearly every site, of the size that the coarser rounding makes, without a direction, and spread
evenly. That much other faults can imitate; so it is called by its name only with proof: the runtime's own word, the
coarser dtype among the parameters, or a float32 tensor all of whose values fit into it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from layertap.compare.floor import PER_LAYER, ROUNDOFF, SPREAD, depth
from layertap.compare.judge import LIMIT
from layertap.compare.measuring import array_of
from layertap.compare.result import Pair, Row
from layertap.site import Record
from layertap.store import Run
from layertap.words import say

COARSER = ("bfloat16", "float16")
TYPICAL = 1.5
"""Unit roundoffs that a layer adds in such arithmetic; `floor.PER_LAYER` is the upper end."""
RANGE = 6.0
"""By which factor the size may be off from that, either way."""
EVERYWHERE = 0.8
"""The share of the sites at which it must show."""
FEWEST = 4
LARGEST = 1 << 22
"""A tensor with more values is not searched for proof; others are there."""


def silent_precision(
    reference: Run, candidate: Run, pairs: Sequence[Pair], rows: Sequence[Row]
) -> tuple[str, str] | None:
    """("precision", why) where it is proven, ("", why) where it only looks like it; None where it does not."""
    found = [(pair, row) for pair, row in zip(pairs, rows, strict=True) if _float32(pair) and math.isfinite(row.error)]
    above = [(pair, row) for pair, row in found if row.error > LIMIT * PER_LAYER * _scale("float32", pair)]
    if len(above) < FEWEST or len(above) < EVERYWHERE * len(found) or not _without_form([row for _, row in above]):
        return None
    size = {dtype: median(row.error / _scale(dtype, pair) for pair, row in above) for dtype in COARSER}
    dtype = min(size, key=lambda name: abs(math.log(size[name] / TYPICAL)))
    if not 1 / RANGE < size[dtype] / TYPICAL < RANGE:
        return None
    seen = say(
        "precision: at {count} of {total} sites the error has the size of {dtype} rounding, though the tensors say "
        "float32",
        count=len(above),
        total=len(found),
        dtype=dtype,
    )
    proof = _proof(reference, candidate, [pair for pair, _ in above], dtype)
    if proof:
        return "precision", f"{seen}; {proof}"
    return "", f"{seen}; {say('nothing proves it: any error of that size and spread looks so')}"


def _proof(reference: Run, candidate: Run, pairs: Sequence[Pair], dtype: str) -> str:
    ours, theirs = (set(run.info.get("computes_in") or ()) for run in (reference, candidate))
    if dtype in theirs - ours:
        return say("the candidate's runtime says that it computes in {dtype}", dtype=dtype)
    ours, theirs = (set(run.info.get("parameter_dtypes") or ()) for run in (reference, candidate))
    if dtype in theirs - ours:
        return say("the candidate's parameters are {dtype}, the reference's are not", dtype=dtype)
    for pair in pairs:
        if _fits(candidate, pair.candidate, dtype) and not _fits(reference, pair.reference, dtype):
            site = str(pair.candidate.site)
            return say("every value of the candidate's {site} fits into {dtype}", site=site, dtype=dtype)
    return ""


def _fits(run: Run, record: Record, dtype: str) -> bool:
    if record.kept != "tensor" or not 64 <= record.statistics.count <= LARGEST:
        return False
    array = array_of(run, record)
    values = np.frombuffer(np.ascontiguousarray(array.raw), np.float32)
    if dtype == "bfloat16":
        return not np.any(values.view(np.uint32) & 0xFFFF)
    with np.errstate(over="ignore"):
        return bool(np.all(values.astype(np.float16).astype(np.float32) == values))


def _float32(pair: Pair) -> bool:
    return pair.reference.dtype == pair.candidate.dtype == "float32"


def _scale(dtype: str, pair: Pair) -> float:
    return ROUNDOFF[dtype] * math.sqrt(1 + depth(pair.reference))


def _without_form(rows: Sequence[Row]) -> bool:
    """Rounding has no direction and no place: 1 - cosine is half the squared error, and no row or channel leads."""
    known = [(row, row.difference) for row in rows if row.difference is not None and 0 < row.error < 1]
    if not known:
        return True  # sketches alone cannot tell
    aimless = [0.5 < (1 - found.cosine) / (row.error**2 / 2) < 2 for row, found in known]
    even = [
        part is None or not typical or part.relative <= 2 * SPREAD * typical
        for _, found in known
        for part, typical in ((found.row, found.row_typical), (found.column, found.column_typical))
    ]
    return sum(aimless) >= EVERYWHERE * len(aimless) and sum(even) >= EVERYWHERE * len(even)
