"""Numbers of 16 and of 8 bits, four at a time: one chunk of the fused kernel's fast path on a Hopper chip.

Four neighbouring lanes are a quad: two registers of two 16-bit floats each (x, y), or one of four bytes. What is added
up over many of them goes through the tensor cores. With g = lane of the warp // 4 and t = lane % 4, a thread has, of a
product of 16 rows and 8 columns, columns 2t and 2t + 1 of rows g and g + 8; of the left factor its registers belong to
these rows, of the right one to column g. So a permutation times the data adds up each lane by itself, and where the
left factor is made of the same data, the diagonal has sums over a row's four threads. A tensor core cuts off what does
not fit in 24 bits, so its sums of 16-bit numbers begin at zero in each tile.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, hash_of, jit, two
from layertap.measure.definition import LANES, ROW_SEED

if FOUND:
    import triton.language as tl

    _L, _BIG, _ROW_SEED = tl.constexpr(LANES), tl.constexpr(float("inf")), tl.constexpr(ROW_SEED)

FLOATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
BYTES = ("int8", "uint8", "bool")

# Operands: results first, then what goes in; of an argument with two quads a thread, both.
_ADD_UP = "{ .reg .f32 t<4>; MMA {t0, t1, t2, t3}, {$8, $10, $12, $14}, {$4, $6}, {$16, $17, $18, $19}; "
_ADD_UP += "MMA {$0, $1, $2, $3}, {$8, $10, $12, $14}, {$5, $7}, {t0, t1, t2, t3}; }"
_SQUARES = (  # of x in the diagonal of rows g, then of y in that of rows g + 8
    "{ .reg .f32 t<4>, u<4>, v<4>, f; mov.f32 f, 0f00000000; "
    "MMA {t0, t1, t2, t3}, {$4, $6}, {$4}, {$8, $9, f, f}; MMA {$0, $1, u0, u1}, {$5, $7}, {$5}, {t0, t1, t2, t3}; "
    "MMA {v0, v1, v2, v3}, {$4, $6}, {$6}, {f, f, $10, $11}; MMA {u2, u3, $2, $3}, {$5, $7}, {$7}, {v0, v1, v2, v3}; }"
)
_SIGNED = (
    "{ .reg .b32 x, y; prmt.b32 x, $6, $7, 0x7632; prmt.b32 y, $8, $9, 0x7632; "
    "lop3.b32 x, $4, x, 0x80008000, 0x78; lop3.b32 y, $5, y, 0x80008000, 0x78; "  # a ^ (b & c)
    "MMA {$0, $1, $2, $3}, {$10, $11, $12, $13}, {x, y}, {$14, $15, $16, $17}; }"
)
# A byte with a minus is its complement less a byte of ones: -v = ~v - ~0, with and without a sign.
_SIGNED_BYTES = (
    "{ .reg .b32 x, y; prmt.b32 x, $6, $7, 0x00FB; prmt.b32 y, $8, $9, 0x00FB; prmt.b32 y, x, y, 0x5410; "
    "xor.b32 x, $4, y; MMA {$0, $1, $2, $3}, {$10, $11, $12, $13}, {x, y}, {$14, $15, $16, $17}; }"
)
# Each lane's sum back to the thread that has the lane.
_OWN = (
    "{ .reg .b32 a, b, s, o, r<4>; .reg .pred p; mov.u32 a, %laneid; shr.u32 s, a, 3; and.b32 b, a, 4; "
    "setp.ne.u32 p, b, 0; and.b32 a, a, 3; shl.b32 a, a, 3; add.u32 s, s, a; add.u32 o, s, 4; "
    + "".join(
        f"shfl.sync.idx.b32 a, ${at}, {source}, 31, -1; shfl.sync.idx.b32 b, ${at + 1}, {source}, 31, -1; "
        f"selp.b32 r{i}, b, a, p; "
        for i, (at, source) in enumerate(((4, "s"), (4, "o"), (6, "s"), (6, "o")))
    )
    + "mov.b32 $0, r0; mov.b32 $1, r1; mov.b32 $2, r2; mov.b32 $3, r3; }"
)


def _for(text: str, kind: str) -> str:
    one = {"bf16": "0x3F803F80", "f16": "0x3C003C00"}.get(kind, "")
    shape = f"m16n8k16.row.col.f32.{kind}.{kind}.f32" if one else f"m16n8k32.row.col.s32.s8.{kind}.s32"
    return text.replace("MMA", f"mma.sync.aligned.{shape}").replace("ONE", one)


if FOUND:
    _ADD_UP_BF16, _ADD_UP_F16 = tl.constexpr(_for(_ADD_UP, "bf16")), tl.constexpr(_for(_ADD_UP, "f16"))
    _SIGNED_BF16, _SIGNED_F16 = tl.constexpr(_for(_SIGNED, "bf16")), tl.constexpr(_for(_SIGNED, "f16"))
    _SIGNED_S8, _SIGNED_U8 = tl.constexpr(_for(_SIGNED_BYTES, "s8")), tl.constexpr(_for(_SIGNED_BYTES, "u8"))
    _SQUARES_F16, _LANES_BACK = tl.constexpr(_for(_SQUARES, "f16").replace("k16", "k8")), tl.constexpr(_OWN)
    _FETCH = tl.constexpr("shfl.sync.idx.b32 $0, $1, $2, 31, -1;")
    _MAD = tl.constexpr(
        "{ .reg .b32 l, h; mov.b64 {l, h}, $3; "
        "mad.lo.cc.u32 l, $1, $2, l; madc.hi.u32 h, $1, $2, h; mov.b64 $0, {l, h}; }"
    )
    _E4M3 = tl.constexpr(
        "{ .reg .b16 a, b; .reg .b32 x; mov.b32 {a, b}, $2; cvt.rn.f16x2.e4m3x2 x, a; cvt.rn.f16x2.e4m3x2 $1, b; "
        "mov.b32 $0, x; }"
    )
    _E5M2 = tl.constexpr("{ .reg .b32 x; prmt.b32 x, $2, 0, 0x1404; prmt.b32 $1, $2, 0, 0x3424; mov.b32 $0, x; }")


@jit
def _three(ASM: tl.constexpr, left, right, total):  # type: ignore[no-untyped-def]
    """One instruction for the four numbers in each register, and a sum."""
    return tl.inline_asm_elementwise(ASM, "=r,r,r,r", [left, right, total], dtype=tl.uint32, is_pure=True, pack=1)


@jit
def _byte(word, SELECT: tl.constexpr):  # type: ignore[no-untyped-def]
    text: tl.constexpr = "prmt.b32 $0, $1, 0, " + SELECT + ";"
    return tl.inline_asm_elementwise(text, "=r,r", [word], dtype=tl.uint32, is_pure=True, pack=1)


@jit
def weigh(prints, weight, word):  # type: ignore[no-untyped-def]
    """Adds a product of 64 bits. Written out: triton would add up trees of them, which takes twice as long."""
    return tl.inline_asm_elementwise(_MAD, "=l,r,r,l", [weight, word, prints], dtype=tl.uint64, is_pure=True, pack=1)


@jit
def _row_hashes(first, step, ROWS: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """In each warp the hashes of the next 32 rows: every thread would else make all of them."""
    at = tl.arange(0, GROUPS) % 32
    return hash_of((first + at // ROWS * step) * ROWS + at % ROWS, _ROW_SEED)


@jit
def fetch(hashes, at):  # type: ignore[no-untyped-def]
    """One of the 32 hashes that a warp has."""
    at, _ = tl.broadcast(tl.cast(at, tl.uint32), hashes)
    return tl.inline_asm_elementwise(_FETCH, "=r,r,r", [hashes, at], dtype=tl.uint32, is_pure=True, pack=1)[:, None]


@jit
def _quad(bits, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The four fingerprint words of each quad, and its two registers of two floats (of bytes, the register twice)."""
    x, y = bits.to(tl.uint32), (bits >> 32).to(tl.uint32) if bits.dtype == tl.uint64 else bits
    if bits.dtype == tl.uint64:
        b0, b1, b2, b3 = x & 0xFFFF, x >> 16, y & 0xFFFF, y >> 16
    else:
        b0, b1, b2, b3 = bits & 0xFF, _byte(bits, "0x4441"), _byte(bits, "0x4442"), bits >> 24
    if KIND == "float8_e4m3fn":
        x, y = tl.inline_asm_elementwise(_E4M3, "=r,=r,r", [bits], (tl.uint32, tl.uint32), True, 1)
    elif KIND == "float8_e5m2":  # the upper half of a float16
        x, y = tl.inline_asm_elementwise(_E5M2, "=r,=r,r", [bits], (tl.uint32, tl.uint32), True, 1)
    return b0, b1, b2, b3, x, y


