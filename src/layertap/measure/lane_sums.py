"""Sums of bytes over the rows of each lane, by the tensor cores of a Hopper chip.

With g = lane of the warp // 4 and t = lane % 4, a thread has, of a product of 16 rows and 8 columns, columns 2t and
2t + 1 of rows g and g + 8; of the left factor its registers belong to these rows, of the right one to column g. So
where the left factor leaves each row to itself, what the right one holds is added up lane by lane, each in another
thread: `lanes_back` brings it back.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, jit

if FOUND:
    import triton.language as tl

# A byte with a minus is its complement less a byte of ones: -v = ~v - ~0, with and without a sign.
_SIGNED = (
    "{ .reg .b32 x, y; prmt.b32 y, $5, $6, 0xFDB9; xor.b32 x, $4, y; "
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.KIND.s32 "
    "{$0, $1, $2, $3}, {$7, $8, $9, $10}, {x, y}, {$11, $12, $13, $14}; }"
)
_BACK = (
    "{ .reg .b32 a, b, s, o, r<4>; .reg .pred p; mov.u32 a, %laneid; shr.u32 s, a, 3; and.b32 b, a, 4; "
    "setp.ne.u32 p, b, 0; and.b32 a, a, 3; shl.b32 a, a, 3; add.u32 s, s, a; add.u32 o, s, 4; "
    + "".join(
        f"shfl.sync.idx.b32 a, ${at}, {source}, 31, -1; shfl.sync.idx.b32 b, ${at + 1}, {source}, 31, -1; "
        f"selp.b32 r{i}, b, a, p; "
        for i, (at, source) in enumerate(((4, "s"), (4, "o"), (6, "s"), (6, "o")))
    )
    + "mov.b32 $0, r0; mov.b32 $1, r1; mov.b32 $2, r2; mov.b32 $3, r3; }"
)

if FOUND:
    _SIGNED_S8, _SIGNED_U8 = tl.constexpr(_SIGNED.replace("KIND", "s8")), tl.constexpr(_SIGNED.replace("KIND", "u8"))
    _LANES_BACK = tl.constexpr(_BACK)


@jit
def identity(GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The left factor that leaves each lane to itself; the upper half of the right factor is taken away."""
    place = tl.arange(0, GROUPS) % 32
    g, t = place // 4, place % 4
    one = tl.where(t == g // 2, 1 << (8 * (g % 2)), 0).to(tl.uint32)
    return one, one << 16, one * 255, one * 255 << 16


@jit
def add_signed(word, sign0, sign1, left, lanes, INT8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds four bytes, each with the sign of its weight, to the sums of the lanes.

    The signs are the top bits of the halves of `sign0` and `sign1`.
    """
    a, b, c, d = tl.inline_asm_elementwise(
        _SIGNED_S8 if INT8 else _SIGNED_U8,
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r",
        [word, sign0, sign1, left[0], left[1], left[2], left[3], lanes[0], lanes[1], lanes[2], lanes[3]],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    return a, b, c, d


@jit
def lanes_back(lanes):  # type: ignore[no-untyped-def]
    """The sums of four lanes, each back in the thread that has the lane."""
    a, b, c, d = tl.inline_asm_elementwise(
        _LANES_BACK,
        "=f,=f,=f,=f,f,f,f,f",
        [lanes[0].to(tl.float32), lanes[1].to(tl.float32), lanes[2].to(tl.float32), lanes[3].to(tl.float32)],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True,
        pack=1,
    )
    return a, b, c, d
