"""A candidate that computes more coarsely than its tensors say: float32 outside, bfloat16 within.

Runtimes do this unasked: OpenVINO computes in bfloat16 where a CPU has it, and saves weights as float16 by default. It
shows as an error at nearly every site, of the size that the coarser rounding makes, without a direction, and spread
evenly. That much other faults can imitate; so it is called by its name only with proof: the runtime's own word, the
coarser dtype among the parameters, or a float32 tensor all of whose values fit into it. What bfloat16 holds mostly fits
into float16 as well: where both do, bfloat16 is meant.

The runtime's own word is also a floor: what is above the rounding of that dtype is a departure of its own, and the
first of those is the one to show.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from layertap.compare.align.pairs import Pairs
from layertap.compare.columns import column
from layertap.compare.result import Row
from layertap.compare.tensors import array_of
from layertap.errors import CorruptRun
from layertap.judge.calibration import LIMIT_OF_RUNS, PER_LAYER, SPREAD, TYPICAL_PER_LAYER
from layertap.judge.roundoff import ROUNDOFF, computes_in
from layertap.result import Note, joined
from layertap.site import Record
from layertap.store import Run

COARSER = ("bfloat16", "float16")
RANGE = 6.0
"""By which factor the size may be off from that, either way."""
EVERYWHERE = 0.8
"""The share of the sites at which it must show."""
FEWEST = 4
LARGEST = 1 << 22
"""A tensor with more values is not searched for proof; others are there."""


def silent_precision(reference: Run, candidate: Run, pairs: Pairs, rows: Sequence[Row]) -> tuple[str, str] | None:
    """("precision", why) where it is proven, ("", why) where it only looks like it; None where it does not."""
    words = {*computes_in(candidate), *(candidate.info.get("parameter_dtypes") or ())}
    if any(ROUNDOFF.get(dtype, 0.0) > ROUNDOFF["bfloat16"] for dtype in words):
        return None  # it is quantised, and says so
    least = LIMIT_OF_RUNS * PER_LAYER * ROUNDOFF["float32"]
    if not any(error > least for error in column(rows, "error")):
        return None
    # Of a pair that is not in memory, the depth: a long training has millions.
    errors = np.fromiter(column(rows, "error"), np.float64, len(rows))
    layers = 1 + pairs.depths()
    known = np.isfinite(errors) & (pairs.values(0, "dtype") == "float32") & (pairs.values(1, "dtype") == "float32")
    above = np.flatnonzero(known & (errors > LIMIT_OF_RUNS * PER_LAYER * ROUNDOFF["float32"] * np.sqrt(layers)))
    few = len(above) < FEWEST or len(above) < EVERYWHERE * known.sum()
    if few or not _without_form(rows, set(above.tolist())):
        return None
    sizes = errors[above] / np.sqrt(layers[above])
    size = {dtype: float(np.median(sizes)) / ROUNDOFF[dtype] / TYPICAL_PER_LAYER for dtype in COARSER}
    nearest = min(size, key=lambda name: abs(math.log(size[name])))
    if not 1 / RANGE < size[nearest] < RANGE:
        return None
    # Smaller than its rounding usually is, an error may be; larger it may not.
    possible = [dtype for dtype in COARSER if size[dtype] < RANGE]
    chosen = np.zeros(len(pairs), np.bool_)
    chosen[above] = True
    dtype, proof = _proof(reference, candidate, pairs.where(chosen), possible) or (nearest, "")
    seen = Note(
        "precision.size",
        count=len(above),
        total=int(known.sum()),
        dtype=dtype,
    )
    if proof:
        return "precision", joined(seen, proof)
    return "", joined(seen, Note("precision.no_proof"))


def stated_precision(reference: Run, candidate: Run) -> str:
    """The coarsest dtype in which only the candidate's runtime states that it computes; empty where there is none."""
    stated = set(computes_in(candidate)) - set(computes_in(reference))
    return max(stated & set(COARSER), key=lambda dtype: ROUNDOFF[dtype], default="")  # what is quantised says so


def by_the_runtime(
    dtype: str, rows: Sequence[Row], coarse: Sequence[Row], seen: tuple[str, str] | None
) -> tuple[Sequence[Row], tuple[str, str]]:
    """Which rows count, and ("precision" or "", why), where a candidate's runtime states that it computes in `dtype`.

    `coarse` are the rows judged by the rounding of that dtype, `seen` is what `silent_precision` found.
    """
    says = Note("precision.runtime", dtype=dtype)
    if "fault" in column(coarse, "verdict"):
        beyond = Note("precision.partly", why=says)
        return coarse, ("", beyond)
    if "fault" not in column(rows, "verdict"):
        rows = coarse  # what could not be decided is, by the runtime's word
    if seen is not None and seen[0]:
        return rows, seen
    return rows, ("precision", Note("precision.all", why=says))


def _proof(reference: Run, candidate: Run, pairs: Pairs, dtypes: Sequence[str]) -> tuple[str, str] | None:
    stated = stated_precision(reference, candidate)
    if stated in dtypes:
        return stated, Note("precision.runtime", dtype=stated)
    ours, theirs = (set(run.info.get("parameter_dtypes") or ()) for run in (reference, candidate))
    for dtype in dtypes:
        if dtype in theirs - ours:
            return dtype, Note("precision.parameters", dtype=dtype)
    whole = pairs.where(pairs.values(1, "kept") == "tensor")
    # Nearly every tensor that does not fit shows it in its first values, which are among the columns.
    heads = whole.columns(1, ("first",)).column("first").to_pylist()
    for dtype in dtypes:
        for pair in whole.where(np.array([_holds(np.array(head, np.float32), dtype) for head in heads], np.bool_)):
            if _fits(candidate, pair.candidate, dtype) and not _fits(reference, pair.reference, dtype):
                site = str(pair.candidate.site)
                return dtype, Note("precision.values", site=site, dtype=dtype)
    return None


def _fits(run: Run, record: Record, dtype: str) -> bool:
    """Whether a kept tensor is one of those searched, and all its values fit into a dtype."""
    if record.kept != "tensor" or not 64 <= record.statistics.count <= LARGEST:
        return False
    try:
        array = array_of(run, record)
    except CorruptRun:  # the row says so
        return False
    return _holds(np.frombuffer(np.ascontiguousarray(array.raw), np.float32), dtype)


def _holds(values: npt.NDArray[np.float32], dtype: str) -> bool:
    """Whether a dtype holds float32 values as they are; NaN as it is held by bfloat16, not by float16."""
    if dtype == "bfloat16":
        return not np.any(values.view(np.uint32) & 0xFFFF)
    with np.errstate(over="ignore"):
        return bool(np.all(values.astype(np.float16).astype(np.float32) == values))


def _without_form(rows: Sequence[Row], places: Collection[int]) -> bool:
    """Rounding has no direction and no place: 1 - cosine is half the squared error, and no row or channel leads."""
    measured = enumerate(zip(column(rows, "error"), column(rows, "difference"), strict=True))
    known = [
        (error, found) for place, (error, found) in measured if found is not None and 0 < error < 1 and place in places
    ]
    if not known:
        return True  # sketches alone cannot tell
    aimless = [0.5 < (1 - found.cosine) / (error**2 / 2) < 2 for error, found in known]
    even = [
        part is None or not typical or part.relative <= 2 * SPREAD * typical
        for _, found in known
        for part, typical in ((found.row, found.row_typical), (found.column, found.column_typical))
    ]
    return bool(sum(aimless) >= EVERYWHERE * len(aimless) and sum(even) >= EVERYWHERE * len(even))
