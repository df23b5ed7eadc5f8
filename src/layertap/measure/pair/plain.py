"""A pair of tensors with numpy alone, block by block: the same totals as pair.c, where that was not compiled.

Here is also what both share: which element types there are, and the totals that the pass leaves behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layertap.measure.definition import fingerprint_of
from layertap.measure.float8 import float8_values

Floats = npt.NDArray[np.float64]
BLOCK = 1 << 17
BINS = 1 << 15
WINDOW = 1 << 26
"""Bytes of either side after which a pass lets go of what it has read."""
Release = Callable[[int, int], None]
"""Takes pages of a file, from one byte to another, out of the memory of the process; they can be read again."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """What one pass over a pair leaves behind. `a` is the reference, `b` the candidate."""

    finite: int = 0
    close: int = 0
    nan_mismatch: int = 0
    inf_mismatch: int = 0
    nonfinite: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    max_relative: float = 0.0
    sum_relative: float = 0.0
    max_ulp: float = 0.0
    error: float = 0.0
    """The sum of squared differences."""
    reference: float = 0.0
    """The sum of squares of the reference."""
    reference_abs: float = 0.0
    mean_a: float = 0.0
    mean_b: float = 0.0
    aa: float = 0.0
    """Sums of products about the means: aa, bb, ab."""
    bb: float = 0.0
    ab: float = 0.0
    fingerprint_a: int = 0
    fingerprint_b: int = 0
    """Of each side's bytes (fingerprint.py), modulo 2^64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A pair as rows × columns, what to count, and room for what is not a single number."""

    a: npt.NDArray[np.uint8]
    b: npt.NDArray[np.uint8]
    dtype_a: str
    dtype_b: str
    rows: int
    columns: int
    row_group: int
    """So many neighbouring rows share an entry of `row`; more than one only beyond a million rows."""
    column_group: int
    rtol: float
    atol: float
    eps: float
    scale: float
    """A power of two by which float64 values are multiplied, so that their squares stay in range."""
    mantissa: int
    least: int
    """The step of the coarser dtype at x is 2^(max(exponent of x, least) - mantissa)."""
    row: Floats
    """Squared error and squared reference of each group of rows: 2 × groups."""
    column: Floats
    histogram: npt.NDArray[np.uint64]
    """How many |differences|, and how many relative errors, round to each bfloat16: 2 × BINS."""
    release: tuple[Release | None, Release | None] = (None, None)
    """Of either side, where its pages need not stay in memory behind the pass."""

    def windows(self, step: int) -> Iterator[tuple[int, int]]:
        """All elements in parts, so many at a time; what was read of a part is let go of when the next is asked for."""
        count = self.rows * self.columns
        sizes = [side.size // count for side in (self.a, self.b)]
        held = 0
        for begin in range(0, count, step):
            end = min(begin + step, count)
            yield begin, end
            if (end - held) * max(sizes) >= WINDOW or end == count:
                for release, size in zip(self.release, sizes, strict=True):
                    if release is not None and count * size > WINDOW:
                        release(held * size, end * size)
                held = end


def measure(task: Task) -> Totals:
    """Goes over the pair once, in blocks, and adds to the task's rows, columns and histogram."""
    totals = Totals()
    itemsizes = task.a.size // (task.rows * task.columns), task.b.size // (task.rows * task.columns)
    for begin, end in task.windows(BLOCK):
        raw_a = task.a[begin * itemsizes[0] : end * itemsizes[0]]
        raw_b = task.b[begin * itemsizes[1] : end * itemsizes[1]]
        totals.fingerprint_a = (totals.fingerprint_a + _fingerprint(raw_a, itemsizes[0], begin)) % 2**64
        totals.fingerprint_b = (totals.fingerprint_b + _fingerprint(raw_b, itemsizes[1], begin)) % 2**64
        a, b = values(raw_a, task.dtype_a), values(raw_b, task.dtype_b)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            _block(task, totals, a * task.scale, b * task.scale, begin)
    return totals


def _fingerprint(raw: npt.NDArray[np.uint8], itemsize: int, begin: int) -> int:
    size = min(itemsize, 4)
    return fingerprint_of(raw.view(f"<u{size}"), begin * (itemsize // size))


def _block(task: Task, totals: Totals, a: Floats, b: Floats, begin: int) -> None:
    keep = np.isfinite(a) & np.isfinite(b)
    flat = np.arange(begin, begin + len(a))
    if not keep.all():
        only = np.isnan(a) != np.isnan(b)
        alike = ~keep & ((a == b) | (np.isnan(a) & np.isnan(b)))
        totals.nan_mismatch += int(only.sum())
        totals.nonfinite += int(alike.sum())
        totals.inf_mismatch += int((~keep & ~only & ~alike).sum())
        a, b, flat = a[keep], b[keep], flat[keep]
    if not len(a):
        return
    size, d = np.abs(a), np.abs(a - b)
    relative = d / (size + task.eps)
    exponent = np.maximum(np.frexp(size)[1].astype(np.int64) - 1, task.least)
    exponent[size == 0] = task.least
    ulps = np.ldexp(d, task.mantissa - exponent)
    totals.max_abs = max(totals.max_abs, float(d.max()))
    totals.max_relative = max(totals.max_relative, float(relative.max()))
    totals.max_ulp = max(totals.max_ulp, float(ulps.max()))
    totals.close += int((d <= task.rtol * size + task.atol).sum())
    totals.sum_abs += float(d.sum())
    totals.sum_relative += float(relative.sum())
    totals.reference_abs += float(size.sum())
    for k, numbers in enumerate((d, relative)):
        task.histogram[k] += np.bincount(_bins(numbers), minlength=BINS).astype(np.uint64)
    row, column = np.divmod(flat, task.columns)
    first, last = int(row[0]) // task.row_group, int(row[-1]) // task.row_group + 1
    for k, squares in enumerate((d * d, a * a)):
        task.row[k, first:last] += np.bincount(row // task.row_group - first, squares, last - first)
        low, high = int(column.min()) // task.column_group, int(column.max()) // task.column_group + 1
        task.column[k, low:high] += np.bincount(column // task.column_group - low, squares, high - low)
    totals.error += float((d * d).sum())
    totals.reference += float((a * a).sum())
    _moments(totals, a, b)


def _moments(totals: Totals, a: Floats, b: Floats) -> None:
    """About the block's means, then merged as in pair.c."""
    x, y = a - a[0], b - b[0]
    mean_a, mean_b, n, m = a[0] + x.mean(), b[0] + y.mean(), totals.finite, len(a)
    x, y = x - x.mean(), y - y.mean()
    share = m / (n + m)
    da, db = float(mean_a - totals.mean_a), float(mean_b - totals.mean_b)
    totals.aa += float(x @ x) + da * da * n * share
    totals.bb += float(y @ y) + db * db * n * share
    totals.ab += float(x @ y) + da * db * n * share
    totals.mean_a, totals.mean_b = totals.mean_a + da * share, totals.mean_b + db * share
    totals.finite += m


def _bins(numbers: Floats) -> npt.NDArray[np.int64]:
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) >> np.uint32(16)).astype(np.int64)


def values(raw: npt.NDArray[np.uint8], dtype: str) -> Floats:
    """The bytes as float64."""
    flat: npt.NDArray[np.generic]
    if dtype == "bfloat16":
        flat = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype.startswith("float8_"):
        flat = float8_values(dtype)[raw]
    else:
        flat = raw.view("|u1" if dtype == "bool" else np.dtype(dtype).newbyteorder("<"))
    with np.errstate(invalid="ignore"):  # a NaN of the signalling kind
        return flat.astype(np.float64)
