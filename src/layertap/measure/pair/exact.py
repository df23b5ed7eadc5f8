"""The pair kernel's exact path: the chunks that the fast one flagged, once more, in float64, each pair looked at."""

from __future__ import annotations

from layertap.measure.bits import FOUND, jit, value_of
from layertap.measure.pair.fused import MOST, add_to, items_of, place_of, whole

if FOUND:
    import triton.language as tl

    _N, _BIG = tl.constexpr(MOST), tl.constexpr(float("inf"))


@jit
def _load(  # type: ignore[no-untyped-def]
    pa, pb, tile, start, count, width, KIND_A: tl.constexpr, KIND_B: tl.constexpr, ROWS: tl.constexpr, PER: tl.constexpr
):
    """Some columns of a tile: both sides, where they count (finite) and where they don't."""
    row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
    column = start + tl.arange(0, 8)[None, :, None] * PER + tl.arange(0, PER)[None, None, :]
    place = row * width + column
    inside = (column < width) & (place < count)
    a = value_of(tl.load(pa + place, mask=inside, other=0), KIND_A).to(tl.float64)
    b = value_of(tl.load(pb + place, mask=inside, other=0), KIND_B).to(tl.float64)
    good = inside & (tl.abs(a) < _BIG) & (tl.abs(b) < _BIG)
    return a, b, good, inside & ~good


@jit
def _gather(x):  # type: ignore[no-untyped-def]
    return tl.sum(x.to(tl.int32), axis=2)


@jit
def mend_pair(  # type: ignore[no-untyped-def]
    pa, pb, slab, row_norms, column_norms, flags, count, width, rows, tiles, segments,
    KIND_A: tl.constexpr, KIND_B: tl.constexpr, UNIT: tl.constexpr, ROWED: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """With the same grid as `compare_pair`: adds what it left out to the fields, writes rows and columns anew."""
    SPAN: tl.constexpr = BLOCKS * 32 * UNIT
    pid, programs = tl.program_id(0), tl.num_programs(0)
    first, step, total = items_of(tiles, segments, COLUMNS)
    spoiled, chunks = tl.cast(0, tl.int32), (total - first + step * CHUNK - 1) // (step * CHUNK)
    for chunk in range(0, chunks, 128):
        ahead = chunk + tl.arange(0, 128)
        spoiled += tl.sum(tl.load(flags + ahead * programs + pid, mask=ahead < chunks, other=0), axis=0)
    if spoiled > 0:
        field, line = slab + pid, tl.arange(0, ROWS)
        shift_a, shift_b = tl.load(field + 8 * _N), tl.load(field + 9 * _N)
        z, i = tl.zeros([ROWS, 8], tl.float64), tl.zeros([ROWS, 8], tl.int32)
        n_good, n_nan, n_inf, f_a, f_b, f_bb, f_error, f_reference = i, i, i, z, z, z, z, z
        for chunk in range(chunks):
            if tl.load(flags + chunk * programs + pid) != 0:
                begin = first + chunk * (step * CHUNK)
                for item in range(begin, tl.minimum(begin + step * CHUNK, total), step):
                    tile, segment = place_of(item, segments, COLUMNS)
                    r_error, r_reference = z, z
                    for part in range(BLOCKS):
                        start = segment * SPAN + part * (32 * UNIT)
                        raw_a, raw_b, good, bad = _load(
                            pa, pb, tile, start, count, width, KIND_A, KIND_B, ROWS, 4 * UNIT
                        )
                        a, b = tl.where(good, raw_a, 0.0), tl.where(good, raw_b, 0.0)
                        d = a - b
                        lone = bad & ((raw_a != raw_a) != (raw_b != raw_b))
                        alike = bad & ((raw_a == raw_b) | ((raw_a != raw_a) & (raw_b != raw_b)))
                        n_good += _gather(good)
                        n_nan += _gather(lone)
                        n_inf += _gather(bad & ~lone & ~alike)
                        r_error += tl.sum(d * d, axis=2)
                        r_reference += tl.sum(a * a, axis=2)
                        off_a, off_b = tl.where(good, a - shift_a, 0.0), tl.where(good, b - shift_b, 0.0)
                        f_a += tl.sum(off_a, axis=2)
                        f_b += tl.sum(off_b, axis=2)
                        f_bb += tl.sum(off_b * off_b, axis=2)
                    f_error += r_error
                    f_reference += r_reference
                    if ROWED:
                        at = (tl.cast(segment, tl.int64) * tiles + tile) * (ROWS * 2) + line * 2
                        tl.store(row_norms + at, tl.sqrt(tl.sum(r_error, axis=1)).to(tl.float32))
                        tl.store(row_norms + at + 1, tl.sqrt(tl.sum(r_reference, axis=1)).to(tl.float32))
        add_to(field, whole(n_good.to(tl.float64)))
        add_to(field + _N, whole(n_nan.to(tl.float64)))
        add_to(field + 2 * _N, whole(n_inf.to(tl.float64)))
        add_to(field + 3 * _N, whole(f_error))
        add_to(field + 4 * _N, whole(f_reference))
        add_to(field + 5 * _N, whole(f_a))
        add_to(field + 6 * _N, whole(f_b))
        add_to(field + 7 * _N, whole(f_bb))

        if COLUMNS:  # what spoiled the sums is in the program's columns too: all its tiles again, for them alone
            across = segments * SPAN
            both = (programs // segments) * across
            for part in range(BLOCKS):
                start = (pid % segments) * SPAN + part * (32 * UNIT)
                error = tl.zeros([ROWS, 8, 4 * UNIT], tl.float64)
                reference = tl.zeros([ROWS, 8, 4 * UNIT], tl.float64)
                for tile in range(first, total, step):
                    x, y, known, _bad = _load(pa, pb, tile, start, count, width, KIND_A, KIND_B, ROWS, 4 * UNIT)
                    x, y = tl.where(known, x, 0.0), tl.where(known, y, 0.0)
                    error += (x - y) * (x - y)
                    reference += x * x
                column = start + tl.arange(0, 8)[:, None] * (4 * UNIT) + tl.arange(0, 4 * UNIT)[None, :]
                spots = column_norms + (pid // segments) * across + column
                tl.store(spots, tl.sqrt(tl.sum(error, axis=0)).to(tl.float32))
                tl.store(spots + both, tl.sqrt(tl.sum(reference, axis=0)).to(tl.float32))
