"""The fused kernel itself: what one program does, and how the last one adds up what all have left.

kernel.py launches it and says why it is built so; bits.py decodes the elements.
"""

from __future__ import annotations

from layertap.measure.bits import FOUND, hash_of, jit, value_of, word_of
from layertap.measure.definition import BUCKETS, FIRST, LANE_SEED, LANES, ROW_SEED
from layertap.measure.packed import by_lane, byte_chunk, fetch_half, float_chunk
from layertap.measure.slab import COUNTS, HEAD, PRINT, SKETCH, SUMS
from layertap.measure.wide import wide_chunk

if FOUND:
    import triton.language as tl

MOST = 256
"""Programs; the width of the last program's reductions."""
HEADER = 8
"""Words of the scratch memory before the partial results: the ticket, or how many programs there were."""
NEAR, STILL_NEAR = 0.8, 0.86
"""How large a part of the mean square the mean's square may be where squares are added up as they are: in a program's
first row, and in each chunk, which is else read again: rounding then moves the variance by some millionths at most."""
FIELDS = 11
"""Numbers that each program leaves in the scratch memory, besides its sketch."""

if FOUND:
    _L, _B, _BIG = tl.constexpr(LANES), tl.constexpr(BUCKETS), tl.constexpr(float("inf"))
    _ROW_SEED, _LANE_SEED = tl.constexpr(ROW_SEED), tl.constexpr(LANE_SEED)
    _F, _H = tl.constexpr(FIELDS), tl.constexpr(FIRST)
    _NEAR, _STILL_NEAR = tl.constexpr(NEAR), tl.constexpr(STILL_NEAR)
    _COUNTS, _SUMS, _PRINT = tl.constexpr(COUNTS), tl.constexpr(SUMS), tl.constexpr(PRINT)
    _HEAD, _SKETCH = tl.constexpr(HEAD), tl.constexpr(SKETCH)