@jit
def _float(pair, ODD: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of the two floats in a register."""
    if KIND == "bfloat16":
        value = (pair & 0xFFFF0000 if ODD else pair << 16).to(tl.float32, bitcast=True)
    else:
        value = (pair >> 16 if ODD else pair & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return value


@jit
def _squared(pair, shift, squares, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    even, odd = _float(pair, False, KIND) - shift, _float(pair, True, KIND) - shift
    return squares + even * even + odd * odd


@jit
def _permutation(one, number):  # type: ignore[no-untyped-def]
    """The left factor that leaves each lane to itself. `number` is not negative, but that is unknown to the compiler.

    Else it would see a zero and a copy, and write them anew into the four registers of each product.
    """
    number = number.to(tl.uint32, bitcast=True)
    return one, one & (number >> 31), one & (number >> 30), one | (number >> 31)


@jit
def _add_up(ASM: tl.constexpr, x, y, i0, i1, i2, i3, a, b):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        ASM,
        "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,r,r,f,f,f,f",
        [x, y, i0, i1, i2, i3, a, b],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=2,
    )


@jit
def _signed(ASM: tl.constexpr, x, y, w0, w1, w2, w3, i0, i1, i2, i3, a, b, c, d):  # type: ignore[no-untyped-def]
    """Adds the quads, with their weights' signs, to the sums of the lanes."""
    KINDS: tl.constexpr = (
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r,r,r" if a.dtype == tl.int32 else "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,f,f,f,f"
    )
    return tl.inline_asm_elementwise(
        ASM,
        KINDS,
        [x, y, w0, w1, w2, w3, i0, i1, i2, i3, a, b, c, d],
        dtype=(a.dtype, a.dtype, a.dtype, a.dtype),
        is_pure=True,
        pack=1,
    )


@jit
def _sketch(a, b, c, d, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The lanes' sums, each back in the thread that has the lane."""
    a, b, c, d = tl.inline_asm_elementwise(
        _LANES_BACK,
        "=f,=f,=f,=f,f,f,f,f",
        [a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32)],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [GROUPS, 8])


@jit
def float_chunk(  # type: ignore[no-untyped-def]
    x,
    first,
    stop,
    step,
    hash0,
    hash1,
    hash2,
    hash3,
    shift,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Of whole tiles: sums of values, of squares of what they differ from `shift` by, of sizes; extremes, zeros."""
    SHORT: tl.constexpr = KIND == "bfloat16" or KIND == "float16"
    TWO: tl.constexpr = "bf16x2" if KIND == "bfloat16" else "f16x2"
    ZEROS: tl.constexpr = (
        "{ .reg .b32 t, z; mov.b32 z, 0; set.eq." + TWO + "." + TWO + " t, $2, z; add.rn." + TWO + " $0, $1, t; }"
    )
    ADD_UP: tl.constexpr = _ADD_UP_BF16 if KIND == "bfloat16" else _ADD_UP_F16
    SIGNED: tl.constexpr = _SIGNED_BF16 if KIND == "bfloat16" else _SIGNED_F16
    group = tl.arange(0, GROUPS)
    live = (group < _L // 8)[:, None]
    g, t = group % 32 // 4, group % 4
    nothing = tl.zeros([GROUPS, 2], tl.float32)
    one = tl.where(t == g // 2, (0x3F80 if KIND == "bfloat16" else 0x3C00) << (16 * (g % 2)), 0)
    i0, i1, i2, i3 = _permutation(one.to(tl.uint32)[:, None], stop)
    words = x.to(tl.pointer_type(tl.uint64 if SHORT else tl.uint32)) + 2 * group[:, None] + tl.arange(0, 2)[None, :]

    sum1 = tl.zeros([GROUPS], tl.float32)
    sum_abs = sum1
    squares, t_squares, t_extra = nothing, nothing, nothing
    t_sums, t_more, t_sizes, t_others = nothing, nothing, nothing, nothing
    t0, t1, t2, t3 = nothing, nothing, nothing, nothing
    lane0, lane1, lane2, lane3 = nothing, nothing, nothing, nothing
    prints = tl.zeros([GROUPS, 2], tl.uint64)
    zeros = tl.zeros([GROUPS, 2], tl.uint32)
    low = tl.full([GROUPS, 2], 0x7F807F80 if KIND == "bfloat16" else 0x7C007C00, tl.uint32)
    high = tl.full([GROUPS, 2], 0xFF80FF80 if KIND == "bfloat16" else 0xFC00FC00, tl.uint32)
    hashes, done = _row_hashes(first, step, ROWS, GROUPS), 0
    for tile in tl.range(first, stop, step, num_stages=STAGES):
        if done == 32:
            hashes, done = _row_hashes(tile, step, ROWS, GROUPS), 0
        for row in tl.static_range(ROWS):
            row_hash = fetch(hashes, done + row)
            start = (tl.cast(tile, tl.int64) * ROWS + row) * (_L // 4)
            w0, w1, w2, w3 = row_hash * hash0, row_hash * hash1, row_hash * hash2, row_hash * hash3
            b0, b1, b2, b3, x_, y_ = _quad(tl.load(words + start, mask=live, other=0), KIND)
            prints = weigh(prints, w0, b0)
            prints = weigh(prints, w1, b1)
            prints = weigh(prints, w2, b2)
            prints = weigh(prints, w3, b3)
            t_sums, t_more = _add_up(ADD_UP, x_, y_, i0, i1, i2, i3, t_sums, t_more)
            t_sizes, t_others = _add_up(ADD_UP, x_ & 0x7FFF7FFF, y_ & 0x7FFF7FFF, i0, i1, i2, i3, t_sizes, t_others)
            if SHORT:
                squares = _squared(y_, shift, _squared(x_, shift, squares, KIND), KIND)
            else:
                t_squares, t_extra = tl.inline_asm_elementwise(
                    _SQUARES_F16,
                    "=f,=f,=f,=f,r,r,r,r,f,f,f,f",
                    [x_, y_, t_squares, t_extra],
                    dtype=(tl.float32, tl.float32),
                    is_pure=True,
                    pack=2,
                )
            t0, t1, t2, t3 = _signed(SIGNED, x_, y_, w0, w1, w2, w3, i0, i1, i2, i3, t0, t1, t2, t3)
            low = two("min." + TWO + " $0, $1, $2;", two("min." + TWO + " $0, $1, $2;", low, x_), y_)
            high = two("max." + TWO + " $0, $1, $2;", two("max." + TWO + " $0, $1, $2;", high, x_), y_)
            zeros = two(ZEROS, two(ZEROS, zeros, x_), y_)
        done += ROWS
        if SHORT:  # numbers of 8 bits have so few digits that nothing is cut off
            sum1 += tl.sum(t_sums + t_more, axis=1)
            sum_abs += tl.sum(t_sizes + t_others, axis=1)
            t_sums, t_more, t_sizes, t_others = nothing, nothing, nothing, nothing
            lane0 += t0
            lane1 += t1
            lane2 += t2
            lane3 += t3
            t0, t1, t2, t3 = nothing, nothing, nothing, nothing
    if not SHORT:
        squares = tl.where((2 * t)[:, None] + tl.arange(0, 2)[None, :] == g[:, None], t_squares + t_extra, 0.0)
        sum1, sum_abs = tl.sum(t_sums + t_more, axis=1), tl.sum(t_sizes + t_others, axis=1)
        lane0, lane1, lane2, lane3 = t0, t1, t2, t3
    return (
        sum1,
        tl.sum(squares, axis=1),
        sum_abs,
        tl.min(tl.minimum(_float(low, False, KIND), _float(low, True, KIND)), axis=1),
        tl.max(tl.maximum(_float(high, False, KIND), _float(high, True, KIND)), axis=1),
        tl.sum(_float(zeros, False, KIND) + _float(zeros, True, KIND), axis=1).to(tl.int32),
        tl.sum(prints, axis=1),
        _sketch(lane0, lane1, lane2, lane3, GROUPS),
    )


@jit
def byte_chunk(  # type: ignore[no-untyped-def]
    x,
    first,
    stop,
    step,
    hash0,
    hash1,
    hash2,
    hash3,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """The same of integers of one byte, exactly."""
    SIGN: tl.constexpr = "s32.s32" if KIND == "int8" else "u32.u32"
    PAIR: tl.constexpr = "s16x2" if KIND == "int8" else "u16x2"
    SIGNED: tl.constexpr = _SIGNED_S8 if KIND == "int8" else _SIGNED_U8
    DOT: tl.constexpr = "dp4a." + SIGN + " $0, $1, $2, $3;"
    group = tl.arange(0, GROUPS)
    live = (group < _L // 8)[:, None]
    g, t = group % 32 // 4, group % 4
    none = tl.zeros([GROUPS, 2], tl.uint32)
    one = tl.where(t == g // 2, 1 << (8 * (g % 2)), 0)
    i0 = one.to(tl.uint32)[:, None]
    i1, i2, i3 = i0 << 16, i0 * 255, i0 * 255 << 16  # the upper half of the right factor is taken away
    words = x.to(tl.pointer_type(tl.uint32)) + 2 * group[:, None] + tl.arange(0, 2)[None, :]
    ones = tl.full([GROUPS, 2], 0x01010101, tl.uint32)

    sums, squares, sizes, filled = none, none, none, none
    lane0 = tl.zeros([GROUPS, 2], tl.int32)
    lane1, lane2, lane3 = lane0, lane0, lane0
    prints = tl.zeros([GROUPS, 2], tl.uint64)
    low = tl.full([GROUPS, 2], 0x7FFF7FFF if KIND == "int8" else 0xFFFFFFFF, tl.uint32)
    high = tl.full([GROUPS, 2], 0x80008000 if KIND == "int8" else 0, tl.uint32)
    rows = tl.cast(0, tl.int32)
    hashes, done = _row_hashes(first, step, ROWS, GROUPS), 0
    for tile in tl.range(first, stop, step, num_stages=STAGES):
        if done == 32:
            hashes, done = _row_hashes(tile, step, ROWS, GROUPS), 0
        rows += ROWS
        for row in tl.static_range(ROWS):
            row_hash = fetch(hashes, done + row)
            start = (tl.cast(tile, tl.int64) * ROWS + row) * (_L // 4)
            w0, w1, w2, w3 = row_hash * hash0, row_hash * hash1, row_hash * hash2, row_hash * hash3
            b0, b1, b2, b3, word, _ = _quad(tl.load(words + start, mask=live, other=0), KIND)
            prints = weigh(prints, w0, b0)
            prints = weigh(prints, w1, b1)
            prints = weigh(prints, w2, b2)
            prints = weigh(prints, w3, b3)
            sums = _three(DOT, word, ones, sums)
            squares = _three(DOT, word, word, squares)
            if KIND == "int8":
                sizes = _three(DOT, word, _byte(word, "0xBA98") | 0x01010101, sizes)  # 1 or -1 in each byte
            filled = _three(
                "dp4a.u32.u32 $0, $1, $2, $3;", (((word & 0x7F7F7F7F) + 0x7F7F7F7F) | word) & 0x80808080, ones, filled
            )
            lane0, lane1, lane2, lane3 = _signed(
                SIGNED, word, word, w0, w1, w2, w3, i0, i1, i2, i3, lane0, lane1, lane2, lane3
            )
            # The upper byte of two decides; the lower one of each is shifted there.
            low = two("min." + PAIR + " $0, $1, $2;", two("min." + PAIR + " $0, $1, $2;", low, word), word << 8)
            high = two("max." + PAIR + " $0, $1, $2;", two("max." + PAIR + " $0, $1, $2;", high, word), word << 8)
        done += ROWS
    if KIND != "int8":
        sizes = sums
    return (
        tl.sum(sums.to(tl.int32, bitcast=True), axis=1),
        tl.sum(squares.to(tl.int32, bitcast=True), axis=1),
        tl.sum(sizes.to(tl.int32, bitcast=True), axis=1),
        tl.min(tl.minimum(_upper(low, False, KIND), _upper(low, True, KIND)), axis=1),
        tl.max(tl.maximum(_upper(high, False, KIND), _upper(high, True, KIND)), axis=1),
        8 * rows - tl.sum((filled >> 7).to(tl.int32), axis=1),
        tl.sum(prints, axis=1),
        _sketch(lane0, lane1, lane2, lane3, GROUPS),
    )


@jit
def _upper(pair, ODD: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The upper byte of one of two 16-bit integers."""
    top = pair if ODD else pair << 16
    if KIND == "int8":
        top = top.to(tl.int32, bitcast=True)
    return (top >> 24).to(tl.float32)
