"""Numbers of 16 and of 8 bits, two or four in a register: one chunk of the fused kernel's fast path on a Hopper chip.

A thread has eight neighbouring lanes. It fetches each row a tile ahead, into the registers that it has just read, so
warps wait neither for memory nor for each other, also from one chunk to the next. Nothing goes through the tensor
cores, whose every instruction holds up six others.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, hash_of, jit, two
from layertap.measure.definition import LANES, ROW_SEED

if FOUND:
    import triton.language as tl

    _L, _ROW_SEED = tl.constexpr(LANES), tl.constexpr(ROW_SEED)
    _FETCH = tl.constexpr("shfl.sync.idx.b32 $0, $1, $2, 31, -1;")
    _LOAD_16 = tl.constexpr("ld.global.v4.u32 {$0, $1, $2, $3}, [$4];")
    _LOAD_8 = tl.constexpr("ld.global.v2.u32 {$0, $1}, [$2];")
    _MAD = tl.constexpr(
        "{ .reg .b32 l, h; mov.b64 {l, h}, $3; "
        "mad.lo.cc.u32 l, $1, $2, l; madc.hi.u32 h, $1, $2, h; mov.b64 $0, {l, h}; }"
    )
    # The lower and the upper halves of weights, two in a register, times bytes: four products in two instructions.
    _WEIGH_BYTES = tl.constexpr(
        "{ .reg .b32 a, b, s; prmt.b32 $2, $4, $5, 0x7632; prmt.b32 $3, $6, $7, 0x7632; "
        "prmt.b32 a, $4, $5, 0x5410; prmt.b32 b, $6, $7, 0x5410; "
        "dp2a.lo.u32.u32 s, a, $8, $9; dp2a.hi.u32.u32 $0, b, $8, s; "
        "dp2a.lo.u32.u32 s, $2, $8, $10; dp2a.hi.u32.u32 $1, $3, $8, s; }"
    )
    _E4M3, _E5M2 = (
        tl.constexpr(
            "{ .reg .b16 a, b; .reg .b32 x; mov.b32 {a, b}, $2; "
            f"cvt.rn.f16x2.{kind}x2 x, a; cvt.rn.f16x2.{kind}x2 $1, b; mov.b32 $0, x; "
            "}"
        )
        for kind in ("e4m3", "e5m2")
    )
    _HALVES = tl.constexpr("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }")
    _FLIP = tl.constexpr("lop3.b32 $0, $1, $2, 0x80000000, 0x78;")  # a ^ (b & c)


@jit
def _three(ASM: tl.constexpr, left, right, total):  # type: ignore[no-untyped-def]
    """One instruction for the four numbers in each register, and a sum."""
    return tl.inline_asm_elementwise(ASM, "=r,r,r,r", [left, right, total], dtype=tl.uint32, is_pure=True, pack=1)


@jit
def weigh(prints, weight, word):  # type: ignore[no-untyped-def]
    """Adds a product of 64 bits. Written out: triton would add up trees of them, which takes twice as long."""
    return tl.inline_asm_elementwise(_MAD, "=l,r,r,l", [weight, word, prints], dtype=tl.uint64, is_pure=True, pack=1)


@jit
def _weigh_bytes(w0, w1, w2, w3, word, low, high):  # type: ignore[no-untyped-def]
    """Adds four weights' lower and upper halves times the four bytes; and their upper halves, two in a register."""
    return tl.inline_asm_elementwise(
        _WEIGH_BYTES,
        "=r,=r,=r,=r,r,r,r,r,r,r,r",
        [w0, w1, w2, w3, word, low, high],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )


