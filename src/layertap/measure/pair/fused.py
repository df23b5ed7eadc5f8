"""The pair kernel's fast path: what one program does with its tiles of two tensors; kernel.py launches it.

A tile is ROWS rows of a segment of columns, in blocks of 128 bytes a row: eight threads share a row, each has 16 bytes
of every block, so the sums over a row need three exchanges, and those over columns none before the end. Tiles to come
are fetched through shared memory meanwhile. After a chunk of tiles one flag reports whether all was finite and of
ordinary size; if not, exact.py reads it again.

Instructions are what bfloat16 is short of: memory brings a pair in the time of some twenty. So the matrix unit, else
idle, takes words apart and adds them up (words.py).
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, half, jit, value_of
from layertap.measure.pair.words import added, diagonal, on_diagonal, spread, squared

if FOUND:
    import triton.language as tl

MOST = 1024
"""Programs at most, and the stride of a field."""
FIELDS = (
    *("finite", "nan_mismatch", "inf_mismatch", "error", "reference", "a", "b", "bb", "shift_a", "shift_b"),
    "programs",
)
"""What each program leaves, as f64; the last says how many there were. Sums of a, b and b² are about the shifts."""

if FOUND:
    _N = tl.constexpr(MOST)
    _SMALL = tl.constexpr(1e-15)  # squares of less lose digits, or vanish


@jit
def whole(x):  # type: ignore[no-untyped-def]
    return tl.sum(tl.sum(x, axis=1), axis=0)


@jit
def add_to(place, value):  # type: ignore[no-untyped-def]
    tl.store(place, tl.load(place) + value)


@jit
def _either(x, y):  # type: ignore[no-untyped-def]
    return x | y


@jit
def _plus(a, b, c, d, e, a2, b2, c2, d2, e2):  # type: ignore[no-untyped-def]
    return a + a2, b + b2, c + c2, d + d2, e + e2


@jit
def place_of(item, segments, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tile and segment of an item of work; a program that adds up columns keeps to one segment."""
    if COLUMNS:
        return item, tl.program_id(0) % segments
    return item // segments, item % segments


