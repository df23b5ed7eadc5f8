"""The fused kernel itself: what one program does, and how the last one adds up what all have left.

kernel.py launches it and says why it is built so; bits.py decodes the elements.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, half, hash_of, jit, two, value_of, word_of
from layertap.measure.definition import BUCKETS, FIRST, LANE_SEED, LANES, ROW_SEED
from layertap.measure.slab import COUNTS, HEAD, PRINT, SKETCH, SUMS

if FOUND:
    import triton.language as tl

MOST = 1024
"""Programs; the width of the last program's reductions."""
DEFERRED = 256
"""The same where the results of several tensors wait for one `finish_all`."""
HEADER = 8
"""Words of the scratch memory before the partial results: the ticket, or how many programs there were."""
FIELDS = 11
"""Numbers that each program leaves in the scratch memory, besides its sketch."""

if FOUND:
    _L, _B, _BIG = tl.constexpr(LANES), tl.constexpr(BUCKETS), tl.constexpr(float("inf"))
    _ROW_SEED, _LANE_SEED = tl.constexpr(ROW_SEED), tl.constexpr(LANE_SEED)
    _F, _H = tl.constexpr(FIELDS), tl.constexpr(FIRST)
    _COUNTS, _SUMS, _PRINT = tl.constexpr(COUNTS), tl.constexpr(SUMS), tl.constexpr(PRINT)
    _HEAD, _SKETCH = tl.constexpr(HEAD), tl.constexpr(SKETCH)


@jit
def _add(value, word, weight, shift, sum1, sum2, sum_abs, fingerprint, sketch):  # type: ignore[no-untyped-def]
    off = value - shift
    signed = (value.to(tl.uint32, bitcast=True) ^ (weight & 0x80000000)).to(tl.float32, bitcast=True)
    return (
        sum1 + tl.sum(off, axis=1),
        sum2 + tl.sum(off * off, axis=1),
        sum_abs + tl.sum(tl.abs(value), axis=1),
        fingerprint + tl.sum(weight.to(tl.uint64) * word, axis=1),
        sketch + signed,
    )


