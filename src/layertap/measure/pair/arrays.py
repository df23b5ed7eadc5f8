"""Compares two tensors: every metric from one pass over both, blockwise, accumulated in float64, without torch.

compare(reference, candidate) -> Difference
pair.c, native.py   the pass, compiled
plain.py            the same with numpy, where no compiler was at hand
lines.py            what its sums say about single rows and columns
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from layertap.errors import BadArgument
from layertap.measure.floats import FORMATS
from layertap.measure.pair import native, plain
from layertap.measure.pair.difference import Agreement, Difference, ratio
from layertap.measure.pair.lines import LINES, agreement, worst_column, worst_row
from layertap.measure.pair.plain import BINS, Release, Task, Totals
from layertap.messages import tr

_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A tensor as its bytes in C order, little-endian; a memory map will do."""

    raw: npt.NDArray[np.uint8] = field(repr=False)
    dtype: str
    """By torch's name: float32, bfloat16, float8_e4m3fn, int64, bool, ..."""
    shape: tuple[int, ...]
    check: Callable[[int], None] | None = field(default=None, repr=False, compare=False)
    """Is given the fingerprint that the pass over the bytes found, and raises if they are not what they were."""
    release: Release | None = field(default=None, repr=False, compare=False)
    """Lets go of pages of a memory map that the pass has read, so that a map may be larger than memory."""

    @classmethod
    def of(cls, array: npt.NDArray[np.generic]) -> Array:
        """A numpy array under its own type."""
        array = np.asarray(array)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(raw=raw, dtype=array.dtype.name, shape=array.shape)


def compare(
    reference: Array,
    candidate: Array,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-3,
    eps: float = 1e-8,
    argmax: bool = False,
) -> Difference:
    """Measures `candidate` against `reference`; their shapes are equal, their dtypes need not be.

    Two tensors that are all zero have cosine 1, one of them cosine 0; constants, likewise, Pearson 1 and 0. Without any
    finite pair there are no numbers: they are NaN, and the counts tell the rest. Percentiles and the median come
    from a histogram of numbers rounded to bfloat16: to 0.4 %, exact for small integers, 0 below 1e-40. Complex numbers
    are compared part by part, integers beyond 2^53 as the nearest float64. `argmax` reads the tensors a second time.

    >>> a = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    >>> found = compare(Array.of(a), Array.of(a + np.float32([[0, 0, 0], [0, 0, 0.5]])))
    >>> found.max_abs, found.mse == 0.25 / 6, round(found.close, 3), found.row.index, found.column.index
    (0.5, True, 0.833, (1,), (2,))
    """
    _check(reference, candidate)
    if not (rtol >= 0 and atol >= 0 and eps >= 1e-30):
        raise BadArgument(tr("measure.tolerances", rtol=rtol, atol=atol, eps=eps))
    task = _task(reference, candidate, rtol, atol, eps, 1.0)
    totals = _measure(task)
    for side, found in ((reference, totals.fingerprint_a), (candidate, totals.fingerprint_b)):
        if side.check is not None:
            side.check(found)
    scale = _better_scale(task, totals)
    if scale != 1.0:
        task = _task(reference, candidate, rtol, atol, eps, scale)
        totals = _measure(task)
    return _difference(reference, task, totals, agreement(task, reference.shape) if argmax else None)


def _check(reference: Array, candidate: Array) -> None:
    if reference.shape != candidate.shape:
        raise BadArgument(tr("measure.shapes", shape=reference.shape, shape2=candidate.shape))
    for side, array in (("reference", reference), ("candidate", candidate)):
        dtype = _COMPLEX.get(array.dtype, array.dtype)
        if dtype not in FORMATS:
            raise BadArgument(tr("measure.pair_dtype", side=side, dtype=array.dtype, MANTISSA=", ".join(FORMATS)))
        expected = _items(array) * math.prod(array.shape)
        if array.raw.dtype != np.uint8 or not array.raw.flags.c_contiguous or array.raw.size != expected:
            got = f"{array.raw.size} of {array.raw.dtype}"
            raise BadArgument(
                tr("measure.pair_bytes", side=side, dtype=array.dtype, shape=array.shape, expected=expected, got=got)
            )
    if (reference.dtype in _COMPLEX) != (candidate.dtype in _COMPLEX):
        raise BadArgument(tr("measure.one_complex", dtype=reference.dtype, dtype2=candidate.dtype))


def _items(array: Array) -> int:
    """Bytes of an element."""
    dtype = _COMPLEX.get(array.dtype, array.dtype)
    size = 1 if dtype.startswith("float8_") else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return size * (2 if array.dtype in _COMPLEX else 1)


