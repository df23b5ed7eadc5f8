/* Statistics, fingerprint and sketch of a tensor in one pass over memory: the CPU's half of measure/definition.py.
 *
 * Plain C11 with GCC's vector types and no Python headers; native.py loads it with ctypes. The work is cut into chunks
 * by the tensor's length alone, each chunk has its own result, and the results are merged in order, so the answer does
 * not depend on how many threads took part. Nothing is compiled with -ffast-math: NaN and Inf are what we look for.
 *
 * A chunk goes tile by tile, a tile being up to ROWS rows of LANES elements. Within a tile eight lanes at a time run
 * down all rows, so their lane hashes and sketch sums stay in registers. A tile whose sum is not finite, or whose
 * values could overflow a float sum, is done again element by element. The file includes itself: once for any
 * processor, once for AVX2. (target_clones would spare that, but GCC finds no 32x32->64 multiply without intrinsics.)
 */
#ifndef NAME
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#pragma GCC diagnostic ignored "-Wpsabi" /* all functions that take vectors are inlined: no ABI is crossed */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAVE_AVX2 1
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { BUCKETS = 251, LANES = 16 * BUCKETS, FIRST = 10, ROWS = 8, CHUNK_ROWS = 32, MAX_CHUNKS = 512, SAMPLES = 32 };
enum { PRINT_WORDS = 256 * LANES }; /* that a thread takes at a time */
/* The first eight are exact in a float, the rest need a double. The same numbers stand in native.py. */
enum kind { F32, F16, BF16, TABLE8, INT8, UINT8, INT16, UINT16, F64, INT32, UINT32, INT64, UINT64 };
static const int SIZE[] = {4, 2, 2, 1, 1, 1, 2, 2, 8, 4, 4, 8, 8};

typedef struct {
    int64_t finite;
    double mean, m2, abs_sum, min, max;
    int64_t nan, pos_inf, neg_inf, zero;
    uint64_t fingerprint;
    double first[FIRST], sketch[BUCKETS];
} Result;

typedef struct { /* of one tile, about `center` */
    int64_t finite, nan, pos_inf, neg_inf, zero;
    double center, sum, square, abs_sum, min, max;
    uint64_t fingerprint;
} Sums;

typedef struct { /* where a tile lies */
    const char *x;
    int64_t rows, width, lane, row;
    const float *table;
    int full;
} Tile;

typedef float F8 __attribute__((vector_size(32)));
typedef double D4 __attribute__((vector_size(32), may_alias));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef int64_t S4 __attribute__((vector_size(32)));
typedef uint64_t Q4 __attribute__((vector_size(32)));
#define INLINE static inline __attribute__((always_inline))
#define EACH(count) for (int j = 0; j < (count); j++)

static uint32_t lane_hashes[LANES + 8];

INLINE uint32_t mix(uint32_t h) {
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}
INLINE uint32_t row_hash(int64_t row) { return mix((uint32_t)row + 0x9E3779B9u) | 1; }

INLINE float half_value(uint32_t h) { /* by adding and subtracting: a multiply would meet float's subnormals */
    uint32_t bits = ((h & 0x7FFF) << 13) + (112u << 23);
    float value, least = 6.103515625e-05f;
    if ((h & 0x7C00) == 0) bits += 1u << 23;
    if ((h & 0x7C00) == 0x7C00) bits += 112u << 23;
    memcpy(&value, &bits, 4);
    if ((h & 0x7C00) == 0) value -= least;
    return h & 0x8000 ? -value : value;
}

INLINE double value_at(enum kind kind, const float *table, const char *x, int64_t i) {
    union { float f; double d; uint32_t u; int32_t i; int64_t s; uint64_t q; } v = {0};
    memcpy(&v, x + i * SIZE[kind], (size_t)SIZE[kind]);
    switch (kind) {
    case F32: return v.f;
    case F16: return half_value(v.u);
    case BF16: v.u <<= 16; return v.f;
    case TABLE8: return table[v.u];
    case INT8: return (int8_t)v.u;
    case INT16: return (int16_t)v.u;
    case INT32: return v.i;
    case INT64: return (double)v.s;
    case UINT64: return (double)v.q;
    case F64: return v.d;
    default: return v.u;
    }
}

