/* What a part adds to the fingerprint and the sketch of its whole: the CPU's half of part/, loaded by part/native.py.
 *
 * Element types, vector helpers and the trick of a file that includes itself (once for any processor, once for AVX2)
 * are onepass.c's. A box (part/place.py) is walked run by run, a run being neighbours in the part that are neighbours in
 * the whole too. Runs may be short, so all of a chunk add to one set of lanes, which are folded to buckets at its end.
 * Threads take chunks off a counter; each chunk has a result of its own, and they are added in order.
 */
#ifndef PARTS_INSIDE
#include "onepass.c"

enum { LEVELS = 64, PART_CHUNK = 1 << 18 };

typedef struct { /* the same as in part/native.py */
    uint64_t fingerprint;
    double sketch[BUCKETS];
} PartSums;

typedef struct { /* how many, how far apart in the part, and how far apart in the whole */
    int64_t extent, step, whole_step;
} Level;

typedef struct { /* the same as in part/native.py */
    const char *x;
    const Level *levels; /* the outer one first; the last one's steps are 1 */
    int64_t depth, start, whole_start, kind;
    const float *table;
} Box;

typedef double Lanes __attribute__((vector_size(32), may_alias, aligned(8)));

/* Element `l` of a row, one at a time: tails, short runs, and the kinds that only a double holds. */
INLINE uint64_t add_one(enum kind kind, const float *table, const char *x, uint32_t row, int64_t l, double *lanes) {
    double value = value_at(kind, table, x, 0);
    uint32_t weight = row * lane_hashes[l], bits = 0;
    if (isfinite(value)) lanes[l] += weight >> 31 ? -value : value;
    if (SIZE[kind] == 8) return 0;
    memcpy(&bits, x, (size_t)SIZE[kind]);
    return (uint64_t)weight * bits;
}

#define PARTS_INSIDE
#undef NAME
#define NAME(name) name##_any
#include "parts.c"
#undef NAME
#ifdef HAVE_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_avx2
#include "parts.c"
#undef NAME
#pragma GCC pop_options
#endif

static int64_t elements(const Box *b) {
    int64_t count = 1;
    for (int64_t l = 0; l < b->depth; l++) count *= b->levels[l].extent;
    return count;
}

int64_t layertap_part_size(void) { return sizeof(PartSums); }

/* How many results `layertap_part` will write. */
int64_t layertap_part_chunks(const Box *b) { return (elements(b) + PART_CHUNK - 1) / PART_CHUNK; }

/* Takes chunks off the shared counter `next` until none is left; any number of threads may be in here at once. */
void layertap_part(const Box *b, PartSums *results, int64_t *next) {
    int64_t count = elements(b), chunks = layertap_part_chunks(b), i;
    unsigned mode = keep_subnormals();
    while ((i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks) {
        int64_t begin = i * PART_CHUNK, end = begin + PART_CHUNK < count ? begin + PART_CHUNK : count;
#ifdef HAVE_AVX2
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            part_avx2(b, begin, end, &results[i]);
            continue;
        }
#endif
        part_any(b, begin, end, &results[i]);
    }
    restore(mode);
}

#else /* the part that is compiled once for each instruction set */

INLINE uint64_t NAME(run_of)(enum kind kind, const float *table, const char *x, int64_t begin, int64_t end,
                             double *lanes) {
    const U8 exponent = (U8){0} + 0x7F800000u, top = (U8){0} + 0x80000000u;
    Q4 sum = {0};
    uint64_t rest = 0;
    while (begin < end) {
        int64_t lane = begin % LANES, n = end - begin < LANES - lane ? end - begin : LANES - lane, i = 0;
        uint32_t row = row_hash(begin / LANES);
        for (; kind < F64 && i + 8 <= n; i += 8) { /* what a float holds, eight neighbours at a time */
            U8 w = NAME(words)(kind, x + i * SIZE[kind]), weight = NAME(words32)(lane_hashes + lane + i) * row;
            sum += NAME(products)(weight, w);
            U8 value = (U8)NAME(floats)(kind, w, table);
            value = (value & (U8)((value & exponent) != exponent)) ^ (weight & top);
            Lanes *to = (Lanes *)(lanes + lane + i);
            to[0] += NAME(low)((F8)value), to[1] += NAME(high)((F8)value);
        }
        for (; i < n; i++) rest += add_one(kind, table, x + i * SIZE[kind], row, lane + i, lanes);
        /* The words of 64-bit elements are in rows of their own. */
        if (SIZE[kind] == 8) rest += NAME(print_words)(4, x, 2 * begin, 2 * (begin + n));
        begin += n, x += n * SIZE[kind];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + rest;
}

static uint64_t NAME(run)(enum kind kind, const float *table, const char *x, int64_t begin, int64_t end,
                          double *lanes) {
#define RUN(kind) case kind: return NAME(run_of)(kind, table, x, begin, end, lanes);
    switch (kind) {
        RUN(F32) RUN(F16) RUN(BF16) RUN(TABLE8) RUN(INT8) RUN(UINT8) RUN(INT16) RUN(UINT16)
        RUN(F64) RUN(INT32) RUN(UINT32) RUN(INT64) RUN(UINT64)
    }
#undef RUN
    return 0;
}

static void NAME(part)(const Box *b, int64_t begin, int64_t end, PartSums *out) {
    double lanes[LANES];
    const Level *levels = b->levels;
    const int64_t last = b->depth - 1, length = levels[last].extent;
    int64_t at[LEVELS], place = b->start, index = b->whole_start, left = begin / length, first = begin % length;
    memset(lanes, 0, sizeof lanes);
    memset(out, 0, sizeof *out);
    for (int64_t l = last - 1; l >= 0; l--) {
        at[l] = left % levels[l].extent, left /= levels[l].extent;
        place += at[l] * levels[l].step, index += at[l] * levels[l].whole_step;
    }
    for (int64_t n; begin < end; begin += n, first = 0) {
        n = length - first < end - begin ? length - first : end - begin;
        const char *x = b->x + (place + first) * SIZE[b->kind];
        out->fingerprint += NAME(run)((enum kind)b->kind, b->table, x, index + first, index + first + n, lanes);
        for (int64_t l = last - 1; l >= 0; l--) {
            place += levels[l].step, index += levels[l].whole_step;
            if (++at[l] < levels[l].extent) break;
            at[l] = 0, place -= levels[l].extent * levels[l].step, index -= levels[l].extent * levels[l].whole_step;
        }
    }
    for (int64_t g = 0; g < LANES; g += BUCKETS) EACH(BUCKETS) out->sketch[j] += lanes[g + j];
}
#endif
