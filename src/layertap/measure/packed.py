"""Numbers of 16 and of 8 bits, four at a time: one chunk of the fused kernel's fast path on a Hopper chip.

What is added up over many numbers goes through the tensor cores (fragments.py says how).
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, hash_of, jit, two
from layertap.measure.definition import LANES, ROW_SEED
from layertap.measure.fragments import (
    SIGNED_S8,
    SIGNED_U8,
    add_signed,
    lanes_back,
    permutation_of_bytes,
    weigh_bytes,
)

if FOUND:
    import triton.language as tl

    _L, _ROW_SEED = tl.constexpr(LANES), tl.constexpr(ROW_SEED)
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

FLOATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
BYTES = ("int8", "uint8", "bool")
MOST_ROWS = 64
"""Of a chunk of bytes: more could overflow the 32 bits in which a thread adds up halves of weights times bytes."""


@jit
def _three(ASM: tl.constexpr, left, right, total):  # type: ignore[no-untyped-def]
    """One instruction for the four numbers in each register, and a sum."""
    return tl.inline_asm_elementwise(ASM, "=r,r,r,r", [left, right, total], dtype=tl.uint32, is_pure=True, pack=1)


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
def _floats(bits, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two registers of a quad, two floats of 16 bits each."""
    if KIND == "float8_e4m3fn":
        x, y = tl.inline_asm_elementwise(_E4M3, "=r,=r,r", [bits], (tl.uint32, tl.uint32), True, 1)
    elif KIND == "float8_e5m2":  # the upper half of a float16
        x, y = tl.inline_asm_elementwise(_E5M2, "=r,=r,r", [bits], (tl.uint32, tl.uint32), True, 1)
    else:
        x, y = bits.to(tl.uint32), (bits >> 32).to(tl.uint32)
    return x, y


