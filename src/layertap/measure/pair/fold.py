"""Which row and which column of a pair stand out: a small kernel over the norms that the pair kernel left.

It also leaves what massive.py judges: the norms of whole rows and columns, of the error and of the reference, and some
of the candidate's values.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, jit, value_of
from layertap.measure.pair.fused import FIELDS, MOST

if FOUND:
    import triton.language as tl

FOLDS = 256
"""Programs for the rows at most, and as many for the columns: each leaves the worst that it saw."""
LINE = 128
"""Lines that a program looks at at a time."""
BEST = len(FIELDS) * MOST
"""Where the slab's f64 go on after the fields: relative error, squared error and index of FOLDS rows and columns."""
PAIR_SLAB_BYTES = 8 * (BEST + 2 * 3 * FOLDS)
SAMPLE = 1024
"""Values that are looked at where a whole tensor is not: numbers that were not rounded so show it at once."""


def sample_step(count: int) -> int:
    """How far the sample's values lie apart in a tensor of so many; odd: a power of two would stay in one column."""
    return max(1, (count // SAMPLE - 1) | 1)


if FOUND:
    _N, _FOLDS, _BEST = tl.constexpr(MOST), tl.constexpr(FOLDS), tl.constexpr(BEST)
    _LINE, _SAMPLE = tl.constexpr(LINE), tl.constexpr(SAMPLE)
    _REFERENCE = tl.constexpr(FIELDS.index("reference"))


@jit
def fold_lines(  # type: ignore[no-untyped-def]
    pb, slab, row_norms, column_norms, sample, lines, rows, segments, row_folds, width, slots, stride, full, programs,
    count, step, KIND_B: tl.constexpr,
):  # fmt: skip
    """Looks at rows by the first `row_folds` programs, at columns by the rest; each takes its part of the sample."""
    pid, number = tl.program_id(0), tl.arange(0, _LINE)
    for start in range(pid * _LINE, _SAMPLE, tl.num_programs(0) * _LINE):
        place = tl.cast(start + number, tl.int64) * step
        value = value_of(tl.load(pb + place, mask=place < count, other=0), KIND_B)
        tl.store(sample + start + number, value)  # zeros, which lie on every grid, where there are too few
    if pid < row_folds:
        _fold(slab, row_norms, lines, rows, segments, tl.cast(full, tl.int64) * 2, 1, programs, pid, row_folds, 0)
    else:
        folds, apart = tl.num_programs(0) - row_folds, tl.cast(slots, tl.int64) * stride
        below, pid = lines + tl.cast(rows, tl.int64) * 2, pid - row_folds
        _fold(slab, column_norms, below, width, slots, tl.cast(stride, tl.int64), apart, programs, pid, folds, 1)


@jit
def _fold(  # type: ignore[no-untyped-def]
    slab, norms, whole_norms, lines, parts, stride, apart, programs, pid, folds, SIDE: tl.constexpr
):
    """The parts of a line lie `stride` apart, its references' norms `apart` from the errors': beside them for rows."""
    LINE: tl.constexpr = _LINE
    PART: tl.constexpr = 32
    fields = tl.arange(0, _N)
    whole = tl.sum(tl.load(slab + _REFERENCE * _N + fields, mask=fields < programs, other=0.0), axis=0)
    best = tl.full([LINE], -1.0, tl.float64)
    best_error = tl.zeros([LINE], tl.float64)
    best_index = tl.zeros([LINE], tl.int64)
    for start in range(pid * LINE, lines, folds * LINE):
        line = start + tl.arange(0, LINE)
        error = tl.zeros([LINE], tl.float64)
        reference = tl.zeros([LINE], tl.float64)
        for part in range(0, parts, PART):
            piece = part + tl.arange(0, PART)[None, :]
            place = piece * stride + line[:, None] * (2 - SIDE)
            there = (line[:, None] < lines) & (piece < parts)
            e = tl.load(norms + place, mask=there, other=0.0).to(tl.float64)
            r = tl.load(norms + apart + place, mask=there, other=0.0).to(tl.float64)
            error += tl.sum(e * e, axis=1)
            reference += tl.sum(r * r, axis=1)
        tl.store(whole_norms + 2 * line, tl.sqrt(error).to(tl.float32), mask=line < lines)
        tl.store(whole_norms + 2 * line + 1, tl.sqrt(reference).to(tl.float32), mask=line < lines)
        floor = tl.maximum(reference, whole / lines)
        ratio = tl.where(floor > 0, error / tl.where(floor > 0, floor, 1.0), float("inf"))
        relative = tl.sqrt(tl.where(error == 0, 0.0, ratio))
        better = (line < lines) & ((relative > best) | ((relative == best) & (error > best_error)))
        best = tl.where(better, relative, best)
        best_error = tl.where(better, error, best_error)
        best_index = tl.where(better, line.to(tl.int64), best_index)
    top = tl.max(best, axis=0)
    top_error = tl.max(tl.where(best == top, best_error, -1.0), axis=0)
    first = tl.min(tl.where((best == top) & (best_error == top_error), best_index, 1 << 62), axis=0)
    out = slab + _BEST + SIDE * 3 * _FOLDS + pid
    tl.store(out, top)
    tl.store(out + _FOLDS, top_error)
    tl.store(out + 2 * _FOLDS, first.to(tl.float64))
