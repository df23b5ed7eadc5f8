"""Words of two bfloat16 on Hopper's matrix unit: what the pair kernel saves its instructions with.

In a product of 16 by 8 numbers, thread 4 g + t has rows g and g + 8, columns 2 t and 2 t + 1, of the result: four
numbers. Of the first factor it has the same places of the same rows, of the second column g. A diagonal of ones as the
second factor thus hands each thread its own two words back, as four float32; ones everywhere add words up, whoever has
them; and of a product with itself the diagonal is the squares. Nothing depends on which element a thread has.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, jit

if FOUND:
    import triton.language as tl


@jit
def spread(words, one, low, high):  # type: ignore[no-untyped-def]
    """Both halves of each word, times what `diagonal` has in `one`, plus `low` and `high`."""
    return tl.inline_asm_elementwise(
        """mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
            {$0, $4, $1, $5}, {$8, $9}, {$12}, {$16, $20, $17, $21};
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
            {$2, $6, $3, $7}, {$10, $11}, {$12}, {$18, $22, $19, $23};""",
        "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,r,r,r,r,r,r,r,r,f,f,f,f,f,f,f,f",
        [words, one, low, high], dtype=(tl.float32, tl.float32), is_pure=True, pack=4,
    )  # fmt: skip


@jit
def added(words, sums):  # type: ignore[no-untyped-def]
    """Adds both halves of four words to eight sums, of some threads or other."""
    return tl.inline_asm_elementwise(
        """{ .reg .b32 o; mov.b32 o, 0x3f803f80;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
            {$0, $1, $2, $3}, {$4, $5, $6, $7}, {o, o}, {$8, $9, $10, $11}; }""",
        "=f,=f,=f,=f,r,r,r,r,f,f,f,f", [words, sums], dtype=tl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@jit
def squared(words, even, odd):  # type: ignore[no-untyped-def]
    """Adds the squares of even and odd words: to the first two, and the last two, sums that are `on_diagonal`."""
    even = tl.inline_asm_elementwise(
        """{ .reg .f32 x<4>;
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {x0, x1, x2, x3}, {$4, $5}, {$4}, {$8, $9, $10, $11};
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$6, $7}, {$6}, {x0, x1, x2, x3}; }""",
        "=f,=f,=f,=f,r,r,r,r,f,f,f,f", [words, even], dtype=tl.float32, is_pure=True, pack=4,
    )  # fmt: skip
    odd = tl.inline_asm_elementwise(
        """{ .reg .f32 x<4>;
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {x0, x1, x2, x3}, {$4, $5}, {$5}, {$8, $9, $10, $11};
        mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$6, $7}, {$7}, {x0, x1, x2, x3}; }""",
        "=f,=f,=f,=f,r,r,r,r,f,f,f,f", [words, odd], dtype=tl.float32, is_pure=True, pack=4,
    )  # fmt: skip
    return even, odd


@jit
def _lane(like):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r,r", [like], dtype=tl.int32, is_pure=True, pack=1)


@jit
def diagonal(like):  # type: ignore[no-untyped-def]
    """Ones on the diagonal of a second factor."""
    lane = _lane(like)
    place = lane // 4 - (lane % 4) * 2
    return (tl.where(place == 0, 0x3F80, 0) | tl.where(place == 1, 0x3F800000, 0)).to(tl.uint32)


@jit
def on_diagonal(word):  # type: ignore[no-untyped-def]
    """Whether a thread's four sums are on the diagonal of their half of a product."""
    lane = _lane(word)
    return (lane % 4) * 2 + word % 2 == lane // 4