/* One element at a time: tails, and tiles that hold NaN, Inf, or values near the end of float's range. */
static void scalar_tile(enum kind kind, Tile t, int64_t from, Sums *s, double *part) {
    for (int64_t r = 0; r < t.rows; r++)
        for (int64_t l = from; l < t.width; l++) {
            int64_t i = r * LANES + l, word = (t.row + r) * LANES + t.lane + l;
            double x = value_at(kind, t.table, t.x, i);
            int finite = isfinite(x);
            if (finite) {
                double d = x - s->center;
                s->finite++, s->sum += d, s->square += d * d, s->abs_sum += fabs(x), s->zero += x == 0;
                s->min = x < s->min ? x : s->min, s->max = x > s->max ? x : s->max;
            } else {
                s->nan += x != x, s->pos_inf += x > 0, s->neg_inf += x < 0;
            }
            if (!t.full) continue;
            uint32_t weight = row_hash(t.row + r) * lane_hashes[t.lane + l], bits = 0;
            if (finite) part[l] += weight >> 31 ? -x : x;
            if (SIZE[kind] == 8) {
                for (int64_t k = 2 * word; k < 2 * word + 2; k++) {
                    memcpy(&bits, t.x + i * 8 + (k & 1) * 4, 4);
                    s->fingerprint += (uint64_t)(row_hash(k / LANES) * lane_hashes[k % LANES]) * bits;
                }
            } else {
                memcpy(&bits, t.x + i * SIZE[kind], (size_t)SIZE[kind]);
                s->fingerprint += (uint64_t)weight * bits;
            }
        }
}

/* Chan's formula. A difference of means may overflow a double, so then the means are weighed instead. */
static void merge_moments(Result *to, int64_t count, double mean, double m2) {
    if (count == 0) return;
    double total = (double)to->finite + (double)count, share = (double)count / total, delta = mean - to->mean;
    if (to->finite == 0) {
        to->mean = mean, to->m2 = m2;
    } else {
        to->mean = isfinite(delta) ? to->mean + delta * share : to->mean * (1 - share) + mean * share;
        to->m2 += m2 + delta * delta * share * (double)to->finite;
    }
    to->finite += count;
}

static void merge_counts(Result *to, double abs_sum, double min, double max, int64_t nan, int64_t pos_inf,
                         int64_t neg_inf, int64_t zero, uint64_t fingerprint) {
    to->abs_sum += abs_sum, to->nan += nan, to->pos_inf += pos_inf, to->neg_inf += neg_inf, to->zero += zero;
    to->min = min < to->min ? min : to->min, to->max = max > to->max ? max : to->max;
    to->fingerprint += fingerprint;
}

/* What to subtract, so that squares do not cancel: about the mean, or 0, which costs nothing, where that will do. */
static double center_of(enum kind kind, const float *table, const char *x, int64_t n) {
    double sum = 0, square = 0;
    int64_t count = 0, step = n / SAMPLES + 1;
    for (int64_t i = 0; i < n; i += step) {
        double value = value_at(kind, table, x, i);
        if (fabs(value) < 1e150) sum += value, square += value * value, count++;
    }
    return count && sum * sum > 0.9 * (double)count * square ? sum / (double)count : 0;
}

#define NAME(name) name##_any
#include "onepass.c"
#undef NAME
#ifdef HAVE_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_avx2
#include "onepass.c"
#pragma GCC pop_options
#endif

/* torch.set_flush_denormal is a choice of the calling thread; a measure is a property of the tensor. */
#ifdef __x86_64__
static unsigned keep_subnormals(void) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode & ~0x8040u);
    return mode;
}
static void restore(unsigned mode) { _mm_setcsr(mode); }
#else
static unsigned keep_subnormals(void) { return 0; }
static void restore(unsigned mode) { (void)mode; }
#endif

static int64_t chunk_rows(int64_t rows) {
    int64_t least = (rows + MAX_CHUNKS - 1) / MAX_CHUNKS;
    return least > CHUNK_ROWS ? least : CHUNK_ROWS;
}

void layertap_init(void) {
    for (int l = 0; l < LANES; l++) lane_hashes[l] = mix((uint32_t)l + 0x3C6EF372u) | 1;
}

int64_t layertap_result_size(void) { return sizeof(Result); }