@jit
def _row_hashes(first, step, ROWS: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """In each warp the hashes of the next 32 rows: every thread would else make all of them."""
    at = tl.arange(0, GROUPS) % 32
    return hash_of((first + at // ROWS * step) * ROWS + at % ROWS, _ROW_SEED)


@jit
def fetch(hashes, at):  # type: ignore[no-untyped-def]
    """One of the 32 hashes that a warp has."""
    at, _ = tl.broadcast(tl.cast(at, tl.uint32), hashes)
    return tl.inline_asm_elementwise(_FETCH, "=r,r,r", [hashes, at], dtype=tl.uint32, is_pure=True, pack=1)


@jit
def fetch_half(x, tile, HALF: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A thread's eight numbers of each row of half a tile, in four registers or two.

    The last threads have no lanes: they read what the first one does, and their results are thrown away.
    """
    WORDS: tl.constexpr = 2 if x.dtype.element_ty == tl.uint8 else 4
    group = tl.arange(0, GROUPS)
    row = x.to(tl.int64, bitcast=True) + tl.cast(tile, tl.int64) * (ROWS * _L // 2 * WORDS)
    address = row + tl.where(group < _L // 8, group, 0) * (4 * WORDS)
    rows = ()
    for at in tl.static_range(HALF * ROWS // 2, (HALF + 1) * ROWS // 2):
        if WORDS == 4:
            a, b, c, d = tl.inline_asm_elementwise(
                _LOAD_16,
                "=r,=r,=r,=r,l",
                [address + at * (_L // 2 * WORDS)],
                dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
                is_pure=False,
                pack=1,
            )
            rows = rows + (a, b, c, d)  # type: ignore[assignment]  # noqa: RUF005  triton knows no unpacking
        else:
            a, b = tl.inline_asm_elementwise(
                _LOAD_8, "=r,=r,l", [address + at * (_L // 2 * WORDS)], (tl.uint32, tl.uint32), False, 1
            )
            rows = rows + (a, b)  # type: ignore[assignment]  # noqa: RUF005
    return rows


@jit
def _pairs(row, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """The eight numbers in four registers, two floats of 16 bits in each."""
    if len(row) == 2:
        ASM: tl.constexpr = _E4M3 if KIND == "float8_e4m3fn" else _E5M2
        a, b = tl.inline_asm_elementwise(ASM, "=r,=r,r", [row[0]], (tl.uint32, tl.uint32), True, 1)
        c, d = tl.inline_asm_elementwise(ASM, "=r,=r,r", [row[1]], (tl.uint32, tl.uint32), True, 1)
        row = (a, b, c, d)
    return row


@jit
def _floats(pair, BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two floats in a register."""
    if BF16:
        even, odd = (pair << 16).to(tl.float32, bitcast=True), (pair & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        even, odd = tl.inline_asm_elementwise(_HALVES, "=f,=f,r", [pair], (tl.float32, tl.float32), True, 1)
    return even, odd


@jit
def _signed(value, weight):  # type: ignore[no-untyped-def]
    """With another sign where the weight's top bit is set."""
    return tl.inline_asm_elementwise(_FLIP, "=f,f,r", [value, weight], dtype=tl.float32, is_pure=True, pack=1)


@jit
def _ones_in_halves(total):  # type: ignore[no-untyped-def]
    """How many halves were all ones among what was added up: -(n + 65536 m) + 65536 n of n lower and m upper ones."""
    lower = (0 - total) & 0xFFFF
    return (2 * lower - ((total + lower) >> 16)).to(tl.int32) & 0xFFFF


@jit
def by_lane(lanes, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight tensors, a lane of each thread in each, as one of eight columns."""
    even = tl.join(tl.join(lanes[0], lanes[4]), tl.join(lanes[2], lanes[6]))
    odd = tl.join(tl.join(lanes[1], lanes[5]), tl.join(lanes[3], lanes[7]))
    return tl.reshape(tl.join(even, odd), [GROUPS, 8])


@jit
def float_chunk(  # type: ignore[no-untyped-def]
    x,
    ahead,
    full,
    first,
    stop,
    step,
    lane_hashes,
    shift,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    SHIFTED: tl.constexpr,
):
    """Of whole tiles: sums of values, of squares of what they differ from `shift` by, of sizes; extremes, zeros.

    Where the mean is small beside the spread, `shift` is zero, and nothing is taken away.
    """
    SHORT: tl.constexpr = KIND == "bfloat16" or KIND == "float16"
    BF16: tl.constexpr = KIND == "bfloat16"
    TWO: tl.constexpr = "bf16x2" if BF16 else "f16x2"
    MIN: tl.constexpr = "min." + TWO + " $0, $1, $2;"
    MAX: tl.constexpr = "max." + TWO + " $0, $1, $2;"
    IS_ZERO: tl.constexpr = "set.eq.u32." + TWO + " $0, $1, $2;"
    WORDS: tl.constexpr = 4 if SHORT else 2
    nothing = tl.zeros([GROUPS], tl.float32)
    sums, squares, sizes = nothing, nothing, nothing
    lanes = (nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    prints = tl.zeros([GROUPS], tl.uint64)
    none = tl.zeros([GROUPS], tl.uint32)
    zeros, lower, upper = none, none, none
    low = tl.full([GROUPS], 0x7F807F80 if BF16 else 0x7C007C00, tl.uint32)
    high = tl.full([GROUPS], 0xFF80FF80 if BF16 else 0xFC00FC00, tl.uint32)
    hashes, done = _row_hashes(first, step, ROWS, GROUPS), 0
    for tile in range(first, stop, step):
        if done == 32:
            hashes, done = _row_hashes(tile, step, ROWS, GROUPS), 0
        following = tl.where(tile + step < full, tile + step, tile)
        t_squares = nothing  # they have twice the digits, and a long sum of like squares is rounded one way
        for at in tl.static_range(ROWS):
            if at % (ROWS // 2) == 0:  # what is read next is on its way while this half is added up
                behind = ahead
                ahead = fetch_half(x, tile if at == 0 else following, 1 if at == 0 else 0, ROWS, GROUPS)
            row_hash = fetch(hashes, done + at)
            row = behind[at % (ROWS // 2) * WORDS : (at % (ROWS // 2) + 1) * WORDS]
            if not SHORT:
                for word in tl.static_range(2):
                    lower, upper, _, _ = _weigh_bytes(
                        row_hash * lane_hashes[4 * word],
                        row_hash * lane_hashes[4 * word + 1],
                        row_hash * lane_hashes[4 * word + 2],
                        row_hash * lane_hashes[4 * word + 3],
                        row[word],
                        lower,
                        upper,
                    )
            pairs = _pairs(row, KIND)
            for place in tl.static_range(4):
                pair = pairs[place]
                even_weight, odd_weight = row_hash * lane_hashes[2 * place], row_hash * lane_hashes[2 * place + 1]
                if SHORT:
                    prints = weigh(weigh(prints, even_weight, pair & 0xFFFF), odd_weight, pair >> 16)
                even, odd = _floats(pair, BF16)
                added = (lanes[0] + _signed(even, even_weight), lanes[1] + _signed(odd, odd_weight))
                lanes = lanes[2:] + added
                sums = sums + even + odd
                sizes = sizes + tl.abs(even) + tl.abs(odd)
                if SHIFTED:
                    even, odd = even - shift, odd - shift
                t_squares = t_squares + even * even + odd * odd
            zeros = zeros + two(IS_ZERO, pairs[0], none) + two(IS_ZERO, pairs[1], none)
            zeros = zeros + two(IS_ZERO, pairs[2], none) + two(IS_ZERO, pairs[3], none)
            low = two(MIN, two(MIN, low, pairs[0]), pairs[1])
            high = two(MAX, two(MAX, high, pairs[0]), pairs[1])
            low = two(MIN, two(MIN, low, pairs[2]), pairs[3])
            high = two(MAX, two(MAX, high, pairs[2]), pairs[3])
        done += ROWS
        squares += t_squares
        if not SHORT:
            prints += lower.to(tl.uint64) + (upper.to(tl.uint64) << 16)
            lower, upper = none, none
    live = tl.arange(0, GROUPS) < _L // 8
    low0, low1 = _floats(low, BF16)
    high0, high1 = _floats(high, BF16)
    return (
        ahead,
        tl.where(live, sums, 0.0),
        tl.where(live, squares, 0.0),
        tl.where(live, sizes, 0.0),
        tl.minimum(low0, low1),
        tl.maximum(high0, high1),
        tl.where(live, _ones_in_halves(zeros), 0),
        tl.where(live, prints, 0),
        by_lane(lanes, GROUPS),
    )


@jit
def byte_chunk(  # type: ignore[no-untyped-def]
    x,
    ahead,
    full,
    first,
    stop,
    step,
    lane_hashes,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """The same of integers of one byte, exactly.

    A byte with a minus is its complement less a byte of ones: -v = ~v - ~0, with and without a sign; signed bytes are
    128 more while they are added up. Two lanes share a register for this, four for the ones.
    """
    INT8: tl.constexpr = KIND == "int8"
    PAIR: tl.constexpr = "s16x2" if INT8 else "u16x2"
    MIN: tl.constexpr = "min." + PAIR + " $0, $1, $2;"
    MAX: tl.constexpr = "max." + PAIR + " $0, $1, $2;"
    EVEN: tl.constexpr = "prmt.b32 $0, $1, $2, 0x4240;"
    ODD: tl.constexpr = "prmt.b32 $0, $1, $2, 0x4341;"
    OFFSET: tl.constexpr = 0x80808080 if INT8 else 0
    DOT: tl.constexpr = "dp4a.s32.s32 $0, $1, $2, $3;" if INT8 else "dp4a.u32.u32 $0, $1, $2, $3;"
    none = tl.zeros([GROUPS], tl.uint32)
    ones = tl.full([GROUPS], 0x01010101, tl.uint32)
    sums, squares, sizes, filled, lower, upper = none, none, none, none, none, none
    lanes = (none, none, none, none, none, none)
    prints = tl.zeros([GROUPS], tl.uint64)
    low = tl.full([GROUPS], 0x7FFF7FFF if INT8 else 0xFFFFFFFF, tl.uint32)
    high = tl.full([GROUPS], 0x80008000 if INT8 else 0, tl.uint32)
    rows = tl.cast(0, tl.int32)
    hashes, done = _row_hashes(first, step, ROWS, GROUPS), 0
    for tile in range(first, stop, step):
        if done == 32:
            hashes, done = _row_hashes(tile, step, ROWS, GROUPS), 0
        rows += ROWS
        following = tl.where(tile + step < full, tile + step, tile)
        for at in tl.static_range(ROWS):
            if at % (ROWS // 2) == 0:
                behind = ahead
                ahead = fetch_half(x, tile if at == 0 else following, 1 if at == 0 else 0, ROWS, GROUPS)
            row_hash = fetch(hashes, done + at)
            row = behind[at % (ROWS // 2) * 2 : (at % (ROWS // 2) + 1) * 2]
            for place in tl.static_range(2):
                word = row[place]
                lower, upper, sign0, sign1 = _weigh_bytes(
                    row_hash * lane_hashes[4 * place],
                    row_hash * lane_hashes[4 * place + 1],
                    row_hash * lane_hashes[4 * place + 2],
                    row_hash * lane_hashes[4 * place + 3],
                    word,
                    lower,
                    upper,
                )
                sums = _three(DOT, word, ones, sums)
                squares = _three(DOT, word, word, squares)
                if INT8:
                    sizes = _three("vabsdiff4.u32.s32.s32.add $0, $1, $2, $3;", word, none, sizes)
                not_zero = (((word & 0x7F7F7F7F) + 0x7F7F7F7F) | word) & 0x80808080
                filled = _three("dp4a.u32.u32 $0, $1, $2, $3;", not_zero, ones, filled)
                minus = two("prmt.b32 $0, $1, $2, 0xFDB9;", sign0, sign1)
                complement = word ^ minus ^ OFFSET
                even, odd = two(EVEN, complement, none), two(ODD, complement, none)
                added = (lanes[0] + even, lanes[1] + odd, lanes[2] + minus)
                lanes = lanes[3:] + added
                # The upper byte of two decides; the lower one of each is shifted there.
                low, high = two(MIN, two(MIN, low, word), word << 8), two(MAX, two(MAX, high, word), word << 8)
        done += ROWS
        prints += lower.to(tl.uint64) + (upper.to(tl.uint64) << 16)
        lower, upper = none, none
    live = tl.arange(0, GROUPS) < _L // 8
    total = tl.where(live, sums.to(tl.int32, bitcast=True), 0)
    return (
        ahead,
        total,
        tl.where(live, squares.to(tl.int32, bitcast=True), 0),
        tl.where(live, sizes.to(tl.int32, bitcast=True), 0) if INT8 else total,
        tl.minimum(_upper(low, False, INT8), _upper(low, True, INT8)),
        tl.maximum(_upper(high, False, INT8), _upper(high, True, INT8)),
        tl.where(live, 8 * rows - (filled >> 7).to(tl.int32), 0),
        tl.where(live, prints, 0),
        by_lane(_four_lanes(lanes[:3], rows, INT8) + _four_lanes(lanes[3:], rows, INT8), GROUPS),
    )


@jit
def _four_lanes(added, rows, INT8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each of four lanes the sum of its complements, less its ones and what was added to each row."""
    counts = added[2] * 0xFEFEFEFF  # 1 / 255: what was added up are 255 times the counts
    ONES: tl.constexpr = -1 if INT8 else 255
    more = 128 * rows if INT8 else 0
    even, odd = added[0], added[1]
    return (
        ((even & 0xFFFF).to(tl.int32) - ONES * (counts & 0xFF).to(tl.int32) - more).to(tl.float32),
        ((odd & 0xFFFF).to(tl.int32) - ONES * ((counts >> 8) & 0xFF).to(tl.int32) - more).to(tl.float32),
        ((even >> 16).to(tl.int32) - ONES * ((counts >> 16) & 0xFF).to(tl.int32) - more).to(tl.float32),
        ((odd >> 16).to(tl.int32) - ONES * (counts >> 24).to(tl.int32) - more).to(tl.float32),
    )


@jit
def _upper(pair, ODD: tl.constexpr, INT8: tl.constexpr):  # type: ignore[no-untyped-def]
    """The upper byte of one of two 16-bit integers."""
    top = pair if ODD else pair << 16
    if INT8:
        top = top.to(tl.int32, bitcast=True)
    return (top >> 24).to(tl.float32)
