"""One pair of records, measured: exactly where both tensors were kept, from sketches where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layertap.compare.overlap import overlapping
from layertap.compare.padding import Trim
from layertap.compare.part_sketches import by_parts
from layertap.compare.result import Pair
from layertap.compare.sharded import CommonPart, NoCommonPart, common_part
from layertap.compare.tensors import array_of, changed, elements
from layertap.errors import CorruptRun
from layertap.judge.measured import Measured
from layertap.judge.shapes import common_shape, compact
from layertap.measure import histogram
from layertap.measure.pair import Array, compare
from layertap.measure.sketch import relative_l2
from layertap.result import Note
from layertap.site import Record
from layertap.store import Run


class PartialPairs:
    """The pairs of which only a part of the tensor was compared, for the report."""

    def __init__(self) -> None:
        self._count = self._total = 0
        self._first = ""

    def add(self, pair: Pair, measured: Measured) -> None:
        self._total += 1
        if measured.part and measured.difference is not None:
            self._count += 1
            self._first = self._first or Note("compare.part_of", site=pair.reference.site, part=measured.part)

    def add_whole(self, count: int) -> None:
        """Adds pairs that were compared whole."""
        self._total += count

    def notes(self) -> list[str]:
        return (
            [Note("compare.parts_in_common", count=self._count, total=self._total, first=self._first)]
            if self._count
            else []
        )


_IDENTICAL = Measured(identical=True, error=0.0, how="exact")


def measure_pair(
    reference: Run,
    candidate: Run,
    pair: Pair,
    trims: Sequence[Trim] = (),
    *,
    rtol: float = 1e-3,
    atol: float = 1e-3,
    same: bool = False,
) -> Measured:
    """Measures one pair in one pass, streaming from disk; memory stays bounded by a block.

    `same` says that fingerprints are known to be equal; kept bytes are checked all the same.
    """
    a, b = pair.reference, pair.candidate
    common = common_part(a, b) if pair.layout is None else None
    if isinstance(common, NoCommonPart):
        return Measured(part=common.why)
    if common is not None and not a.kept == b.kept == "tensor":
        return Measured(part=Note("compare.part_needs_tensors", part=common.why))
    try:
        if common is not None:
            return _of_part(reference, candidate, pair, common, rtol, atol)
        if pair.layout is None and (same or _same(a, b)):
            for run, record in ((reference, a), (candidate, b)):
                if run.checks(record):
                    run.kept_bytes(record, mapped=True)
            return _IDENTICAL
        if a.kept == b.kept not in ("stats", histogram.NAME):  # equal histograms do not mean near values
            return _exact(reference, candidate, pair, trims, rtol, atol)
    except CorruptRun as error:  # a bad disk is not the model's fault
        return Measured(how="nothing", why=str(error))
    if common_shape(a.shape, b.shape) is None:
        return Measured(how="shapes", shapes=(a.shape, b.shape))
    if (found := by_parts((reference, candidate), (a, b))) is not None:
        return found
    if a.sketch and b.sketch and a.statistics.l2 > 0:
        return Measured(error=relative_l2(a.sketch, b.sketch, a.statistics.l2), how="sketch")
    if a.statistics.l2 > 0:
        # ‖b - a‖ is at least the difference of the norms, and that is all that statistics alone can prove.
        return Measured(error=abs(b.statistics.l2 - a.statistics.l2) / a.statistics.l2, how="statistics")
    return Measured(how="nothing", why=Note("compare.nothing_kept"))


def _exact(reference: Run, candidate: Run, pair: Pair, trims: Sequence[Trim], rtol: float, atol: float) -> Measured:
    # What is cut or turned before the pass is no longer what was recorded, so it is checked at once.
    later = not trims and pair.layout is None and pair.reference.kept_shape == pair.candidate.kept_shape
    a, b = array_of(reference, pair.reference, later=later), array_of(candidate, pair.candidate, later=later)
    if pair.layout is not None:
        b = changed(b, pair.layout.apply(elements(b)))
    if trims and not pair.reference.site.role.startswith("param"):
        a, b = overlapping(trims, a, b)
    merged = False
    if a.shape != b.shape:
        shape = common_shape(a.shape, b.shape)
        if shape is None:
            return Measured(how="shapes", shapes=(pair.reference.shape, pair.candidate.shape))
        merged = compact(a.shape) != compact(b.shape)
        a, b = (Array(raw=side.raw, dtype=side.dtype, shape=shape, release=side.release) for side in (a, b))
    measured = _compared(pair, a, b, rtol, atol)
    return replace(measured, shapes=(pair.reference.shape, pair.candidate.shape)) if merged else measured


def _of_part(reference: Run, candidate: Run, pair: Pair, common: CommonPart, rtol: float, atol: float) -> Measured:
    a, b = array_of(reference, pair.reference), array_of(candidate, pair.candidate)
    a = changed(a, elements(a, common.shapes[0])[common.reference])
    b = changed(b, elements(b, common.shapes[1])[common.candidate])
    return replace(_compared(pair, a, b, rtol, atol), part=common.why)


def _compared(pair: Pair, a: Array, b: Array, rtol: float, atol: float) -> Measured:
    found = compare(a, b, argmax=_is_head(pair.reference), rtol=rtol, atol=atol)
    same = found.max_abs == 0 and found.close == 1.0 and not (found.nan_mismatch or found.inf_mismatch)
    same_bits = bool(same and a.dtype == b.dtype)
    return Measured(identical=same_bits, difference=found, error=found.relative_l2, how="exact")


def _same(a: Record, b: Record) -> bool:
    # A foreign folder without tensors has no fingerprints; its zeros must not look like agreement.
    known = bool(a.sketch and b.sketch) or not a.statistics.count
    return known and (a.fingerprint, a.dtype, compact(a.shape)) == (b.fingerprint, b.dtype, compact(b.shape))


def _is_head(record: Record) -> bool:
    last = record.site.path.rpartition(".")[2]
    return last in ("lm_head", "head", "logits", "classifier") or record.site.leaf == "logits"
