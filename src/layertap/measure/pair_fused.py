"""The pair kernel's fast path: what one program does with its tiles of two tensors; pair_kernel.py launches it.

A tile is ROWS rows of a segment of columns, as [BLOCKS, ROWS, 8, 4] words: eight threads share a row, each loads 16
bytes of every block, so the sums over a row need three exchanges, and those over columns none before the end. After a
chunk of tiles one flag tells whether all was finite and of ordinary size; if not, pair_exact.py reads it again. Triton
chooses which thread has which element: where that goes wrong (see bits.FLIP), the kernel is right, but slow.
"""

from __future__ import annotations

from layertap.measure.bits import FLIP, FOUND, half, jit, two, value_of

if FOUND:
    import triton.language as tl

MOST = 1024
"""Programs at most, and the stride of a field."""
FIELDS = (
    *("finite", "close", "nan_mismatch", "inf_mismatch", "nonfinite", "max_abs", "max_relative", "max_ulp", "sum_abs"),
    *("sum_relative", "error", "reference", "reference_abs", "a", "b", "aa", "bb", "ab", "shift_a", "shift_b"),
    "programs",
)
"""What each program leaves, as f64; the last says how many there were. Sums of a, b and their products are about the
shifts; max_ulp is in units of 2^exponent of the reference."""

if FOUND:
    _N = tl.constexpr(MOST)
    _SMALL = tl.constexpr(1e-15)  # squares of less lose digits, or vanish
    _FLIP, _THREADS = tl.constexpr(FLIP), tl.constexpr(0 if FLIP else 1)  # the threads' axis, of what _own leaves
    _UNIT = tl.constexpr(2.0**62)  # what fast ulps are short by, lest they overflow


@jit
def _inverse(x, ASM: tl.constexpr):  # type: ignore[no-untyped-def]
    """One instruction, good to one ulp; a division takes ten."""
    if ASM:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return 1.0 / x


@jit
def _above(x, y, ASM: tl.constexpr):  # type: ignore[no-untyped-def]
    """1.0 where x > y, else 0.0."""
    if ASM:
        return tl.inline_asm_elementwise(
            "set.gt.f32.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, is_pure=True, pack=1
        )
    return tl.where(x > y, 1.0, 0.0)


@jit
def _own(x):  # type: ignore[no-untyped-def]
    """The sum over a thread's own elements of a tile."""
    return tl.sum(tl.sum(x, axis=3), axis=2 if _FLIP else 0)


@jit
def _most(x):  # type: ignore[no-untyped-def]
    return tl.max(tl.max(x, axis=3), axis=2 if _FLIP else 0)


@jit
def whole(x):  # type: ignore[no-untyped-def]
    return tl.sum(tl.sum(x, axis=1), axis=0)


@jit
def top(x):  # type: ignore[no-untyped-def]
    return tl.max(tl.max(x, axis=1), axis=0)