@jit
def _exact(x, row, count, lane, lane_hash, live, shift, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row in float64, each value looked at: sums, extremes and counts a group; fingerprint; signed values."""
    start = tl.cast(row, tl.int64) * _L
    inside = live[:, None] & (lane < tl.minimum(count - start, _L).to(tl.int32))
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
def _plain_chunk(  # type: ignore[no-untyped-def]
    x, first, stop, step, left, lane, live, lane_hash, shift, KIND: tl.constexpr, ROWS: tl.constexpr
):
    """Of whole tiles, as if all were finite: sums, of squares, of sizes; extremes, zeros; fingerprint; sketch."""
    WIDE: tl.constexpr = KIND == "float64"
    sum1 = tl.zeros([lane.shape[0]], shift.dtype)
    sum2, sum_abs = sum1, sum1
    low, high = sum1 + _BIG, sum1 - _BIG
    zero = tl.zeros([lane.shape[0]], tl.int32)
    fingerprint = tl.zeros([lane.shape[0]], tl.uint64)
    sketch = tl.zeros(lane.shape, tl.float32)
    if WIDE:  # two words an element; all lanes of a program are in the same half of the row, so in one row of words
        second = (2 * left >= _L).to(tl.int32)
        even_hash = hash_of(2 * lane - _L * second, _LANE_SEED)
        odd_hash = hash_of(2 * lane + 1 - _L * second, _LANE_SEED)
    for tile in range(first, stop, step):
        for part in tl.static_range(ROWS):
            row = tile * ROWS + part
            bits = tl.load(x + tl.cast(row, tl.int64) * _L + lane, mask=live[:, None], other=0)
            value = value_of(bits, KIND)
            weight = hash_of(row, _ROW_SEED) * lane_hash
            if WIDE:
                word_row = hash_of(2 * row + second, _ROW_SEED)
                whole = bits.to(tl.uint64, bitcast=True)
                terms = (word_row * even_hash).to(tl.uint64) * (whole & 0xFFFFFFFF)
                terms += (word_row * odd_hash).to(tl.uint64) * (whole >> 32)
            else:
                terms = weight.to(tl.uint64) * word_of(bits)
            off = value - shift
            sum1 += tl.sum(off, axis=1)
            sum2 += tl.sum(off * off, axis=1)
            sum_abs += tl.sum(tl.abs(value), axis=1)
            low = tl.minimum(low, tl.min(value, axis=1))
            high = tl.maximum(high, tl.max(value, axis=1))
            zero += tl.sum((value == 0).to(tl.int32), axis=1)
            fingerprint += tl.sum(terms, axis=1)
            signed = value.to(tl.float32).to(tl.uint32, bitcast=True) ^ (weight & 0x80000000)
            sketch += signed.to(tl.float32, bitcast=True)
    zero = tl.where(live, zero, 0)
    return tl.where(live, sum1, 0.0), sum2, tl.where(live, sum_abs, 0.0), low, high, zero, fingerprint, sketch


@jit
def _both(  # type: ignore[no-untyped-def]
    a0, b0, c0, d0, e0, f0, g0, h0, low0, high0, a1, b1, c1, d1, e1, f1, g1, h1, low1, high1
):
    low, high = tl.minimum(low0, low1), tl.maximum(high0, high1)
    return a0 + a1, b0 + b1, c0 + c1, d0 + d1, e0 + e1, f0 + f1, g0 + g1, h0 + h1, low, high


@jit
def _both_sums(a0, b0, a1, b1):  # type: ignore[no-untyped-def]
    return a0 + a1, b0 + b1


@jit
def _all_sums(a0, b0, c0, a1, b1, c1):  # type: ignore[no-untyped-def]
    return a0 + a1, b0 + b1, c0 + c1


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
    SLICES: tl.constexpr,
    PACKED: tl.constexpr,
    N: tl.constexpr,
    DEFER: tl.constexpr,
):
    """`full` tiles are whole; the rows after them, less than a tile, go through the exact path.

    A program has one slice of the lanes of its rows, so that few enough lanes belong to a thread.
    """
    WIDTH: tl.constexpr = _L // SLICES
    BYTE: tl.constexpr = x.dtype.element_ty == tl.uint8
    pid, programs = tl.program_id(0), tl.num_programs(0)
    worker, workers, left = pid // SLICES, programs // SLICES, pid % SLICES * WIDTH
    group = tl.arange(0, GROUPS)
    lane = left + group[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    live = group < WIDTH // VECTOR  # 4016 lanes in 4096: the last threads idle
    if PACKED and KIND != "float64":
        lane_hashes = (hash_of(group * 8, _LANE_SEED),)
        for at in tl.static_range(1, 8):
            following = (hash_of(group * 8 + at, _LANE_SEED),)
            lane_hashes = lane_hashes + following  # type: ignore[assignment]
        lane_hash = by_lane(lane_hashes, GROUPS)
    else:
        lane_hash = hash_of(lane, _LANE_SEED)

    centred = PACKED and KIND != "float64"
    if PACKED and KIND != "float64":
        ahead = fetch_half(x, tl.minimum(worker, tl.maximum(full - 1, 0)), 0, ROWS, GROUPS)
    if PACKED and BYTE:
        shift = tl.cast(0.0, tl.float32)  # the sums are exact, or nearly
    else:
        # Sums of squares cancel when the mean is large beside the spread, so each program subtracts the mean of its
        # first row, which is near enough to the mean of the rest. Of short numbers a small one is not subtracted.
        start = tl.cast(worker, tl.int64) * (ROWS * _L)
        inside = live[:, None] & (lane < tl.minimum(count - start, _L).to(tl.int32))
        opening = value_of(tl.load(x + start + lane, mask=inside, other=0), KIND)
        finite = inside & (tl.abs(opening) < _BIG)
        opened = tl.where(finite, opening, 0.0).to(tl.float64)
        total, squared, number = tl.reduce(
            (tl.sum(opened, axis=1), tl.sum(opened * opened, axis=1), tl.sum(finite.to(tl.int32), axis=1)),
            0,
            _all_sums,
        )
        if PACKED and KIND != "float64":
            centred = total * total <= number * squared * _NEAR
            total = tl.where(centred, 0.0, total)
        shift = (total / tl.maximum(number, 1).to(tl.float64)).to(opening.dtype)

    sum1 = tl.zeros([GROUPS], tl.float64)  # of the differences from shift
    sum2 = tl.zeros([GROUPS], tl.float64)  # of their squares
    sum_abs = tl.zeros([GROUPS], tl.float64)
    low = tl.full([GROUPS], _BIG, shift.dtype)
    high = tl.full([GROUPS], -_BIG, shift.dtype)
    zero = tl.zeros([GROUPS], tl.int32)
    nan = tl.zeros([GROUPS], tl.int32)
    pos = tl.zeros([GROUPS], tl.int32)
    neg = tl.zeros([GROUPS], tl.int32)
    fingerprint = tl.zeros([GROUPS], tl.uint64)
    sketch = tl.zeros([GROUPS, VECTOR], tl.float32)

    rows = ((count + (_L - 1)) // _L).to(tl.int32)
    tiles = (full - worker + workers - 1) // workers
    chunks = (tiles + CHUNK - 1) // CHUNK
    own = tiles.to(tl.int64) * (ROWS * WIDTH)
    moved = own * 0  # elements of which the sum is not of the differences
    for at in range(chunks + 1):
        # After the last chunk come the rows that make no whole tile, each for another program.
        whole = at < chunks
        item = full * ROWS + (worker - full % workers + workers) % workers
        stop, unit = rows, 1
        if whole:
            item = worker + at * workers * CHUNK
            stop, unit = tl.minimum(item + workers * CHUNK, full), ROWS
            if not EXACT:
                if PACKED and (KIND == "int8" or KIND == "uint8" or KIND == "bool"):
                    ahead, c_sum1, c_sum2, c_abs, c_low, c_high, c_zero, c_print, c_sketch = byte_chunk(
                        x, ahead, full, item, stop, workers, lane_hashes, KIND, ROWS, GROUPS
                    )
                elif PACKED and KIND == "float64":
                    second = (2 * left >= _L).to(tl.int32)
                    c_sum1, c_sum2, c_abs, c_low, c_high, c_zero, c_print, c_sketch = wide_chunk(
                        x, item, stop, workers, second, lane, live, lane_hash, shift, ROWS
                    )
                elif PACKED:
                    if centred:
                        ahead, c_sum1, c_sum2, c_abs, c_low, c_high, c_zero, c_print, c_sketch = float_chunk(
                            x, ahead, full, item, stop, workers, lane_hashes, shift, KIND, ROWS, GROUPS, False
                        )
                    else:
                        ahead, c_sum1, c_sum2, c_abs, c_low, c_high, c_zero, c_print, c_sketch = float_chunk(
                            x, ahead, full, item, stop, workers, lane_hashes, shift, KIND, ROWS, GROUPS, True
                        )
                else:
                    c_sum1, c_sum2, c_abs, c_low, c_high, c_zero, c_print, c_sketch = _plain_chunk(
                        x, item, stop, workers, left, lane, live, lane_hash, shift, KIND, ROWS
                    )
                fingerprint += c_print
                # A NaN, an Inf or an overflow leaves no finite sum of squares; squares that vanish leave one too small.
                # A constant chunk passes, its extremes being one value.
                if PACKED and BYTE:
                    few = c_sum2 < 3e38
                elif KIND == "float64":
                    few = c_sum2 < 1e70
                else:
                    few = (c_sum2 < 3e38) & ((c_sum2 > 1e-24) | (c_low >= c_high))
                sound = tl.min((few | (live == 0)).to(tl.int32), axis=0) == 1
                c_sum2 = tl.where(live, c_sum2, 0)
                if PACKED and KIND != "float64" and not BYTE:
                    mean, size = tl.reduce((c_sum1 / _L, c_sum2 / _L), 0, _both_sums)
                    its_rows = ((stop - item + workers - 1) // workers * ROWS).to(tl.float32)
                    sound = sound & ((centred == 0) | (mean * mean <= size * its_rows * _STILL_NEAR))
                if sound:
                    sum1 += c_sum1.to(tl.float64)
                    sum2 += c_sum2.to(tl.float64)
                    sum_abs += c_abs.to(tl.float64)
                    low = tl.minimum(low, tl.where(live, c_low, _BIG))
                    high = tl.maximum(high, tl.where(live, c_high, -_BIG))
                    zero += c_zero
                    sketch += c_sketch
                    if PACKED and KIND != "float64":
                        moved += ((stop - item + workers - 1) // workers).to(tl.int64) * (ROWS * WIDTH)
                    item = stop
        for each in range(item, stop, workers):
            for row in range(each * unit, each * unit + unit):
                a, b, c, d, e, f, g, h, i, j, k = _exact(x, row, count, lane, lane_hash, live, shift, KIND)
                sum1 += a
                sum2 += b
                sum_abs += c
                low = tl.minimum(low, d)
                high = tl.maximum(high, e)
                zero += f
                nan += g
                pos += h
                neg += i
                fingerprint += tl.where(whole and not EXACT, 0, j)  # the fast path had the whole tiles
                sketch += k
                here = tl.minimum(tl.maximum(count - tl.cast(row, tl.int64) * _L - left, 0), WIDTH).to(tl.int64)
                own += tl.where(whole, 0, here)

    part1, part2, sizes, prints, zeros, nans, poss, negs, least, most = tl.reduce(
        (sum1, sum2, sum_abs, fingerprint, zero, nan, pos, neg, low, high), 0, _both
    )
    part1 -= shift.to(tl.float64) * moved.to(tl.float64)
    number = own - nans - poss - negs
    share = 1.0 / tl.maximum(number, 1).to(tl.float64)
    field = scratch + 8 + pid
    real = field.to(tl.pointer_type(tl.float64))
    tl.store(field, number)
    tl.store(field + N, nans.to(tl.int64))
    tl.store(field + 2 * N, poss.to(tl.int64))
    tl.store(field + 3 * N, negs.to(tl.int64))
    tl.store(field + 4 * N, zeros.to(tl.int64))
    tl.store(real + 5 * N, shift.to(tl.float64) + part1 * share)
    tl.store(real + 6 * N, part2 - part1 * part1 * share)
    tl.store(real + 7 * N, sizes)
    tl.store(real + 8 * N, least.to(tl.float64))
    tl.store(real + 9 * N, most.to(tl.float64))
    tl.store(field + 10 * N, prints.to(tl.int64, bitcast=True))

    # Sixteen lanes share a bucket, 251 lanes apart, in sixteen different warps: one exchange through shared memory.
    WHOLE: tl.constexpr = GROUPS * VECTOR
    bucket = tl.arange(0, 256)
    source = tl.minimum(tl.arange(0, 16 // SLICES)[:, None] * _B + bucket[None, :], WHOLE - 1)
    mixed = tl.gather(tl.reshape(sketch, [WHOLE]), tl.reshape(source, [WHOLE]), 0)
    shelf = (scratch + 8 + _F * N).to(tl.pointer_type(tl.float32))
    tl.store(shelf + pid * 256 + bucket, tl.sum(tl.reshape(mixed, [16 // SLICES, 256]), axis=0))

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
    nans = tl.load(field + N + part, mask=there, other=0, cache_modifier=".cg")
    poss = tl.load(field + 2 * N + part, mask=there, other=0, cache_modifier=".cg")
    negs = tl.load(field + 3 * N + part, mask=there, other=0, cache_modifier=".cg")
    zeros = tl.load(field + 4 * N + part, mask=there, other=0, cache_modifier=".cg")
    means = tl.load(real + 5 * N + part, mask=there, other=0.0, cache_modifier=".cg")
    spread = tl.load(real + 6 * N + part, mask=there, other=0.0, cache_modifier=".cg")
    sizes = tl.load(real + 7 * N + part, mask=there, other=0.0, cache_modifier=".cg")
    lows = tl.load(real + 8 * N + part, mask=there, other=_BIG, cache_modifier=".cg")
    highs = tl.load(real + 9 * N + part, mask=there, other=-_BIG, cache_modifier=".cg")
    prints = tl.load(field + 10 * N + part, mask=there, other=0, cache_modifier=".cg")
    numbers, sums, nan, pos, neg, zero, size, fingerprint, low, high = tl.reduce(
        (number, number * means, nans, poss, negs, zeros, sizes, prints, lows, highs), 0, _both
    )
    mean = sums / tl.maximum(numbers, 1.0)
    tl.store(slab + _COUNTS, nan)
    tl.store(slab + _COUNTS + 1, pos)
    tl.store(slab + _COUNTS + 2, neg)
    tl.store(slab + _COUNTS + 3, zero)
    out = (slab + _SUMS).to(tl.pointer_type(tl.float64))
    tl.store(out, mean)
    tl.store(out + 1, tl.sum(spread + number * (means - mean) * (means - mean), axis=0))
    tl.store(out + 2, size)
    tl.store(out + 3, low)
    tl.store(out + 4, high)
    tl.store(slab + _PRINT, fingerprint)
    bucket = tl.arange(0, 256)[None, :]
    total = tl.zeros([64, 256], tl.float64)
    for base in range(0, programs, 64):
        piece = base + tl.arange(0, 64)[:, None]
        total += tl.load(shelf + piece * 256 + bucket, mask=piece < programs, other=0.0, cache_modifier=".cg")
    sketch = tl.sum(total, axis=0).to(tl.float32)
    tl.store((slab + _SKETCH).to(tl.pointer_type(tl.float32)) + tl.arange(0, 256), sketch, mask=tl.arange(0, 256) < _B)
