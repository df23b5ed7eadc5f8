"""One pair of records, measured: exactly where both tensors were kept, from sketches where not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from layertap.compare.padding import Trim
from layertap.compare.result import Pair
from layertap.errors import CorruptRun
from layertap.measure.difference import Difference
from layertap.measure.pair import Array, compare
from layertap.measure.sketch import relative_l2
from layertap.site import Record
from layertap.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one pair."""

    identical: bool = False
    """Bit for bit: fingerprint, dtype and shape."""
    difference: Difference | None = None
    """None where no pass over the pair was possible."""
    error: float = math.nan
    """The relative L2 error; NaN where nothing is known."""
    how: str = ""
    """`exact`, `sketch`, `statistics` (a lower bound), or why there is nothing."""


def measure_pair(reference: Run, candidate: Run, pair: Pair, trim: Trim | None = None) -> Measured:
    """Measures one pair in one pass, streaming from disk; memory stays bounded by a block."""
    a, b = pair.reference, pair.candidate
    try:
        if trim is None and pair.layout is None and _same(a, b):
            for run, record in ((reference, a), (candidate, b)):
                if run.checks(record):
                    run.kept_bytes(record, mapped=True)
            return Measured(identical=True, error=0.0, how="exact")
        if a.kept == b.kept != "stats":
            return _exact(reference, candidate, pair, trim)
    except CorruptRun as error:  # a bad disk is not the model's fault
        return Measured(how=str(error))
    if a.shape != b.shape:
        return Measured(how=f"shapes differ: {_shape(a)} against {_shape(b)}, and no tensors were kept to trim")
    if a.sketch and b.sketch and a.statistics.l2 > 0:
        return Measured(error=relative_l2(a.sketch, b.sketch, a.statistics.l2), how="sketch")
    if a.statistics.l2 > 0:
        # ‖b - a‖ is at least the difference of the norms, and that is all that statistics alone can prove.
        return Measured(error=abs(b.statistics.l2 - a.statistics.l2) / a.statistics.l2, how="statistics")
    return Measured(how="neither tensors nor sketches were kept")


def array_of(run: Run, record: Record, *, later: bool = False) -> Array:
    """What was kept of a record, checked; if `later`, by the pass over the pair, which reads the bytes anyway."""
    raw = np.asarray(run.kept_bytes(record, verify=False if later else None, mapped=True))
    check = partial(run.check, record) if later and run.checks(record) else None
    return Array(raw=raw, dtype=record.kept_dtype, shape=record.kept_shape, check=check)


def _exact(reference: Run, candidate: Run, pair: Pair, trim: Trim | None) -> Measured:
    # What is cut or turned before the pass is no longer what was recorded, so it is checked at once.
    later = trim is None and pair.layout is None and pair.reference.kept_shape == pair.candidate.kept_shape
    a, b = array_of(reference, pair.reference, later=later), array_of(candidate, pair.candidate, later=later)
    if pair.layout is not None:
        b = _changed(b, pair.layout.apply(_elements(b)))
    if trim is not None and not pair.reference.site.role.startswith("param"):
        left, right = trim.apply(_elements(a), _elements(b), ndim=len(a.shape))
        a, b = _changed(a, left), _changed(b, right)
    if a.shape != b.shape:
        return Measured(how=f"shapes differ: {'×'.join(map(str, a.shape))} against {'×'.join(map(str, b.shape))}")
    found = compare(a, b, argmax=_is_head(pair.reference))
    same = found.max_abs == 0 and found.close == 1.0 and not (found.nan_mismatch or found.inf_mismatch)
    return Measured(identical=bool(same and a.dtype == b.dtype), difference=found, error=found.relative_l2, how="exact")


def _same(a: Record, b: Record) -> bool:
    # A foreign folder without tensors has no fingerprints; its zeros must not look like agreement.
    known = bool(a.sketch and b.sketch) or not a.statistics.count
    return known and (a.fingerprint, a.dtype, a.shape) == (b.fingerprint, b.dtype, b.shape)


def _elements(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes with an axis for each of the tensor's and one more for the bytes of an element, not copied."""
    count = math.prod(array.shape)
    return array.raw.reshape(*array.shape, len(array.raw) // count if count else 1)


def _changed(array: Array, elements: npt.NDArray[np.uint8]) -> Array:
    flat = np.ascontiguousarray(elements).reshape(-1)
    return Array(raw=flat, dtype=array.dtype, shape=elements.shape[:-1])


def _is_head(record: Record) -> bool:
    last = record.site.path.rpartition(".")[2]
    return last in ("lm_head", "head", "logits", "classifier") or record.site.leaf == "logits"


def _shape(record: Record) -> str:
    return "×".join(map(str, record.shape)) or "scalar"