@jit
def _add(  # type: ignore[no-untyped-def]
    a, b, eps, rtol, room, least, shift_a, shift_b, sums, tops, lines,
    SHIFT: tl.constexpr, ULP: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Adds the elements a, b of a tile to the chunk's sums: nothing here checks for NaN, all of it lets NaN through."""
    n_far, s_abs, s_rel, s_size, s_a, s_b, s_aa, s_bb, s_ab = sums
    t_abs, t_rel, t_ulp = tops
    error, reference, col_error, col_reference = lines
    off = a - b
    d, size = tl.abs(off), tl.abs(a)
    scale = size + eps
    relative = d * _inverse(scale, ASM)
    n_far += _own(_above(d, scale * rtol + room, ASM))
    s_abs += _own(d)
    s_rel += _own(relative)
    t_abs = tl.maximum(t_abs, _most(d))
    t_rel = tl.maximum(t_rel, _most(relative))
    if ULP:  # times the inverse of the step at a
        turned = 0x60000000 - (tl.maximum(size, least).to(tl.uint32, bitcast=True) & 0x7F800000)
        t_ulp = tl.maximum(t_ulp, _most(d * turned.to(tl.float32, bitcast=True)))
    error += _own(off * off)
    col_error += off * off
    col_reference += a * a
    reference += _own(a * a)
    s_size += _own(size)
    if SHIFT:
        a -= shift_a
        b -= shift_b
        s_aa += _own(a * a)
    s_a += _own(a)
    s_b += _own(b)
    s_bb += _own(b * b)
    s_ab += _own(a * b)
    sums = (n_far, s_abs, s_rel, s_size, s_a, s_b, s_aa, s_bb, s_ab)
    return sums, (t_abs, t_rel, t_ulp), (error, reference, col_error, col_reference)


@jit
def _ulps(a, b, most):  # type: ignore[no-untyped-def]
    """The ulps of two bfloat16 pairs at a time; beyond 256 steps they come out rounded to 8 bits."""
    d = two("sub.rn.bf16x2 $0, $1, $2;", a, b) & 0x7FFF7FFF
    size = two("max.u16x2 $0, $1, $2;", a & 0x7F807F80, tl.full(a.shape, 0x00800080, tl.uint32))
    steps = two("mul.rn.bf16x2 $0, $1, $2;", d, 0x60006000 - size)
    return two("max.NaN.bf16x2 $0, $1, $2;", most, steps)


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
def compare_pair(  # type: ignore[no-untyped-def]
    pa, pb, slab, row_norms, column_norms, flags, count, width, rows, tiles, segments, eps, rtol, atol, least,
    KIND_A: tl.constexpr, KIND_B: tl.constexpr, ALIGNED: tl.constexpr, WORDS: tl.constexpr, ASM: tl.constexpr,
    ROWED: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Leaves fields in `slab`, and the norms of error and reference: of rows by segment, of columns by slot."""
    UNIT: tl.constexpr = 2 if WORDS else 1
    SPAN: tl.constexpr = BLOCKS * 32 * UNIT
    SHIFT: tl.constexpr = not WORDS
    PACKED: tl.constexpr = ASM and WORDS and KIND_A == "bfloat16" and KIND_B == "bfloat16"
    pid, programs = tl.program_id(0), tl.num_programs(0)
    first, step, total = items_of(tiles, segments, COLUMNS)
    line = tl.arange(0, ROWS)
    if _FLIP:
        block, thread = tl.arange(0, BLOCKS)[None, None, :, None], tl.arange(0, 8)[:, None, None, None]
        mine, eight = line[None, :], tl.arange(0, 8)[:, None]
    else:
        block, thread = tl.arange(0, BLOCKS)[:, None, None, None], tl.arange(0, 8)[None, None, :, None]
        mine, eight = line[:, None], tl.arange(0, 8)[None, :]
    word = tl.arange(0, 4)[None, None, None, :]
    room = atol - eps * rtol

    # Sums of products cancel when the mean is large beside the spread. 16-bit numbers have too few digits to suffer.
    shift_a, shift_b = 0.0, 0.0
    if SHIFT:
        tile, segment = place_of(first, segments, COLUMNS)
        spot = (tl.cast(tile, tl.int64) * ROWS + line[:, None]) * width + segment * SPAN + tl.arange(0, 32)[None, :]
        known = (segment * SPAN + tl.arange(0, 32)[None, :] < width) & (spot < count)
        head_a = value_of(tl.load(pa + spot, mask=known, other=0), KIND_A)
        head_b = value_of(tl.load(pb + spot, mask=known, other=0), KIND_B)
        known = known & (tl.abs(head_a) < 1e30) & (tl.abs(head_b) < 1e30)
        number = tl.maximum(whole(known.to(tl.float32)), 1.0)
        shift_a = whole(tl.where(known, head_a / number, 0.0))
        shift_b = whole(tl.where(known, head_b / number, 0.0))

    n_good, n_close = tl.cast(0, tl.int64), tl.cast(0, tl.int64)
    o = (mine * 0 + eight * 0).to(tl.float32)
    z = o.to(tl.float64)
    f_abs, f_rel, f_size, f_a, f_b, f_aa, f_bb, f_ab, f_error, f_reference = z, z, z, z, z, z, z, z, z, z
    m_abs, m_rel, m_ulp = o, o, o
    every = block * 0 + line[None, :, None, None] * 0 + thread * 0 + word * 0
    col_e = every.to(tl.float32)
    col_e2, col_r, col_r2 = col_e, col_e, col_e
    for chunk in range(first, total, step * CHUNK):
        stop = tl.minimum(chunk + step * CHUNK, total)
        sums, tops = (o, o, o, o, o, o, o, o, o), (o, o, o)
        packed = every.to(tl.uint32)
        c_error, c_reference = o, o
        within = tl.cast(0, tl.int64)  # elements, of those that the tiles have room for
        for item in range(chunk, stop, step):
            tile, segment = place_of(item, segments, COLUMNS)
            row = tl.cast(tile, tl.int64) * ROWS + line[None, :, None, None]
            vector = (segment * BLOCKS + block) * 8 + thread
            if ALIGNED:  # a vector is inside or not as a whole
                place = (row * (width // (4 * UNIT)) + vector) * 4 + word
                inside = (vector * (4 * UNIT) < width) & (row * width + vector * (4 * UNIT) < count)
            else:
                place = row * width + vector * 4 + word
                inside = (vector * 4 + word < width) & (place < count)
            if ROWED:
                tall = tl.minimum(rows - tile * ROWS, ROWS).to(tl.int64)
                within += tall * tl.minimum(width - segment * SPAN, SPAN)
            else:
                within += tl.minimum(count - tl.cast(tile, tl.int64) * (ROWS * SPAN), ROWS * SPAN)
            lines = (o, o, col_e, col_r)
            if WORDS:
                a = tl.load(pa.to(tl.pointer_type(tl.uint32)) + place, mask=inside, other=0)
                b = tl.load(pb.to(tl.pointer_type(tl.uint32)) + place, mask=inside, other=0)
                sums, tops, lines = _add(
                    half(a, False, KIND_A)[0], half(b, False, KIND_B)[0],
                    eps, rtol, room, least, shift_a, shift_b, sums, tops, lines, SHIFT, not PACKED, ASM,
                )  # fmt: skip
                col_e, col_r = lines[2], lines[3]
                lines = (lines[0], lines[1], col_e2, col_r2)
                sums, tops, lines = _add(
                    half(a, True, KIND_A)[0], half(b, True, KIND_B)[0],
                    eps, rtol, room, least, shift_a, shift_b, sums, tops, lines, SHIFT, not PACKED, ASM,
                )  # fmt: skip
                col_e2, col_r2 = lines[2], lines[3]
                if PACKED:
                    packed = _ulps(a, b, packed)
            else:
                a = value_of(tl.load(pa + place, mask=inside, other=0), KIND_A)
                b = value_of(tl.load(pb + place, mask=inside, other=0), KIND_B)
                sums, tops, lines = _add(
                    a, b, eps, rtol, room, least, shift_a, shift_b, sums, tops, lines, SHIFT, True, ASM
                )
                col_e, col_r = lines[2], lines[3]
            c_error += lines[0]
            c_reference += lines[1]
            if ROWED:
                at = (tl.cast(tile, tl.int64) * ROWS + mine + eight * 0) * segments + segment
                there = (tile * ROWS + mine < rows) & (eight == 0)  # in this shape no thread needs another's address
                norms = tl.sqrt(tl.sum(lines[0], axis=_THREADS, keep_dims=True)) + o
                tl.store(row_norms + at, norms, mask=there)
                norms = tl.sqrt(tl.sum(lines[1], axis=_THREADS, keep_dims=True)) + o
                tl.store(row_norms + tl.cast(rows, tl.int64) * segments + at, norms, mask=there)
        n_far, s_abs, s_rel, s_size, s_a, s_b, s_aa, s_bb, s_ab = sums
        t_abs, t_rel, t_ulp = tops
        if PACKED:
            t_ulp = _most(tl.maximum(half(packed, False, "bfloat16")[0], half(packed, True, "bfloat16")[0]))
        # NaN, Inf and overflow leave a sum or a maximum that is not finite, numbers too small to square one near zero.
        sound = (c_error < 3e38) & (c_reference < 3e38) & (s_bb < 3e38) & (s_rel < 3e38) & (t_ulp < 3e38)
        t, u, v = top(t_abs), top(s_size), top(tl.abs(s_b))
        ordinary = ((t == 0) | (t > _SMALL)) & ((u == 0) | (u > _SMALL)) & ((v == 0) | (v > _SMALL))
        fine = (tl.min(tl.min(sound.to(tl.int32), axis=1), axis=0) == 1) & ordinary
        tl.store(flags + (chunk - first) // (step * CHUNK) * programs + pid, 1 - fine.to(tl.int32))
        if fine:
            visits = (stop - chunk + step - 1) // step
            n_good += within
            n_close += within - whole(n_far).to(tl.int64)
            f_abs += s_abs
            f_rel += s_rel
            f_size += s_size
            f_a += s_a
            f_b += s_b
            f_aa += s_aa
            f_bb += s_bb
            f_ab += s_ab
            f_error += c_error
            f_reference += c_reference
            if SHIFT:  # places outside came as zeros, which are not zero when shifted; one thread takes that back
                outside = (tl.cast(visits, tl.int64) * (ROWS * SPAN) - within).to(tl.float64)
                sa, sb = shift_a.to(tl.float64), shift_b.to(tl.float64)  # type: ignore[attr-defined]
                one = (mine + eight == 0).to(tl.float64) * outside
                f_a += one * sa
                f_b += one * sb
                f_aa -= one * (sa * sa)
                f_bb -= one * (sb * sb)
                f_ab -= one * (sa * sb)
            m_abs = tl.maximum(m_abs, t_abs)
            m_rel = tl.maximum(m_rel, t_rel)
            m_ulp = tl.maximum(m_ulp, t_ulp)

    if COLUMNS:
        across = segments * SPAN
        both = (programs // segments) * across  # between the error's norms and the reference's
        if _FLIP:
            column = tl.arange(0, BLOCKS)[None, :, None] * 8 + tl.arange(0, 8)[:, None, None]
        else:
            column = tl.arange(0, BLOCKS)[:, None, None] * 8 + tl.arange(0, 8)[None, :, None]
        column = (column * 4 + tl.arange(0, 4)[None, None, :]) * UNIT + (pid % segments) * SPAN
        spots = column_norms + (pid // segments) * across + column
        tl.store(spots, tl.sqrt(tl.sum(col_e, axis=1)))
        tl.store(spots + both, tl.sqrt(tl.sum(col_r, axis=1)))
        if WORDS:
            tl.store(spots + 1, tl.sqrt(tl.sum(col_e2, axis=1)))
            tl.store(spots + both + 1, tl.sqrt(tl.sum(col_r2, axis=1)))
    field = slab + pid
    tl.store(field, n_good.to(tl.float64))
    tl.store(field + _N, n_close.to(tl.float64))
    for empty in tl.static_range(2, 5):
        tl.store(field + empty * _N, 0.0)  # NaN and Inf are pair_exact.py's to count
    tl.store(field + 5 * _N, top(m_abs).to(tl.float64))
    tl.store(field + 6 * _N, top(m_rel).to(tl.float64))
    tl.store(field + 7 * _N, top(m_ulp).to(tl.float64) * _UNIT)
    if not SHIFT:
        f_aa = f_reference
    wholes = (f_abs, f_rel, f_error, f_reference, f_size, f_a, f_b, f_aa, f_bb, f_ab)
    for i in tl.static_range(10):
        tl.store(field + (8 + i) * _N, whole(wholes[i]))
    tl.store(field + 18 * _N, tl.cast(shift_a, tl.float64))
    tl.store(field + 19 * _N, tl.cast(shift_b, tl.float64))
    tl.store(field + 20 * _N, programs.to(tl.float64))