/* How many results `layertap_measure` will write for `n` elements that begin at index `offset`; at least one. */
int64_t layertap_chunks(int64_t n, int64_t offset) {
    int64_t first = offset / LANES, rows = (offset + n + LANES - 1) / LANES - first, step = chunk_rows(rows);
    return rows > 0 ? (rows + step - 1) / step : 1;
}

/* Takes chunks off the shared counter `next` until none is left; any number of threads may be in here at once. */
void layertap_measure(const char *x, int64_t n, int64_t offset, int kind, const float *table, int full, Result *results,
                      int64_t *next) {
    int64_t row = offset / LANES, step = LANES * chunk_rows((offset + n + LANES - 1) / LANES - row);
    int64_t chunks = layertap_chunks(n, offset), i;
    unsigned mode = keep_subnormals();
    while ((i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED)) < chunks) {
        int64_t begin = row * LANES + i * step, end = begin + step;
        if (begin < offset) begin = offset;
        if (end > offset + n) end = offset + n;
        const char *start = x + (begin - offset) * SIZE[kind];
#ifdef HAVE_AVX2
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            chunk_avx2((enum kind)kind, table, start, begin, end, full, &results[i]);
            continue;
        }
#endif
        chunk_any((enum kind)kind, table, start, begin, end, full, &results[i]);
    }
    restore(mode);
}

static uint64_t print_of(int size, const char *x, int64_t begin, int64_t end) {
#ifdef HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return print_avx2(size, x, begin, end);
#endif
    return print_any(size, x, begin, end);
}

/* Adds to `sum` the fingerprint of `n` words of `size` bytes that begin at index `offset`, block by block off the
 * shared counter `next`; any number of threads may be in here at once, since sums of integers have no order. */
void layertap_fingerprint(const char *x, int64_t n, int64_t offset, int size, int64_t *next, uint64_t *sum) {
    int64_t i;
    while ((i = __atomic_fetch_add(next, PRINT_WORDS, __ATOMIC_RELAXED)) < n) {
        int64_t end = i + PRINT_WORDS < n ? i + PRINT_WORDS : n;
        __atomic_fetch_add(sum, print_of(size, x + i * size, offset + i, offset + end), __ATOMIC_RELAXED);
    }
}

static void add_result(Result *to, const Result *part, int full) {
    merge_moments(to, part->finite, part->mean, part->m2);
    merge_counts(to, part->abs_sum, part->min, part->max, part->nan, part->pos_inf, part->neg_inf, part->zero,
                 part->fingerprint);
    if (full) EACH(BUCKETS) to->sketch[j] += part->sketch[j];
}

static void finish_result(Result *r) {
    if (r->finite && r->min == r->max) r->mean = r->min, r->m2 = 0; /* a constant has no rounding to show */
    if (isnan(r->m2)) r->m2 = INFINITY;                              /* beyond a double's range */
}

/* Merges `count` results, in order, into the first, and rounds its sketch to floats unless `sketch` is null. */
void layertap_merge(Result *r, int64_t count, float *sketch) {
    unsigned mode = keep_subnormals();
    for (int64_t i = 1; i < count; i++) add_result(r, r + i, sketch != NULL);
    if (sketch) EACH(BUCKETS) sketch[j] = (float)r->sketch[j];
    finish_result(r);
    restore(mode);
}

/* The bytes of measure/slab.py. */
typedef struct {
    int64_t nan, pos_inf, neg_inf, zero;
    double mean, m2, abs_sum, min, max;
    uint64_t fingerprint;
    double first[FIRST];
    float sketch[BUCKETS];
} Slab;

/* A tensor to be measured into a slab by one thread; the same layout stands in rows_native.py. */
typedef struct {
    const char *x;
    int64_t count, kind;
    const float *table;
    Slab *out;
} Task;

/* What `layertap_measure` and `layertap_merge` left in `r`, as a slab. */
void layertap_to_slab(const Result *r, Slab *out) {
    out->nan = r->nan, out->pos_inf = r->pos_inf, out->neg_inf = r->neg_inf, out->zero = r->zero;
    out->mean = r->mean, out->m2 = r->m2, out->abs_sum = r->abs_sum, out->min = r->min, out->max = r->max;
    out->fingerprint = r->fingerprint;
    memcpy(out->first, r->first, sizeof out->first);
    EACH(BUCKETS) out->sketch[j] = (float)r->sketch[j];
}

