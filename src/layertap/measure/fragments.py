"""What the tensor cores of a Hopper chip add up, and the other instructions for several short numbers in a register.

Four neighbouring lanes are a quad: two registers of two 16-bit floats each (x, y), or one of four bytes. A thread has
two quads of each row. With g = lane of the warp // 4 and t = lane % 4, a thread has, of a product of 16 rows and 8
columns, columns 2t and 2t + 1 of rows g and g + 8; of the left factor its registers belong to these rows, of the right
one to column g. So a permutation times the data adds up each lane by itself; the data times one column of ones adds up all;
and where both factors are the same data, the diagonal has the squares of a row's four threads.

A tensor core cuts off what does not fit in 24 bits, so sums of large numbers begin at zero again in each tile.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, jit

if FOUND:
    import triton.language as tl


def _mma(kind: str, *, short: bool = False) -> str:
    """One product, or one that is half as deep."""
    if "f16" in kind:
        return f"mma.sync.aligned.m16n8k{8 if short else 16}.row.col.f32.{kind}.{kind}.f32"
    return f"mma.sync.aligned.m16n8k{16 if short else 32}.row.col.s32.{kind}.s32"


# Operands: results first, then what goes in; of an argument with two quads a thread, both.
_SUMS = (
    "{ .reg .b32 n, p, q, u, v; .reg .f32 s<4>, t<4>; mov.b32 n, 0; "
    "abs.TWO p, $4; abs.TWO q, $6; set.eq.TWO.TWO u, $4, n; set.eq.TWO.TWO v, $6, n; "
    "MMA {s0, s1, s2, s3}, {p, u, q, v}, {$8, $10}, {$16, $17, $18, $19}; "
    "abs.TWO p, $5; abs.TWO q, $7; set.eq.TWO.TWO u, $5, n; set.eq.TWO.TWO v, $7, n; "
    "MMA {t0, t1, t2, t3}, {p, u, q, v}, {$8, $10}, {s0, s1, s2, s3}; "
    "MMA {$0, $1, $2, $3}, {$4, $6, $5, $7}, {$12, $14}, {t0, t1, t2, t3}; }"
)
# Of the same data in both factors: those of rows g, or those of rows g + 8, are on the diagonal.
_SQUARES = (
    "{ .reg .f32 t<4>; SHORT {t0, t1, t2, t3}, {$4, $6}, {$FIRST}, {$8, $9, $10, $11}; "
    "SHORT {$0, $1, $2, $3}, {$5, $7}, {$SECOND}, {t0, t1, t2, t3}; }"
)
_SQUARES_X = _SQUARES.replace("FIRST", "4").replace("SECOND", "5")
_SQUARES_Y = _SQUARES.replace("FIRST", "6").replace("SECOND", "7")
_SIGNED = (
    "{ .reg .b32 x, y; lop3.b32 x, $4, $6, 0x80008000, 0x78; lop3.b32 y, $5, $7, 0x80008000, 0x78; "  # a ^ (b & c)
    "MMA {$0, $1, $2, $3}, {$8, $9, $10, $11}, {x, y}, {$12, $13, $14, $15}; }"
)
# A byte with a minus is its complement less a byte of ones: -v = ~v - ~0, with and without a sign.
_SIGNED_BYTES = (
    "{ .reg .b32 x, y; prmt.b32 y, $6, $7, 0xFDB9; xor.b32 x, $4, y; "
    "MMA {$0, $1, $2, $3}, {$8, $9, $10, $11}, {x, y}, {$12, $13, $14, $15}; }"
)
_BYTE_SUMS = "SHORT {$0, $1, $2, $3}, {$4, $5}, {$6}, {$8, $9, $10, $11};"
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
# Weights of 32 bits times bytes: the upper and the lower halves of two weights times two bytes, in one instruction.
_WEIGH_BYTES = (
    "{ .reg .b32 a, b, s; prmt.b32 $2, $4, $5, 0x7632; prmt.b32 $3, $6, $7, 0x7632; "
    "prmt.b32 a, $4, $5, 0x5410; prmt.b32 b, $6, $7, 0x5410; "
    "dp2a.lo.u32.u32 s, a, $8, $9; dp2a.hi.u32.u32 $0, b, $8, s; "
    "dp2a.lo.u32.u32 s, $2, $8, $10; dp2a.hi.u32.u32 $1, $3, $8, s; }"
)


def _for(text: str, kind: str) -> str:
    text = text.replace("MMA", _mma(kind)).replace("SHORT", _mma(kind, short=True))
    return text.replace("TWO", f"{kind}x2")


if FOUND:
    _SUMS_BF16, _SUMS_F16 = tl.constexpr(_for(_SUMS, "bf16")), tl.constexpr(_for(_SUMS, "f16"))
    _SQUARES_X_BF16, _SQUARES_X_F16 = tl.constexpr(_for(_SQUARES_X, "bf16")), tl.constexpr(_for(_SQUARES_X, "f16"))
    _SQUARES_Y_BF16, _SQUARES_Y_F16 = tl.constexpr(_for(_SQUARES_Y, "bf16")), tl.constexpr(_for(_SQUARES_Y, "f16"))
    SIGNED_BF16, SIGNED_F16 = tl.constexpr(_for(_SIGNED, "bf16")), tl.constexpr(_for(_SIGNED, "f16"))
    SIGNED_S8, SIGNED_U8 = tl.constexpr(_for(_SIGNED_BYTES, "s8.s8")), tl.constexpr(_for(_SIGNED_BYTES, "s8.u8"))
    SUMS_S8, SUMS_U8 = tl.constexpr(_for(_BYTE_SUMS, "s8.u8")), tl.constexpr(_for(_BYTE_SUMS, "u8.u8"))
    _LANES_BACK, _BYTES_WEIGHED = tl.constexpr(_OWN), tl.constexpr(_WEIGH_BYTES)


@jit
def nothing_of(pointer, BIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Zero: a bit that no address has, in all places, which the compiler does not know.

    Of a zero, or of a copy, it would else make a new one for each product in which it is a factor.
    """
    return ((pointer.to(tl.int64, bitcast=True) << (63 - BIT)) >> 63).to(tl.uint32, bitcast=False)