@jit
def _float(pair, ODD: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """One of the two floats in a register."""
    if KIND == "bfloat16":
        value = (pair & 0xFFFF0000 if ODD else pair << 16).to(tl.float32, bitcast=True)
    else:
        value = (pair >> 16 if ODD else pair & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return value


@jit
def _signed(value, weight):  # type: ignore[no-untyped-def]
    """With another sign where the weight's top bit is set."""
    return (value.to(tl.uint32, bitcast=True) ^ (weight & 0x80000000)).to(tl.float32, bitcast=True)


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
    SHIFTED: tl.constexpr,
):
    """Of whole tiles: sums of values, of squares of what they differ from `shift` by, of sizes; extremes, zeros.

    Where the mean is small beside the spread, `shift` is zero, and nothing is taken away.
    """
    SHORT: tl.constexpr = KIND == "bfloat16" or KIND == "float16"
    BF16: tl.constexpr = KIND == "bfloat16"
    TWO: tl.constexpr = "bf16x2" if BF16 else "f16x2"
    ZEROS: tl.constexpr = (
        "{ .reg .b32 t, z; mov.b32 z, 0; set.eq." + TWO + "." + TWO + " t, $2, z; add.rn." + TWO + " $0, $1, t; }"
    )
    group = tl.arange(0, GROUPS)
    live = (group < _L // 8)[:, None]
    words = x.to(tl.pointer_type(tl.uint64 if SHORT else tl.uint32)) + 2 * group[:, None] + tl.arange(0, 2)[None, :]

    sums = tl.zeros([GROUPS, 2], tl.float32)
    squares, sizes, lane0, lane1, lane2, lane3 = sums, sums, sums, sums, sums, sums
    prints = tl.zeros([GROUPS, 2], tl.uint64)
    none = tl.zeros([GROUPS, 2], tl.uint32)
    zeros, lower, upper = none, none, none
    low = tl.full([GROUPS, 2], 0x7F807F80 if BF16 else 0x7C007C00, tl.uint32)
    high = tl.full([GROUPS, 2], 0xFF80FF80 if BF16 else 0xFC00FC00, tl.uint32)
    hashes, done = _row_hashes(first, step, ROWS, GROUPS), 0
    for tile in tl.range(first, stop, step, num_stages=STAGES):
        if done == 32:
            hashes, done = _row_hashes(tile, step, ROWS, GROUPS), 0
        for row in tl.static_range(ROWS):
            row_hash = fetch(hashes, done + row)
            start = (tl.cast(tile, tl.int64) * ROWS + row) * (_L // 4)
            w0, w1, w2, w3 = row_hash * hash0, row_hash * hash1, row_hash * hash2, row_hash * hash3
            bits = tl.load(words + start, mask=live, other=0)
            x_, y_ = _floats(bits, KIND)
            if SHORT:
                prints = weigh(prints, w0, x_ & 0xFFFF)
                prints = weigh(prints, w1, x_ >> 16)
                prints = weigh(prints, w2, y_ & 0xFFFF)
                prints = weigh(prints, w3, y_ >> 16)
            else:
                lower, upper, _, _ = weigh_bytes(w0, w1, w2, w3, bits, lower, upper)
            v0, v1 = _float(x_, False, KIND), _float(x_, True, KIND)
            v2, v3 = _float(y_, False, KIND), _float(y_, True, KIND)
            lane0 += _signed(v0, w0)
            lane1 += _signed(v1, w1)
            lane2 += _signed(v2, w2)
            lane3 += _signed(v3, w3)
            sums = (((sums + v0) + v1) + v2) + v3
            sizes = (((sizes + tl.abs(v0)) + tl.abs(v1)) + tl.abs(v2)) + tl.abs(v3)
            if SHIFTED:
                v0, v1, v2, v3 = v0 - shift, v1 - shift, v2 - shift, v3 - shift
            squares = (((squares + v0 * v0) + v1 * v1) + v2 * v2) + v3 * v3
            low = two("min." + TWO + " $0, $1, $2;", two("min." + TWO + " $0, $1, $2;", low, x_), y_)
            high = two("max." + TWO + " $0, $1, $2;", two("max." + TWO + " $0, $1, $2;", high, x_), y_)
            zeros = two(ZEROS, two(ZEROS, zeros, x_), y_)
        done += ROWS
        if not SHORT:
            prints += lower.to(tl.uint64) + (upper.to(tl.uint64) << 16)
            lower, upper = none, none
    inside = group < _L // 8
    return (
        tl.sum(sums, axis=1),
        tl.where(inside, tl.sum(squares, axis=1), 0.0),
        tl.sum(sizes, axis=1),
        tl.min(tl.minimum(_float(low, False, KIND), _float(low, True, KIND)), axis=1),
        tl.max(tl.maximum(_float(high, False, KIND), _float(high, True, KIND)), axis=1),
        tl.where(inside, tl.sum(_float(zeros, False, KIND) + _float(zeros, True, KIND), axis=1).to(tl.int32), 0),
        tl.sum(prints, axis=1),
        tl.reshape(tl.join(tl.join(lane0, lane2), tl.join(lane1, lane3)), [GROUPS, 8]),
    )


@jit
def _upper_halves(even, odd):  # type: ignore[no-untyped-def]
    return two("prmt.b32 $0, $1, $2, 0x7632;", even, odd)


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
    INT8: tl.constexpr = KIND == "int8"
    PAIR: tl.constexpr = "s16x2" if INT8 else "u16x2"
    SIGNED: tl.constexpr = SIGNED_S8 if INT8 else SIGNED_U8
    DOT: tl.constexpr = "dp4a.s32.s32 $0, $1, $2, $3;" if INT8 else "dp4a.u32.u32 $0, $1, $2, $3;"
    group = tl.arange(0, GROUPS)
    live = (group < _L // 8)[:, None]
    place = group % 32
    none = tl.zeros([GROUPS, 2], tl.uint32)
    i0, i1, i2, i3 = permutation_of_bytes(place)
    ones = tl.full([GROUPS, 2], 0x01010101, tl.uint32)
    words = x.to(tl.pointer_type(tl.uint32)) + 2 * group[:, None] + tl.arange(0, 2)[None, :]

    sums, squares, sizes, filled, lower, upper = none, none, none, none, none, none
    zero = tl.zeros([GROUPS, 2], tl.int32)
    prints = tl.zeros([GROUPS, 2], tl.uint64)
    lane0, lane1, lane2, lane3 = zero, zero, zero, zero
    low = tl.full([GROUPS, 2], 0x7FFF7FFF if INT8 else 0xFFFFFFFF, tl.uint32)
    high = tl.full([GROUPS, 2], 0x80008000 if INT8 else 0, tl.uint32)
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
            word = tl.load(words + start, mask=live, other=0)
            lower, upper, sign0, sign1 = weigh_bytes(w0, w1, w2, w3, word, lower, upper)
            sums = _three(DOT, word, ones, sums)
            squares = _three(DOT, word, word, squares)
            if INT8:
                sizes = _three("vabsdiff4.u32.s32.s32.add $0, $1, $2, $3;", word, none, sizes)
            full = (((word & 0x7F7F7F7F) + 0x7F7F7F7F) | word) & 0x80808080
            filled = _three("dp4a.u32.u32 $0, $1, $2, $3;", full, ones, filled)
            lane0, lane1, lane2, lane3 = add_signed(
                SIGNED, word, word, sign0, sign1, i0, i1, i2, i3, lane0, lane1, lane2, lane3
            )
            # The upper byte of two decides; the lower one of each is shifted there.
            low = two("min." + PAIR + " $0, $1, $2;", two("min." + PAIR + " $0, $1, $2;", low, word), word << 8)
            high = two("max." + PAIR + " $0, $1, $2;", two("max." + PAIR + " $0, $1, $2;", high, word), word << 8)
        done += ROWS
        prints += lower.to(tl.uint64) + (upper.to(tl.uint64) << 16)
        lower, upper = none, none
    total = tl.sum(sums.to(tl.int32, bitcast=True), axis=1)
    return (
        total,
        tl.sum(squares.to(tl.int32, bitcast=True), axis=1),
        tl.sum(sizes.to(tl.int32, bitcast=True), axis=1) if INT8 else total,
        tl.min(tl.minimum(_upper(low, False, KIND), _upper(low, True, KIND)), axis=1),
        tl.max(tl.maximum(_upper(high, False, KIND), _upper(high, True, KIND)), axis=1),
        tl.where(group < _L // 8, 8 * rows, 0) - tl.sum((filled >> 7).to(tl.int32), axis=1),
        tl.sum(prints, axis=1),
        lanes_back(lane0, lane1, lane2, lane3, GROUPS),
    )


@jit
def _upper(pair, ODD: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The upper byte of one of two 16-bit integers."""
    top = pair if ODD else pair << 16
    if KIND == "int8":
        top = top.to(tl.int32, bitcast=True)
    return (top >> 24).to(tl.float32)
