"""Numbers of 64 bits: one chunk of the fused kernel's fast path on a Hopper chip.

What is slow there is done otherwise: a double is converted to a float in eight times the time of an addition, so the
sketch adds up doubles; a minimum that minds NaN takes seven instructions, one that does not takes three.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, hash_of, jit
from layertap.measure.definition import LANE_SEED, LANES, ROW_SEED
from layertap.measure.packed import fetch, weigh

if FOUND:
    import triton.language as tl

    _L, _BIG = tl.constexpr(LANES), tl.constexpr(float("inf"))
    _ROW_SEED, _LANE_SEED = tl.constexpr(ROW_SEED), tl.constexpr(LANE_SEED)


@jit
def wide_chunk(  # type: ignore[no-untyped-def]
    x, first, stop, step, second, lane, live, lane_hash, shift, ROWS: tl.constexpr
):
    """Of whole tiles, as if all were finite: sums, of squares, of sizes; extremes, zeros; fingerprint; sketch.

    An element is two words, so a row is two rows of words; all lanes of a program are in the `second` or the first.
    """
    GROUPS: tl.constexpr = lane.shape[0]
    even_hash = hash_of(2 * lane - _L * second, _LANE_SEED)
    odd_hash = hash_of(2 * lane + 1 - _L * second, _LANE_SEED)
    sum1 = tl.zeros(lane.shape, tl.float64)
    sum2, sum_abs, sketch = sum1, sum1, sum1
    low, high = sum1 + _BIG, sum1 - _BIG
    zero = tl.zeros(lane.shape, tl.int32)
    prints = tl.zeros(lane.shape, tl.uint64)
    at = tl.arange(0, GROUPS) % 32
    hashes, done = hash_of(at, _ROW_SEED), 32
    words = hashes
    for tile in range(first, stop, step):
        if done == 32:  # rows of which each warp has the hashes: every thread would else make all of them
            row = (tile + at // ROWS * step) * ROWS + at % ROWS
            hashes, words, done = hash_of(row, _ROW_SEED), hash_of(2 * row + second, _ROW_SEED), 0
        for part in tl.static_range(ROWS):
            start = (tl.cast(tile, tl.int64) * ROWS + part) * _L
            bits = tl.load(x + start + lane, mask=live[:, None], other=0).to(tl.uint64, bitcast=True)
            value = bits.to(tl.float64, bitcast=True)
            word_row = fetch(words, done + part)[:, None]
            prints = weigh(prints, word_row * even_hash, bits.to(tl.uint32))
            prints = weigh(prints, word_row * odd_hash, (bits >> 32).to(tl.uint32))
            off = value - shift
            sum1 += off
            sum2 += off * off
            sum_abs += tl.abs(value)
            low = tl.where(value < low, value, low)
            high = tl.where(value > high, value, high)
            zero += (value == 0).to(tl.int32)
            sign = (fetch(hashes, done + part)[:, None] * lane_hash) & 0x80000000
            sketch += (bits ^ (sign.to(tl.uint64) << 32)).to(tl.float64, bitcast=True)
        done += ROWS
    return (
        tl.where(live, tl.sum(sum1, axis=1), 0.0),
        tl.sum(sum2, axis=1),
        tl.where(live, tl.sum(sum_abs, axis=1), 0.0),
        tl.min(low, axis=1),
        tl.max(high, axis=1),
        tl.where(live, tl.sum(zero, axis=1), 0),
        tl.sum(prints, axis=1),
        sketch.to(tl.float32),
    )