@jit
def permutation(place, pointer, ONE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The left factor that leaves each lane to itself, of 16-bit floats. `place` is the thread's in its warp."""
    g, t = place // 4, place % 4
    one = tl.where(t == g // 2, ONE << (16 * (g % 2)), 0).to(tl.uint32)[:, None]
    return one, one & nothing_of(pointer, 63), one & nothing_of(pointer, 62), one | nothing_of(pointer, 61)


@jit
def permutation_of_bytes(place):  # type: ignore[no-untyped-def]
    """The same of bytes; the upper half of the right factor is taken away."""
    g, t = place // 4, place % 4
    one = tl.where(t == g // 2, 1 << (8 * (g % 2)), 0).to(tl.uint32)[:, None]
    return one, one << 16, one * 255, one * 255 << 16


@jit
def column_of_ones(place, pointer, COLUMN: tl.constexpr, ONE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A right factor that is one in one column, twice: what it is multiplied by is added up there."""
    one = tl.where(place // 4 == COLUMN, ONE, 0).to(tl.uint32)[:, None]
    return one, one | nothing_of(pointer, 60 - COLUMN)


@jit
def add_up(x, y, first, again, second, other, a, b, BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds sizes to the first column of a, how many are zero to that of b, the numbers to the second of both."""
    return tl.inline_asm_elementwise(
        _SUMS_BF16 if BF16 else _SUMS_F16,
        "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,r,r,f,f,f,f",
        [x, y, first, again, second, other, a, b],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=2,
    )


@jit
def add_squares(x, y, a, b, OF_Y: tl.constexpr, BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds the squares of x to the diagonal of a, or of y to that of b; the other one is of no use."""
    if OF_Y:
        ASM: tl.constexpr = _SQUARES_Y_BF16 if BF16 else _SQUARES_Y_F16
    else:
        ASM: tl.constexpr = _SQUARES_X_BF16 if BF16 else _SQUARES_X_F16
    return tl.inline_asm_elementwise(
        ASM, "=f,=f,=f,=f,r,r,r,r,f,f,f,f", [x, y, a, b], dtype=(tl.float32, tl.float32), is_pure=True, pack=2
    )


@jit
def add_signed(ASM: tl.constexpr, x, y, sign0, sign1, i0, i1, i2, i3, a, b, c, d):  # type: ignore[no-untyped-def]
    """Adds the quads, with the signs of their weights, to the sums of the lanes."""
    KINDS: tl.constexpr = (
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r" if a.dtype == tl.int32 else "=f,=f,=f,=f,r,r,r,r,r,r,r,r,f,f,f,f"
    )
    return tl.inline_asm_elementwise(
        ASM,
        KINDS,
        [x, y, sign0, sign1, i0, i1, i2, i3, a, b, c, d],
        dtype=(a.dtype, a.dtype, a.dtype, a.dtype),
        is_pure=True,
        pack=1,
    )


@jit
def add_bytes(ASM: tl.constexpr, words, ones, a, b):  # type: ignore[no-untyped-def]
    """Adds the bytes of both words: a + b, over all threads and columns, is their sum."""
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,=r,=r,r,r,r,r,r,r,r,r", [words, ones, a, b], dtype=(tl.int32, tl.int32), is_pure=True, pack=2
    )


@jit
def weigh_bytes(w0, w1, w2, w3, word, low, high):  # type: ignore[no-untyped-def]
    """Adds four weights' lower and upper halves times the four bytes; and their upper halves, two in a register."""
    return tl.inline_asm_elementwise(
        _BYTES_WEIGHED,
        "=r,=r,=r,=r,r,r,r,r,r,r,r",
        [w0, w1, w2, w3, word, low, high],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )


@jit
def lanes_back(a, b, c, d, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
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