static void measure_slab(const char *x, int64_t n, enum kind kind, const float *table, Slab *out) {
    Result whole, part;
    int64_t step = LANES * chunk_rows((n + LANES - 1) / LANES);
    for (int64_t begin = 0; begin == 0 || begin < n; begin += step) {
        int64_t end = begin + step < n ? begin + step : n;
        Result *to = begin ? &part : &whole;
#ifdef HAVE_AVX2
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            chunk_avx2(kind, table, x + begin * SIZE[kind], begin, end, 1, to);
        else
#endif
            chunk_any(kind, table, x + begin * SIZE[kind], begin, end, 1, to);
        if (begin) add_result(&whole, &part, 1);
    }
    finish_result(&whole);
    layertap_to_slab(&whole, out);
}

int64_t layertap_slab_size(void) { return sizeof(Slab); }

/* Measures `count` tensors, one after another. */
void layertap_measure_rows(const Task *tasks, int64_t count) {
    unsigned mode = keep_subnormals();
    for (const Task *t = tasks; t < tasks + count; t++)
        measure_slab(t->x, t->count, (enum kind)t->kind, t->table, t->out);
    restore(mode);
}

/* What a tap does with one tensor: measures it as `like` says, and copies its bytes to `copy` if that is not null. */
void layertap_take(const char *x, const Task *like, char *copy, Slab *out) {
    unsigned mode = keep_subnormals();
    if (copy) memcpy(copy, x, (size_t)(like->count * SIZE[like->kind])), x = copy;
    measure_slab(x, like->count, (enum kind)like->kind, like->table, out);
    restore(mode);
}

#else /* the part that is compiled once for each instruction set */