def _task(reference: Array, candidate: Array, rtol: float, atol: float, eps: float, scale: float) -> Task:
    parts = 2 if reference.dtype in _COMPLEX else 1
    columns = parts * (reference.shape[-1] if reference.shape else 1)
    rows = parts * math.prod(reference.shape) // max(1, columns)
    row_group, column_group = -(-rows // LINES) or 1, -(-columns // LINES) or 1
    dtype_a, dtype_b = (_COMPLEX.get(side.dtype, side.dtype) for side in (reference, candidate))
    # The step at x is the larger of the two dtypes' steps, and this is what comes of 2^(max(exponent, least) - bits).
    one, other = FORMATS[dtype_a], FORMATS[dtype_b]
    mantissa = min(one.mantissa, other.mantissa)
    least = max(form.least_exponent - form.mantissa for form in (one, other)) + mantissa
    return Task(
        a=reference.raw.reshape(-1),
        b=candidate.raw.reshape(-1),
        dtype_a=dtype_a,
        dtype_b=dtype_b,
        rows=rows,
        columns=columns,
        row_group=row_group,
        column_group=column_group,
        rtol=rtol,
        atol=atol * scale,
        eps=eps * scale,
        scale=scale,
        mantissa=mantissa,
        least=max(-1022, least + round(math.log2(scale))),
        row=np.zeros((2, -(-rows // row_group))),
        column=np.zeros((2, -(-columns // column_group))),
        histogram=_histogram(),
        release=(reference.release, candidate.release),
    )


_room = threading.local()


def _histogram() -> npt.NDArray[np.uint64]:
    """Kept from one comparison to the next: for a small tensor, fresh memory would cost more than the work itself."""
    kept: npt.NDArray[np.uint64] | None = getattr(_room, "histogram", None)
    if kept is None:
        kept = _room.histogram = np.empty((2, BINS), np.uint64)
    kept.fill(0)
    return kept


def _measure(task: Task) -> Totals:
    if not task.rows * task.columns:
        return Totals()
    return native.measure(task) if native.available() else plain.measure(task)


def _better_scale(task: Task, totals: Totals) -> float:
    """Where squares of float64 leave its range, the pass is made again on numbers that are nearer to 1."""
    squares = totals.error + totals.reference + totals.bb
    size = max(totals.max_abs, totals.reference_abs / max(1, totals.finite))
    if "float64" not in (task.dtype_a, task.dtype_b) or 1e-240 < squares < 1e300 or size == 0:
        return 1.0
    return 2.0 ** min(1000, -math.frexp(size)[1] if math.isfinite(size) else -1000)


def _difference(reference: Array, task: Task, totals: Totals, choices: Agreement | None) -> Difference:
    if task.rows * task.columns and not totals.finite:
        return _nothing(task, totals)
    n, unit = max(1, totals.finite), 1 / task.scale
    sum_b = totals.bb + n * totals.mean_b * totals.mean_b
    dot = totals.ab + n * totals.mean_a * totals.mean_b
    product = totals.ab - totals.aa + n * totals.mean_a * (totals.mean_b - totals.mean_a)
    mse, square = totals.error / n * unit * unit, totals.reference / n * unit * unit
    p50, p90, p95, p99 = _quantiles(task.histogram[0], (0.5, 0.9, 0.95, 0.99), totals.max_abs)
    row, row_typical = worst_row(task, reference.shape)
    column, column_typical = worst_column(task, reference.shape)
    return Difference(
        count=task.rows * task.columns,
        relative_l2=math.sqrt(ratio(mse, square)),
        slope=product / totals.reference if totals.max_abs and totals.reference else 0.0,
        offset=_offset(totals.mean_b - totals.mean_a, totals.reference / n) if totals.max_abs else 0.0,
        equal=totals.max_abs == 0 and not (totals.nan_mismatch or totals.inf_mismatch),
        finite=totals.finite,
        max_abs=totals.max_abs * unit,
        mean_abs=totals.sum_abs / n * unit,
        max_relative=totals.max_relative,
        mean_relative=totals.sum_relative / n,
        mse=mse,
        reference_square=square,
        reference_abs=totals.reference_abs / n * unit,
        cosine=_cosine(dot, totals.reference, sum_b),
        pearson=_cosine(totals.ab, totals.aa, totals.bb),
        max_ulp=totals.max_ulp,
        close=totals.close / n if totals.finite else 1.0,
        percentiles=(p50 * unit, p90 * unit, p95 * unit, p99 * unit),
        median_relative=_quantiles(task.histogram[1], (0.5,), totals.max_relative)[0],
        nan_mismatch=totals.nan_mismatch,
        inf_mismatch=totals.inf_mismatch,
        nonfinite=totals.nonfinite,
        row=row,
        column=column,
        row_typical=row_typical,
        column_typical=column_typical,
        argmax=choices,
    )


def _nothing(task: Task, totals: Totals) -> Difference:
    """Where no pair is finite on both sides, nothing is known of how far they are apart."""
    unknown = math.nan
    return Difference(
        count=task.rows * task.columns,
        relative_l2=unknown,
        slope=unknown,
        offset=unknown,
        equal=not (totals.nan_mismatch or totals.inf_mismatch),
        close=1.0,
        nan_mismatch=totals.nan_mismatch,
        inf_mismatch=totals.inf_mismatch,
        nonfinite=totals.nonfinite,
    )


def _offset(apart: float, square: float) -> float:
    return apart / math.sqrt(square) if square else math.copysign(math.inf, apart) if apart else 0.0


def _cosine(dot: float, one: float, two: float) -> float:
    if one <= 0 or two <= 0:
        return 1.0 if one <= 0 and two <= 0 else 0.0
    return min(1.0, max(-1.0, dot / math.sqrt(one) / math.sqrt(two)))


def _quantiles(histogram: npt.NDArray[np.uint64], quantiles: tuple[float, ...], most: float) -> list[float]:
    """Between two neighbours in order they are interpolated, as np.percentile does; none is above the exact maximum."""
    bins = np.flatnonzero(histogram > 0)  # numpy finds true booleans fast, non-zero integers slowly
    if not len(bins):
        return [0.0] * len(quantiles)
    upto = np.cumsum(histogram[bins]).astype(np.int64)
    numbers = (bins.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    numbers = np.minimum(numbers, most)
    places = np.array(quantiles) * (int(upto[-1]) - 1)
    low = numbers[np.searchsorted(upto, np.floor(places), side="right")]
    high = numbers[np.searchsorted(upto, np.ceil(places), side="right")]
    found: list[float] = (low + (high - low) * (places - np.floor(places))).tolist()
    return found