@jit
def items_of(tiles, segments, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """This program's first item, the step to its next, and the number of all."""
    pid, programs = tl.program_id(0), tl.num_programs(0)
    if COLUMNS:
        return pid // segments, programs // segments, tiles
    return pid, programs, tiles * segments


@jit
def _ends(  # type: ignore[no-untyped-def]
    segment, count, width, rows, ALIGNED: tl.constexpr, ROWED: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr
):
    """Block by block, the row from which on each column of words is outside."""
    VECTOR: tl.constexpr = 4 * UNIT if ALIGNED else 1
    last = width if ROWED else count - tl.cast(rows - 1, tl.int64) * width
    last = (last // VECTOR) * (VECTOR // UNIT)  # a vector is inside or not as a whole
    ends = ()
    for block in tl.static_range(BLOCKS):
        column = (segment * BLOCKS + block) * 32 + tl.arange(0, 32)[None, :]
        ends += (tl.where(column < last, rows, 0 if ROWED else rows - 1),)  # type: ignore[assignment]
    return ends


@jit
def _inside(  # type: ignore[no-untyped-def]
    chunk, stop, step, count, width, rows, segments,
    ROWED: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """How many elements a chunk has, of those that its tiles have room for."""
    within = tl.cast(0, tl.int64)
    for item in range(chunk, stop, step):
        tile, segment = place_of(item, segments, COLUMNS)
        if ROWED:
            tall = tl.minimum(rows - tile * ROWS, ROWS).to(tl.int64)
            within += tall * tl.minimum(width - segment * SPAN, SPAN)
        else:
            within += tl.minimum(count - tl.cast(tile, tl.int64) * (ROWS * SPAN), ROWS * SPAN)
    return within


@jit
def _add(  # type: ignore[no-untyped-def]
    a,
    b,
    off,
    shift_a,
    shift_b,
    sums,
    largest,
    lines,
    col_error,
    col_reference,
    SHIFT: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Adds the elements a, b of a block to a tile's sums: nothing here checks for NaN, all of it lets NaN through."""
    s_size, s_a, s_b, s_bb = sums
    error, reference = lines
    largest = tl.maximum(largest, tl.max(tl.abs(off), axis=2))
    error += off * off
    reference += a * a
    col_error += off * off
    col_reference += a * a
    if not PACKED:
        s_size += tl.sum(tl.abs(a), axis=2)
        if SHIFT:
            a -= shift_a
            b -= shift_b
        s_a += tl.sum(a, axis=2)
        s_b += tl.sum(b, axis=2)
        s_bb += tl.sum(b * b, axis=2)
    return (s_size, s_a, s_b, s_bb), largest, (error, reference), col_error, col_reference


@jit
def _tile(  # type: ignore[no-untyped-def]
    raw_a, raw_b, o, every, one, shift_a, shift_b, sums, largest, squares, columns,
    KIND_A: tl.constexpr, KIND_B: tl.constexpr, WORDS: tl.constexpr, PACKED: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Adds a tile, block by block, to the chunk's sums; hands back those of its rows, too."""
    SHIFT: tl.constexpr = not WORDS
    UNIT: tl.constexpr = 2 if WORDS else 1
    own, lines, later = (o, o, o, o), (every, every), ()
    sum_a, sum_b, sum_size, even, odd = every, every, every, every, every
    for block in tl.static_range(BLOCKS):
        a, b = tl.reshape(raw_a[block], every.shape), tl.reshape(raw_b[block], every.shape)
        if PACKED:
            size = a & 0x7FFF7FFF
            xs, ys = spread(a, one, every, every), spread(b, one ^ 0x80008000, every, every)  # a and -b
            offs = spread(a, one, ys[0], ys[1])
            sum_a, sum_b, sum_size = added(a, sum_a), added(b, sum_b), added(size, sum_size)
            even, odd = squared(b, even, odd)
        else:
            if WORDS:
                xs = (half(a, False, KIND_A)[0], half(a, True, KIND_A)[0])
                ys = (half(b, False, KIND_B)[0], half(b, True, KIND_B)[0])
            else:
                xs, ys = (value_of(a, KIND_A),), (value_of(b, KIND_B),)
            offs = (xs[0] - ys[0], xs[UNIT - 1] - ys[UNIT - 1])
        for i in tl.static_range(UNIT):
            own, largest, lines, col_error, col_reference = _add(
                xs[i], ys[i], offs[i], shift_a, shift_b, own, largest, lines,
                columns[2 * (block * UNIT + i)], columns[2 * (block * UNIT + i) + 1], SHIFT, PACKED,
            )  # fmt: skip
            later += (col_error, col_reference)  # type: ignore[assignment]
    if PACKED:  # the matrix unit rounds towards zero: no sum of it goes beyond a tile
        own = (tl.sum(sum_size, axis=2), tl.sum(sum_a, axis=2), tl.sum(sum_b, axis=2), own[3])
        squares += tl.where(tl.arange(0, 4)[None, None, :] < 2, even, odd)
    summed = ()
    for i in tl.static_range(4):
        summed += (sums[i] + own[i],)  # type: ignore[assignment]
    return summed, largest, squares, later, tl.sum(lines[0], axis=2), tl.sum(lines[1], axis=2)


@jit
def compare_pair(  # type: ignore[no-untyped-def]
    pa, pb, slab, row_norms, column_norms, flags, count, width, rows, tiles, segments,
    KIND_A: tl.constexpr, KIND_B: tl.constexpr, ALIGNED: tl.constexpr, WORDS: tl.constexpr, ASM: tl.constexpr,
    ROWED: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Leaves fields in `slab`, and the norms of error and reference: of rows by segment, of columns by slot."""
    UNIT: tl.constexpr = 2 if WORDS else 1
    SPAN: tl.constexpr = BLOCKS * 32 * UNIT
    VECTOR: tl.constexpr = 4 * UNIT if ALIGNED else 1
    SHIFT: tl.constexpr = not WORDS
    PACKED: tl.constexpr = ASM and WORDS and KIND_A == "bfloat16" and KIND_B == "bfloat16"
    pid, programs = tl.program_id(0), tl.num_programs(0)
    first, step, total = items_of(tiles, segments, COLUMNS)
    line, eight = tl.arange(0, ROWS)[:, None], tl.arange(0, 8)[None, :]

    # Sums of squares cancel when the mean is large beside the spread. 16-bit numbers have too few digits to suffer.
    shift_a, shift_b = 0.0, 0.0
    if SHIFT:
        tile, segment = place_of(first, segments, COLUMNS)
        spot = (tl.cast(tile, tl.int64) * ROWS + line) * width + segment * SPAN + tl.arange(0, 32)[None, :]
        known = (segment * SPAN + tl.arange(0, 32)[None, :] < width) & (spot < count)
        head_a = value_of(tl.load(pa + spot, mask=known, other=0), KIND_A)
        head_b = value_of(tl.load(pb + spot, mask=known, other=0), KIND_B)
        known = known & (tl.abs(head_a) < 1e30) & (tl.abs(head_b) < 1e30)
        number = tl.maximum(whole(known.to(tl.float32)), 1.0)
        shift_a = whole(tl.where(known, head_a / number, 0.0))
        shift_b = whole(tl.where(known, head_b / number, 0.0))

    field = slab + pid
    for empty in tl.static_range(8):
        tl.store(field + empty * _N, 0.0)  # NaN and Inf are exact.py's to count
    o = (line * 0 + eight * 0).to(tl.float32)
    every, places = tl.zeros([ROWS, 8, 4], tl.float32), tl.zeros([ROWS, 8, 4], tl.int32)
    one, columns = every, ()
    if PACKED:
        one = diagonal(places)
    for _empty in tl.static_range(2 * BLOCKS * UNIT):
        columns += (every,)  # type: ignore[assignment]
    pitch = tl.cast(width // VECTOR, tl.int64) * (VECTOR // UNIT)  # in words
    spots = line * pitch + tl.arange(0, 32)[None, :]
    from_a, from_b = pa, pb
    if WORDS:
        from_a, from_b = pa.to(tl.pointer_type(tl.uint32)), pb.to(tl.pointer_type(tl.uint32))
    if COLUMNS:
        ends = _ends(pid % segments, count, width, rows, ALIGNED, ROWED, BLOCKS, UNIT)
    for chunk in range(first, total, step * CHUNK):
        stop = tl.minimum(chunk + step * CHUNK, total)
        sums, largest, squares, c_error, c_reference = (o, o, o, o), o, every, o, o
        for item in tl.range(chunk, stop, step, num_stages=STAGES):
            tile, segment = place_of(item, segments, COLUMNS)
            if not COLUMNS:
                ends = _ends(segment, count, width, rows, ALIGNED, ROWED, BLOCKS, UNIT)
            base = tl.cast(tile, tl.int64) * (ROWS * pitch) + segment * (BLOCKS * 32)
            a, b = (), ()
            for block in tl.static_range(BLOCKS):
                spot = base + (spots + block * 32)
                if FULL:
                    a += (tl.load(from_a + spot),)  # type: ignore[assignment]
                    b += (tl.load(from_b + spot),)  # type: ignore[assignment]
                else:
                    inside = line + tile * ROWS < ends[block]
                    a += (tl.load(from_a + spot, mask=inside, other=0),)  # type: ignore[assignment]
                    b += (tl.load(from_b + spot, mask=inside, other=0),)  # type: ignore[assignment]
            sums, largest, squares, columns, error, reference = _tile(
                a, b, o, every, one, shift_a, shift_b, sums, largest, squares, columns,
                KIND_A, KIND_B, WORDS, PACKED, BLOCKS,
            )  # fmt: skip
            c_error += error
            c_reference += reference
            if ROWED:  # the error's norm from one of the eight threads of a row, the reference's from its neighbour
                error = tl.sum(error, axis=1, keep_dims=True) + o
                reference = tl.sum(reference, axis=1, keep_dims=True) + o
                at = (segment * tl.cast(tiles, tl.int64) + tile) * (ROWS * 2)
                norm = tl.sqrt(tl.where(eight == 0, error, reference))
                tl.store(row_norms + at + (line * 2 + eight), norm, mask=eight + line * 0 < 2)
        s_size, s_a, s_b, s_bb = sums
        if PACKED:
            s_size, s_a, s_b = s_size / 8, s_a / 8, s_b / 8
            s_bb = tl.sum(tl.where(on_diagonal(tl.arange(0, 4)[None, None, :] + places), squares, 0.0), axis=2)
        # NaN, Inf and overflow leave a sum that is not finite, numbers too small to square one near zero.
        sound = (c_error < 3e38) & (c_reference < 3e38) & (s_bb < 3e38)
        signs = tl.where(sound, 0, 1)
        signs |= tl.where(largest > 0, 2, 0) | tl.where(largest > _SMALL, 4, 0)
        signs |= tl.where(s_size > 0, 8, 0) | tl.where(s_size > _SMALL, 16, 0)
        signs |= tl.where(s_b != 0, 32, 0) | tl.where(tl.abs(s_b) > _SMALL, 64, 0)
        seen = tl.reduce(tl.reduce(signs, 1, _either), 0, _either)
        fine = (seen & 1 == 0) & ((seen >> 1) & 0b10101 == (seen >> 2) & 0b10101)
        tl.store(flags + (chunk - first) // (step * CHUNK) * programs + pid, 1 - fine.to(tl.int32))
        if fine:
            room_for = tl.cast((stop - chunk + step - 1) // step, tl.int64) * (ROWS * SPAN)
            if FULL:
                within = room_for
            else:
                within = _inside(chunk, stop, step, count, width, rows, segments, ROWED, COLUMNS, ROWS, SPAN)
            parts = (c_error, c_reference, s_a, s_b, s_bb)
            error_, reference_, a_, b_, bb_ = tl.reduce(tl.reduce(parts, 1, _plus), 0, _plus)
            x, y, yy = a_.to(tl.float64), b_.to(tl.float64), bb_.to(tl.float64)
            if SHIFT:  # places outside came as zeros, which are not zero when shifted
                outside = (room_for - within).to(tl.float64)
                sa, sb = shift_a.to(tl.float64), shift_b.to(tl.float64)  # type: ignore[attr-defined]
                x, y, yy = x + outside * sa, y + outside * sb, yy - outside * sb * sb
            add_to(field, within.to(tl.float64))
            add_to(field + 3 * _N, error_.to(tl.float64))
            add_to(field + 4 * _N, reference_.to(tl.float64))
            add_to(field + 5 * _N, x)
            add_to(field + 6 * _N, y)
            add_to(field + 7 * _N, yy)

    if COLUMNS:
        across = segments * SPAN
        both = (programs // segments) * across  # between the error's norms and the reference's
        column = (tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :]) * UNIT + (pid % segments) * SPAN
        norms = column_norms + (pid // segments) * across + column
        for place in tl.static_range(BLOCKS * UNIT):
            norm = norms + (place // UNIT) * (32 * UNIT) + place % UNIT
            tl.store(norm, tl.sqrt(tl.sum(columns[2 * place], axis=0)))
            tl.store(norm + both, tl.sqrt(tl.sum(columns[2 * place + 1], axis=0)))
    tl.store(field + 8 * _N, tl.cast(shift_a, tl.float64))
    tl.store(field + 9 * _N, tl.cast(shift_b, tl.float64))
    tl.store(field + 10 * _N, programs.to(tl.float64))