#ifdef __AVX2__
INLINE F8 NAME(min8)(F8 a, F8 b) { return _mm256_min_ps(a, b); }
INLINE F8 NAME(max8)(F8 a, F8 b) { return _mm256_max_ps(a, b); }
INLINE D4 NAME(min4)(D4 a, D4 b) { return _mm256_min_pd(a, b); }
INLINE D4 NAME(max4)(D4 a, D4 b) { return _mm256_max_pd(a, b); }
INLINE D4 NAME(low)(F8 x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
INLINE D4 NAME(high)(F8 x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
INLINE D4 NAME(low_int)(I8 x) { return _mm256_cvtepi32_pd(_mm256_castsi256_si128((__m256i)x)); }
INLINE D4 NAME(high_int)(I8 x) { return _mm256_cvtepi32_pd(_mm256_extracti128_si256((__m256i)x, 1)); }
INLINE Q4 NAME(low_wide)(U8 x) { return (Q4)_mm256_cvtepu32_epi64(_mm256_castsi256_si128((__m256i)x)); }
INLINE Q4 NAME(high_wide)(U8 x) { return (Q4)_mm256_cvtepu32_epi64(_mm256_extracti128_si256((__m256i)x, 1)); }
INLINE D4 NAME(fma)(D4 a, D4 b, D4 c) { return _mm256_fmadd_pd(a, b, c); }
INLINE F8 NAME(fma8)(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
INLINE U8 NAME(words16)(const char *p) { return (U8)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE U8 NAME(words8)(const char *p) { return (U8)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE Q4 NAME(products)(U8 a, U8 b) {
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), _mm256_srli_epi64((__m256i)b, 32));
    return (Q4)_mm256_add_epi64(_mm256_mul_epu32((__m256i)a, (__m256i)b), odd);
}
#else
INLINE F8 NAME(min8)(F8 a, F8 b) { EACH(8) b[j] = a[j] < b[j] ? a[j] : b[j]; return b; }
INLINE F8 NAME(max8)(F8 a, F8 b) { EACH(8) b[j] = a[j] > b[j] ? a[j] : b[j]; return b; }
INLINE D4 NAME(min4)(D4 a, D4 b) { EACH(4) b[j] = a[j] < b[j] ? a[j] : b[j]; return b; }
INLINE D4 NAME(max4)(D4 a, D4 b) { EACH(4) b[j] = a[j] > b[j] ? a[j] : b[j]; return b; }
INLINE D4 NAME(low)(F8 x) { D4 y; EACH(4) y[j] = x[j]; return y; }
INLINE D4 NAME(high)(F8 x) { D4 y; EACH(4) y[j] = x[j + 4]; return y; }
INLINE D4 NAME(low_int)(I8 x) { D4 y; EACH(4) y[j] = x[j]; return y; }
INLINE D4 NAME(high_int)(I8 x) { D4 y; EACH(4) y[j] = x[j + 4]; return y; }
INLINE Q4 NAME(low_wide)(U8 x) { Q4 y; EACH(4) y[j] = x[j]; return y; }
INLINE Q4 NAME(high_wide)(U8 x) { Q4 y; EACH(4) y[j] = x[j + 4]; return y; }
INLINE D4 NAME(fma)(D4 a, D4 b, D4 c) { return a * b + c; }
INLINE F8 NAME(fma8)(F8 a, F8 b, F8 c) { return a * b + c; }
INLINE U8 NAME(words16)(const char *p) { uint16_t v[8]; U8 y; memcpy(v, p, 16); EACH(8) y[j] = v[j]; return y; }
INLINE U8 NAME(words8)(const char *p) { U8 y; EACH(8) y[j] = (unsigned char)p[j]; return y; }
INLINE Q4 NAME(products)(U8 a, U8 b) {
    Q4 y;
    EACH(4) y[j] = (uint64_t)a[2 * j] * b[2 * j] + (uint64_t)a[2 * j + 1] * b[2 * j + 1];
    return y;
}
#endif
INLINE U8 NAME(words32)(const void *p) { U8 y; memcpy(&y, p, 32); return y; }

INLINE U8 NAME(words)(enum kind kind, const char *p) {
    return SIZE[kind] == 1 ? NAME(words8)(p) : SIZE[kind] == 2 ? NAME(words16)(p) : NAME(words32)(p);
}

INLINE F8 NAME(floats)(enum kind kind, U8 w, const float *table) {
    switch (kind) {
    case F32: return (F8)w;
    case BF16: return (F8)(w << 16);
    case F16: {
        U8 exponent = w & 0x7C00, bits = ((w & 0x7FFF) << 13) + (112u << 23), small = (U8)(exponent == 0);
        bits += ((U8)(exponent == 0x7C00) & (112u << 23)) + (small & (1u << 23));
        F8 value = (F8)bits - (F8)(small & (113u << 23));
        return (F8)((U8)value | (w & 0x8000) << 16);
    }
    case TABLE8: { F8 y; EACH(8) y[j] = table[w[j]]; return y; }
    case INT8: return __builtin_convertvector((I8)(w << 24) >> 24, F8);
    case INT16: return __builtin_convertvector((I8)(w << 16) >> 16, F8);
    default: return __builtin_convertvector((I8)w, F8);
    }
}

typedef struct {
    D4 center, sum, square, square2, abs;
    F8 least, most;
    U8 zero;
} NAME(Moments);

INLINE void NAME(add)(NAME(Moments) *m, F8 x, int full, int centered) {
    D4 x0 = NAME(low)(x), x1 = NAME(high)(x), d0 = x0, d1 = x1;
    if (centered) d0 -= m->center, d1 -= m->center;
    const Q4 magnitude = (Q4){0} + INT64_MAX;
    m->sum += d0 + d1;
    m->abs += (D4)((Q4)x0 & magnitude) + (D4)((Q4)x1 & magnitude);
    m->least = NAME(min8)(x, m->least), m->most = NAME(max8)(x, m->most), m->zero -= (U8)(x == 0);
    if (full) { /* short of registers rather than of time */
        m->square += NAME(fma)(d0, d0, d1 * d1);
    } else {
        m->square = NAME(fma)(d0, d0, m->square), m->square2 = NAME(fma)(d1, d1, m->square2);
    }
}

/* Statistics alone of 16-bit floats: sixteen of them are added up in a float, whose 24 bits hold them and their squares,
 * before a double takes over. Two at a time, so that no sum waits for itself; two bfloat16 come in one word.
 * `chunk` sees to it that no square leaves a float's range. Returns how many elements were taken. */
INLINE int64_t NAME(light_tile)(enum kind kind, Tile t, NAME(Moments) *m) {
    const int64_t end = t.width & ~15LL;
    F8 least0 = m->least, least1 = least0, most0 = m->most, most1 = most0;
    U8 zero0 = {0}, zero1 = {0};
    D4 sums = {0}, squares = {0}, sizes = {0};
    for (int64_t l = 0; l < end;) {
        F8 sum0 = {0}, sum1 = {0}, square0 = {0}, square1 = {0}, size0 = {0}, size1 = {0};
        for (int64_t stop = end - l < 256 ? end : l + 256; l < stop; l += 16) {
            const char *p = t.x + l * 2;
            F8 x0, x1;
            if (kind == BF16) {
                U8 w = NAME(words32)(p);
                x0 = (F8)(w << 16), x1 = (F8)(w & 0xFFFF0000u);
            } else {
                x0 = NAME(floats)(kind, NAME(words16)(p), t.table);
                x1 = NAME(floats)(kind, NAME(words16)(p + 16), t.table);
            }
            sum0 += x0, square0 = NAME(fma8)(x0, x0, square0), size0 += (F8)((U8)x0 & 0x7FFFFFFFu);
            sum1 += x1, square1 = NAME(fma8)(x1, x1, square1), size1 += (F8)((U8)x1 & 0x7FFFFFFFu);
            least0 = NAME(min8)(x0, least0), most0 = NAME(max8)(x0, most0), zero0 -= (U8)(x0 == 0);
            least1 = NAME(min8)(x1, least1), most1 = NAME(max8)(x1, most1), zero1 -= (U8)(x1 == 0);
        }
        sum0 += sum1, square0 += square1, size0 += size1;
        sums += NAME(low)(sum0) + NAME(high)(sum0);
        squares += NAME(low)(square0) + NAME(high)(square0);
        sizes += NAME(low)(size0) + NAME(high)(size0);
    }
    m->sum = sums, m->square = squares, m->abs = sizes, m->zero = zero0 + zero1;
    m->least = NAME(min8)(least0, least1), m->most = NAME(max8)(most0, most1);
    return end;
}

INLINE void NAME(narrow_tile)(enum kind kind, int centered, int full, Tile t, Sums *s, double *part) {
    NAME(Moments) m = {.center = s->center - (D4){0}, .least = INFINITY - (F8){0}, .most = -INFINITY - (F8){0}};
    Q4 fingerprint = {0};
    uint32_t row[ROWS];
    for (int64_t r = 0; r < t.rows; r++) row[r] = row_hash(t.row + r);
    int64_t l = !full && !centered && (kind == BF16 || kind == F16) ? NAME(light_tile)(kind, t, &m) : 0;
    for (; l + 8 <= t.width; l += 8) {
        U8 lane = NAME(words32)(lane_hashes + (full ? t.lane + l : 0));
        F8 sketch = {0};
        const char *p = t.x + l * SIZE[kind];
#pragma GCC unroll 2
        for (int64_t r = 0; r < (full ? t.rows : 1); r++, p += LANES * SIZE[kind]) {
            U8 w = NAME(words)(kind, p);
            F8 x = NAME(floats)(kind, w, t.table);
            NAME(add)(&m, x, full, centered);
            if (full) {
                U8 weight = lane * row[r];
                fingerprint += NAME(products)(weight, w);
                sketch += (F8)((U8)x ^ (weight & 0x80000000u));
            }
        }
        if (full) {
            *(D4 *)(part + l) = NAME(low)(sketch);
            *(D4 *)(part + l + 4) = NAME(high)(sketch);
        }
    }
    D4 square = m.square + m.square2;
    s->sum = (m.sum[0] + m.sum[1]) + (m.sum[2] + m.sum[3]);
    s->square = (square[0] + square[1]) + (square[2] + square[3]);
    s->abs_sum = (m.abs[0] + m.abs[1]) + (m.abs[2] + m.abs[3]);
    s->fingerprint = fingerprint[0] + fingerprint[1] + fingerprint[2] + fingerprint[3];
    EACH(8) {
        s->zero += m.zero[j];
        s->min = m.least[j] < s->min ? m.least[j] : s->min, s->max = m.most[j] > s->max ? m.most[j] : s->max;
    }
    s->finite = t.rows * (t.width & ~7LL);
}

/* The kinds that only a double holds. One row, or half a row of 64-bit elements, whose words then lie in one row. */
INLINE void NAME(wide_tile)(enum kind kind, int full, Tile t, Sums *s, double *part) {
    D4 c = s->center - (D4){0}, sum[2] = {0}, square[2] = {0}, abs[2] = {0};
    D4 least[2] = {INFINITY - (D4){0}, INFINITY - (D4){0}}, most[2] = {-least[0], -least[0]};
    Q4 zero[2] = {0}, fingerprint = {0};
    const Q4 magnitude = (Q4){0} + INT64_MAX;
    int64_t word = SIZE[kind] == 8 ? 2 * t.lane : t.lane;
    uint32_t row = row_hash(t.row), word_row = row_hash(SIZE[kind] == 8 ? 2 * t.row + word / LANES : t.row);
    word %= LANES;
    for (int64_t l = 0; l + 8 <= t.width; l += 8) {
        const char *p = t.x + l * SIZE[kind];
        D4 x[2] = {0};
        if (SIZE[kind] == 4) {
            U8 w = NAME(words32)(p);
            x[0] = NAME(low_int)((I8)w), x[1] = NAME(high_int)((I8)w);
            if (kind == UINT32) {
                x[0] += (D4)((Q4)(x[0] < 0) & (Q4)(4294967296.0 - (D4){0}));
                x[1] += (D4)((Q4)(x[1] < 0) & (Q4)(4294967296.0 - (D4){0}));
            }
        } else if (kind == F64) {
            x[0] = (D4)NAME(words32)(p), x[1] = (D4)NAME(words32)(p + 32);
        } else {
            double v[8];
            EACH(8) v[j] = value_at(kind, t.table, p, j);
            x[0] = (D4)NAME(words32)(v), x[1] = (D4)NAME(words32)(v + 4);
        }
        for (int h = 0; h < 2; h++) {
            D4 d = x[h] - c;
            sum[h] += d, square[h] += d * d, abs[h] += (D4)((Q4)x[h] & magnitude), zero[h] -= (Q4)(x[h] == 0);
            least[h] = NAME(min4)(x[h], least[h]), most[h] = NAME(max4)(x[h], most[h]);
        }
        if (!full) continue;
        U8 weight = NAME(words32)(lane_hashes + t.lane + l) * row;
        x[0] = (D4)((Q4)x[0] ^ (NAME(low_wide)(weight) >> 31) << 63);
        x[1] = (D4)((Q4)x[1] ^ (NAME(high_wide)(weight) >> 31) << 63);
        *(D4 *)(part + l) = x[0];
        *(D4 *)(part + l + 4) = x[1];
        if (SIZE[kind] == 4) {
            fingerprint += NAME(products)(weight, NAME(words32)(p));
        } else {
            const uint32_t *lanes = lane_hashes + word + 2 * l;
            fingerprint += NAME(products)(NAME(words32)(lanes) * word_row, NAME(words32)(p));
            fingerprint += NAME(products)(NAME(words32)(lanes + 8) * word_row, NAME(words32)(p + 32));
        }
    }
    for (int h = 0; h < 2; h++)
        EACH(4) {
            s->sum += sum[h][j], s->square += square[h][j], s->abs_sum += abs[h][j];
            s->zero += (int64_t)zero[h][j], s->fingerprint += h ? 0 : fingerprint[j];
            s->min = least[h][j] < s->min ? least[h][j] : s->min;
            s->max = most[h][j] > s->max ? most[h][j] : s->max;
        }
    s->finite = t.width & ~7LL;
}

static void NAME(vector_tile)(enum kind kind, Tile t, Sums *s, double *part) {
#define TILE(tile, ...) if (t.full) NAME(tile)(__VA_ARGS__, 1, t, s, part); else NAME(tile)(__VA_ARGS__, 0, t, s, part)
#define NARROW(kind) case kind: if (s->center != 0) { TILE(narrow_tile, kind, 1); } else { TILE(narrow_tile, kind, 0); } break;
#define WIDE(kind) case kind: TILE(wide_tile, kind); break;
    switch (kind) {
        NARROW(F32) NARROW(F16) NARROW(BF16) NARROW(TABLE8) NARROW(INT8) NARROW(UINT8) NARROW(INT16) NARROW(UINT16)
        WIDE(F64) WIDE(INT32) WIDE(UINT32) WIDE(INT64) WIDE(UINT64)
    }
#undef TILE
#undef NARROW
#undef WIDE
}

/* The fingerprint alone, of words of `size` bytes; `x` points at word `begin`. */
INLINE uint64_t NAME(print_words)(int size, const char *x, int64_t begin, int64_t end) {
    Q4 sum = {0};
    uint64_t rest = 0;
    while (begin < end) {
        int64_t lane = begin % LANES, n = end - begin < LANES - lane ? end - begin : LANES - lane, i = 0;
        uint32_t row = row_hash(begin / LANES);
#pragma GCC unroll 4
        for (; i + 8 <= n; i += 8) {
            const char *p = x + i * size;
            U8 w = size == 1 ? NAME(words8)(p) : size == 2 ? NAME(words16)(p) : NAME(words32)(p);
            sum += NAME(products)(NAME(words32)(lane_hashes + lane + i) * row, w);
        }
        for (; i < n; i++) {
            uint32_t w = 0;
            memcpy(&w, x + i * size, (size_t)size);
            rest += (uint64_t)(row * lane_hashes[lane + i]) * w;
        }
        begin += n, x += n * size;
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + rest;
}

static uint64_t NAME(print)(int size, const char *x, int64_t begin, int64_t end) {
    if (size == 1) return NAME(print_words)(1, x, begin, end);
    if (size == 2) return NAME(print_words)(2, x, begin, end);
    return NAME(print_words)(4, x, begin, end);
}

static void NAME(chunk)(enum kind kind, const float *table, const char *x, int64_t begin, int64_t end, int full,
                        Result *out) {
    double lanes[LANES], part[LANES] __attribute__((aligned(32)));
    /* A small tensor has few lanes, and clearing them all would take longer than measuring it. */
    int64_t used = begin % LANES == 0 && end - begin < LANES ? end - begin : LANES;
    if (full) memset(lanes, 0, (size_t)used * sizeof *lanes);
    memset(out, 0, full ? sizeof *out : offsetof(Result, sketch));
    out->min = INFINITY, out->max = -INFINITY;
    for (int64_t i = 0; i < FIRST && begin + i < end; i++) out->first[i] = value_at(kind, table, x, i);
    for (int64_t at = begin, size; at < end; at += size, x += size * SIZE[kind]) {
        Tile t = {x, 1, 0, at % LANES, at / LANES, table, full};
        int64_t left = end - at, edge = SIZE[kind] == 8 && t.lane < LANES / 2 ? LANES / 2 : LANES;
        if (!full) {
            t.width = left < ROWS * LANES ? left : ROWS * LANES;
        } else if (kind < F64 && t.lane == 0 && left >= LANES) {
            t.width = LANES, t.rows = left / LANES < ROWS ? left / LANES : ROWS;
        } else {
            t.width = left < edge - t.lane ? left : edge - t.lane;
        }
        size = t.rows * t.width;
        Sums s = {.center = center_of(kind, table, x, size), .min = INFINITY, .max = -INFINITY}, fresh = s;
        NAME(vector_tile)(kind, t, &s, part);
        int light = !full && (kind == BF16 || kind == F16);
        double limit = light ? 0x1p60 : kind < F64 ? 0x1p120 : 1e300;
        int64_t done = t.width & ~7LL;
        int tiny = light && s.max < 0x1p-40 && s.min > -0x1p-40 && s.abs_sum != 0;
        if (s.finite && (tiny || !(isfinite(s.sum) && s.max < limit && s.min > -limit))) s = fresh, done = 0;
        if (full) memset(part + done, 0, (size_t)(t.width - done) * sizeof *part);
        if (done < t.width) scalar_tile(kind, t, done, &s, part);
        double shift = s.sum / (double)s.finite, mean = s.center + shift, m2 = s.square - s.sum * shift;
        if (s.finite && !isfinite(mean)) { /* doubles near the end of their range: divide before adding */
            mean = 0, m2 = INFINITY;
            for (int64_t i = 0; i < size; i++) {
                double value = value_at(kind, table, x, i);
                if (isfinite(value)) mean += value / (double)s.finite;
            }
        }
        merge_moments(out, s.finite, mean, m2 < 0 ? 0 : m2);
        merge_counts(out, s.abs_sum, s.min, s.max, s.nan, s.pos_inf, s.neg_inf, s.zero, s.fingerprint);
        if (full) for (int64_t l = 0; l < t.width; l++) lanes[t.lane + l] += part[l];
    }
    if (full)
        for (int64_t g = 0; g < used; g += BUCKETS) EACH((int)(used - g < BUCKETS ? used - g : BUCKETS)) out->sketch[j] += lanes[g + j];
}
#endif