@jit
def _exact(x, row, count, lane, lane_hash, shift, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row in float64, each value looked at: sums, extremes and counts a group; fingerprint; signed values."""
    start = tl.cast(row, tl.int64) * _L
    inside = lane < tl.minimum(count - start, _L).to(tl.int32)
    bits = tl.load(x + start + lane, mask=inside, other=0)
    value = value_of(bits, KIND)
    weight = hash_of(row, _ROW_SEED) * lane_hash
    if bits.dtype == tl.int64:  # two words an element, so the words' rows are half as long as the elements'
        second = (2 * lane >= _L).to(tl.int32)
        word_row = hash_of(2 * row + second, _ROW_SEED)
        even = word_row * hash_of(2 * lane - _L * second, _LANE_SEED)
        odd = word_row * hash_of(2 * lane + 1 - _L * second, _LANE_SEED)
        whole = bits.to(tl.uint64, bitcast=True)
        terms = even.to(tl.uint64) * (whole & 0xFFFFFFFF) + odd.to(tl.uint64) * (whole >> 32)
    else:
        terms = weight.to(tl.uint64) * word_of(bits)
    fingerprint = tl.sum(terms, axis=1)  # bits outside are 0, and so are their terms
    finite = inside & (tl.abs(value) < _BIG)
    wide = value.to(tl.float64)
    off = tl.where(finite, wide - shift.to(tl.float64), 0.0)
    kept = tl.where(finite, value, 0.0)
    signed = tl.where(weight >= 0x80000000, -kept, kept).to(tl.float32)
    return (
        tl.sum(off, axis=1),
        tl.sum(off * off, axis=1),
        tl.sum(tl.abs(kept).to(tl.float64), axis=1),
        tl.min(tl.where(finite, value, _BIG), axis=1),
        tl.max(tl.where(finite, value, -_BIG), axis=1),
        tl.sum((inside & (value == 0)).to(tl.int32), axis=1),
        tl.sum((inside & (value != value)).to(tl.int32), axis=1),
        tl.sum((inside & (value == _BIG)).to(tl.int32), axis=1),
        tl.sum((inside & (value == -_BIG)).to(tl.int32), axis=1),
        fingerprint,
        signed,
    )


@jit
def _measure(  # type: ignore[no-untyped-def]
    x,
    slab,
    scratch,
    count,
    full,
    KIND: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUPS: tl.constexpr,
    VECTOR: tl.constexpr,
    PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
    N: tl.constexpr,
    DEFER: tl.constexpr,
    WIDE: tl.constexpr,
):
    """`full` tiles are whole; what is left of `count` after them, less than a tile, goes through the exact path."""
    pid, programs = tl.program_id(0), tl.num_programs(0)
    group = tl.arange(0, GROUPS)
    lane = group[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    if PAIRS:
        pairs = x.to(tl.pointer_type(tl.uint32))
        pair = group[:, None] * (VECTOR // 2) + tl.arange(0, VECTOR // 2)[None, :]
        even_hash, odd_hash = hash_of(2 * pair, _LANE_SEED), hash_of(2 * pair + 1, _LANE_SEED)
        lane_hash = tl.reshape(tl.join(even_hash, odd_hash), [GROUPS, VECTOR])
    else:
        lane_hash = hash_of(lane, _LANE_SEED)
    live = group < _L // VECTOR  # 4016 lanes in 4096: the last threads idle, and what they add up is dropped

    # Sums of squares cancel when the mean is large beside the spread, so each program subtracts the mean of its first
    # row, which is near enough to the mean of the rest.
    start = tl.cast(pid, tl.int64) * (ROWS * _L)
    inside = lane < tl.minimum(count - start, _L).to(tl.int32)
    opening = value_of(tl.load(x + start + lane, mask=inside, other=0), KIND)
    finite = inside & (tl.abs(opening) < _BIG)
    number = tl.sum(tl.sum(finite.to(tl.int32), axis=1), axis=0)
    total = tl.sum(tl.sum(tl.where(finite, opening, 0.0).to(tl.float64), axis=1), axis=0)
    shift = (total / tl.maximum(number, 1).to(tl.float64)).to(opening.dtype)

    sum1 = tl.zeros([GROUPS], tl.float64)  # of the differences from shift
    sum2 = tl.zeros([GROUPS], tl.float64)  # of their squares
    sum_abs = tl.zeros([GROUPS], tl.float64)
    low = tl.full([GROUPS], _BIG, opening.dtype)
    high = tl.full([GROUPS], -_BIG, opening.dtype)
    zero = tl.zeros([GROUPS], tl.int32)
    nan = tl.zeros([GROUPS], tl.int32)
    pos = tl.zeros([GROUPS], tl.int32)
    neg = tl.zeros([GROUPS], tl.int32)
    fingerprint = tl.zeros([GROUPS], tl.uint64)
    sketch = tl.zeros([GROUPS, VECTOR], tl.float32)

    TWO: tl.constexpr = "bf16x2" if KIND == "bfloat16" else "f16x2"
    IS_ZERO: tl.constexpr = "set.eq." + TWO + "." + TWO + " t, $2, z; "
    ZEROS: tl.constexpr = "{ .reg .b32 t, z; mov.b32 z, 0; " + IS_ZERO + "add.rn." + TWO + " $0, $1, t; }"
    tiles = (count + (ROWS * _L - 1)) // (ROWS * _L)
    tail = full % programs == pid  # the program that has the tile after the whole ones
    first = pid
    if WIDE:
        # Doubles have no fast and exact sums, but looking at each value takes twice as long as all the rest: so it is
        # done only where the sums show that something was not finite.
        second = (2 * lane >= _L).to(tl.int32)
        even_word = hash_of(2 * lane - _L * second, _LANE_SEED)
        odd_word = hash_of(2 * lane + 1 - _L * second, _LANE_SEED)
        for tile in range(pid, full, programs):
            for step in tl.static_range(ROWS):
                row = tile * ROWS + step
                bits = tl.load(x + tl.cast(row, tl.int64) * _L + lane, mask=live[:, None], other=0)
                value = value_of(bits, KIND)
                off = value - shift
                whole = bits.to(tl.uint64, bitcast=True)
                word_row = tl.where(second == 1, hash_of(2 * row + 1, _ROW_SEED), hash_of(2 * row, _ROW_SEED))
                terms = (word_row * even_word).to(tl.uint64) * (whole & 0xFFFFFFFF)
                terms += (word_row * odd_word).to(tl.uint64) * (whole >> 32)
                weight = hash_of(row, _ROW_SEED) * lane_hash
                single = value.to(tl.float32).to(tl.uint32, bitcast=True) ^ (weight & 0x80000000)
                sum1 += tl.sum(off, axis=1)
                sum2 += tl.sum(off * off, axis=1)
                sum_abs += tl.sum(tl.abs(value), axis=1)
                low = tl.minimum(low, tl.min(value, axis=1))
                high = tl.maximum(high, tl.max(value, axis=1))
                zero += tl.sum((value == 0).to(tl.int32), axis=1)
                fingerprint += tl.sum(terms, axis=1)
                sketch += single.to(tl.float32, bitcast=True)
        first = tl.where(tail, full, tiles)
        if tl.min(((sum2 < 1e70) | (live == 0)).to(tl.int32), axis=0) == 0:
            first = pid
            sum1 = tl.zeros([GROUPS], tl.float64)
            sum2 = tl.zeros([GROUPS], tl.float64)
            sum_abs = tl.zeros([GROUPS], tl.float64)
            low = tl.full([GROUPS], _BIG, opening.dtype)
            high = tl.full([GROUPS], -_BIG, opening.dtype)
            zero = tl.zeros([GROUPS], tl.int32)
            fingerprint = tl.zeros([GROUPS], tl.uint64)
            sketch = tl.zeros([GROUPS, VECTOR], tl.float32)
    for chunk in range(first, tiles, programs * CHUNK):
        stop = tl.minimum(chunk + programs * CHUNK, tiles)
        redo = chunk
        if not EXACT:
            c_sum1 = tl.zeros([GROUPS], tl.float32)
            c_sum2 = tl.zeros([GROUPS], tl.float32)
            c_abs = tl.zeros([GROUPS], tl.float32)
            if PAIRS:
                c_low = tl.full([GROUPS, VECTOR // 2], 0x7F807F80 if KIND == "bfloat16" else 0x7C007C00, tl.uint32)
                c_high = tl.full([GROUPS, VECTOR // 2], 0xFF80FF80 if KIND == "bfloat16" else 0xFC00FC00, tl.uint32)
                c_zero = tl.zeros([GROUPS, VECTOR // 2], tl.uint32)
                c_sketch = tl.zeros([GROUPS, VECTOR // 2], tl.float32)
                c_odd = tl.zeros([GROUPS, VECTOR // 2], tl.float32)
            else:
                c_low = tl.full([GROUPS], _BIG, tl.float32)
                c_high = tl.full([GROUPS], -_BIG, tl.float32)
                c_zero = tl.zeros([GROUPS], tl.int32)
                c_sketch = tl.zeros([GROUPS, VECTOR], tl.float32)
            for tile in tl.range(chunk, tl.minimum(stop, full), programs, num_stages=STAGES):
                for step in tl.static_range(ROWS):
                    row_hash = hash_of(tile * ROWS + step, _ROW_SEED)
                    start = tl.cast(tile, tl.int64) * (ROWS * _L) + step * _L
                    if PAIRS:
                        words = tl.load(pairs + start // 2 + pair, mask=live[:, None], other=0)
                        even, word = half(words, False, KIND)
                        c_sum1, c_sum2, c_abs, fingerprint, c_sketch = _add(
                            even, word, row_hash * even_hash, shift, c_sum1, c_sum2, c_abs, fingerprint, c_sketch
                        )
                        odd, word = half(words, True, KIND)
                        c_sum1, c_sum2, c_abs, fingerprint, c_odd = _add(
                            odd, word, row_hash * odd_hash, shift, c_sum1, c_sum2, c_abs, fingerprint, c_odd
                        )
                        c_low = two("min." + TWO + " $0, $1, $2;", c_low, words)
                        c_high = two("max." + TWO + " $0, $1, $2;", c_high, words)
                        c_zero = two(ZEROS, c_zero, words)
                    else:
                        bits = tl.load(x + start + lane, mask=live[:, None], other=0)
                        value = value_of(bits, KIND)
                        c_sum1, c_sum2, c_abs, fingerprint, c_sketch = _add(
                            value,
                            word_of(bits),
                            row_hash * lane_hash,
                            shift,
                            c_sum1,
                            c_sum2,
                            c_abs,
                            fingerprint,
                            c_sketch,
                        )
                        c_low = tl.minimum(c_low, tl.min(value, axis=1))
                        c_high = tl.maximum(c_high, tl.max(value, axis=1))
                        c_zero += tl.sum((value == 0).to(tl.int32), axis=1)
            if PAIRS:
                c_low = tl.min(tl.minimum(half(c_low, False, KIND)[0], half(c_low, True, KIND)[0]), axis=1)
                c_high = tl.max(tl.maximum(half(c_high, False, KIND)[0], half(c_high, True, KIND)[0]), axis=1)
                c_zero = tl.sum(half(c_zero, False, KIND)[0] + half(c_zero, True, KIND)[0], axis=1).to(tl.int32)
                c_sketch = tl.reshape(tl.join(c_sketch, c_odd), [GROUPS, VECTOR])
            # A NaN, an Inf or an overflow leaves no finite sum of squares; squares that vanish leave one too small.
            # An empty chunk and a constant one pass, their extremes being one value.
            sound = (c_sum2 < 3e38) & ((c_sum2 > 1e-24) | (c_low >= c_high))
            redo = tl.where(tail, full, stop)
            if tl.min((sound | (live == 0)).to(tl.int32), axis=0) == 1:
                sum1 += c_sum1.to(tl.float64)
                sum2 += c_sum2.to(tl.float64)
                sum_abs += c_abs.to(tl.float64)
                low = tl.minimum(low, c_low)
                high = tl.maximum(high, c_high)
                zero += c_zero
                sketch += c_sketch
            else:
                redo = chunk
        for tile in range(redo, stop, programs):
            for row in range(tile * ROWS, tl.minimum(tile * ROWS + ROWS, (count + (_L - 1)) // _L)):
                a, b, c, d, e, f, g, h, i, j, k = _exact(x, row, count, lane, lane_hash, shift, KIND)
                sum1 += a
                sum2 += b
                sum_abs += c
                low = tl.minimum(low, d)
                high = tl.maximum(high, e)
                zero += f
                nan += g
                pos += h
                neg += i
                if EXACT:
                    fingerprint += j
                else:
                    fingerprint += tl.where(tile < full, 0, j)  # the fast path had the whole tiles
                sketch += k

    own = ((full - pid + programs - 1) // programs).to(tl.int64) * (ROWS * _L)
    own += tl.where(tail, count - tl.cast(full, tl.int64) * (ROWS * _L), 0)
    nans = tl.sum(nan, axis=0).to(tl.int64)
    poss = tl.sum(pos, axis=0).to(tl.int64)
    negs = tl.sum(neg, axis=0).to(tl.int64)
    number = own - nans - poss - negs
    share = 1.0 / tl.maximum(number, 1).to(tl.float64)
    part1 = tl.sum(tl.where(live, sum1, 0.0), axis=0)
    part2 = tl.sum(tl.where(live, sum2, 0.0), axis=0)
    field = scratch + 8 + pid
    real = field.to(tl.pointer_type(tl.float64))
    tl.store(field, number)
    tl.store(field + N, nans)
    tl.store(field + 2 * N, poss)
    tl.store(field + 3 * N, negs)
    tl.store(field + 4 * N, tl.sum(tl.where(live, zero, 0), axis=0).to(tl.int64))
    tl.store(real + 5 * N, shift.to(tl.float64) + part1 * share)
    tl.store(real + 6 * N, part2 - part1 * part1 * share)
    tl.store(real + 7 * N, tl.sum(tl.where(live, sum_abs, 0.0), axis=0))
    tl.store(real + 8 * N, tl.min(tl.where(live, low, _BIG), axis=0).to(tl.float64))
    tl.store(real + 9 * N, tl.max(tl.where(live, high, -_BIG), axis=0).to(tl.float64))
    tl.store(field + 10 * N, tl.sum(tl.where(live, fingerprint, 0), axis=0).to(tl.int64, bitcast=True))

    # Sixteen lanes share a bucket, 251 lanes apart, in sixteen different warps: one exchange through shared memory.
    bucket = tl.arange(0, 256)
    source = tl.minimum(tl.arange(0, 16)[:, None] * _B + bucket[None, :], 4095)
    mixed = tl.gather(tl.reshape(sketch, [4096]), tl.reshape(source, [4096]), 0)
    shelf = (scratch + 8 + _F * N).to(tl.pointer_type(tl.float32))
    tl.store(shelf + pid * 256 + bucket, tl.sum(tl.reshape(mixed, [16, 256]), axis=0))

    if pid == 0:
        ten = tl.arange(0, 16)
        bits = tl.load(x + ten, mask=ten < tl.minimum(count, _H), other=0)
        tl.store(
            (slab + _HEAD).to(tl.pointer_type(tl.float64)) + ten, value_of(bits, KIND).to(tl.float64), mask=ten < _H
        )

    if DEFER:
        if pid == 0:
            tl.store(scratch, programs.to(tl.int64))
    else:
        # The barrier brings all threads' stores before the ticket, which brings them before the last program's loads.
        tl.debug_barrier()
        if tl.atomic_add(scratch.to(tl.pointer_type(tl.int32)), 1, sem="acq_rel") == programs - 1:
            tl.store(scratch, 0)  # ready for the next launch
            _finish(slab, scratch + 8, shelf, programs, N)


@jit
def _finish_all(slabs, scratch, stride, N: tl.constexpr, SLAB: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program for each tensor whose parts wait: the last one of many launches does not have to do it."""
    row = tl.program_id(0).to(tl.int64)
    own = scratch + row * stride
    programs = tl.load(own).to(tl.int32)
    shelf = (own + 8 + _F * N).to(tl.pointer_type(tl.float32))
    _finish(slabs + row * SLAB, own + 8, shelf, programs, N)


@jit
def _finish(slab, field, shelf, programs, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """The whole from its parts: Chan's formula for the spread, plain sums and extremes for the rest."""
    part = tl.arange(0, N)
    there = part < programs
    real = field.to(tl.pointer_type(tl.float64))
    number = tl.load(field + part, mask=there, other=0, cache_modifier=".cg").to(tl.float64)
    for slot in tl.static_range(4):
        counts = tl.load(field + (slot + 1) * N + part, mask=there, other=0, cache_modifier=".cg")
        tl.store(slab + _COUNTS + slot, tl.sum(counts, axis=0))
    means = tl.load(real + 5 * N + part, mask=there, other=0.0, cache_modifier=".cg")
    spread = tl.load(real + 6 * N + part, mask=there, other=0.0, cache_modifier=".cg")
    sizes = tl.load(real + 7 * N + part, mask=there, other=0.0, cache_modifier=".cg")
    lows = tl.load(real + 8 * N + part, mask=there, other=_BIG, cache_modifier=".cg")
    highs = tl.load(real + 9 * N + part, mask=there, other=-_BIG, cache_modifier=".cg")
    prints = tl.load(field + 10 * N + part, mask=there, other=0, cache_modifier=".cg")
    mean = tl.sum(number * means, axis=0) / tl.maximum(tl.sum(number, axis=0), 1.0)
    out = (slab + _SUMS).to(tl.pointer_type(tl.float64))
    tl.store(out, mean)
    tl.store(out + 1, tl.sum(spread + number * (means - mean) * (means - mean), axis=0))
    tl.store(out + 2, tl.sum(sizes, axis=0))
    tl.store(out + 3, tl.min(lows, axis=0))
    tl.store(out + 4, tl.max(highs, axis=0))
    tl.store(slab + _PRINT, tl.sum(prints, axis=0))
    bucket = tl.arange(0, 256)[None, :]
    total = tl.zeros([64, 256], tl.float64)
    for base in range(0, programs, 64):
        piece = base + tl.arange(0, 64)[:, None]
        total += tl.load(shelf + piece * 256 + bucket, mask=piece < programs, other=0.0, cache_modifier=".cg")
    sketch = tl.sum(total, axis=0).to(tl.float32)
    tl.store((slab + _SKETCH).to(tl.pointer_type(tl.float32)) + tl.arange(0, 256), sketch, mask=tl.arange(0, 256) < _B)
