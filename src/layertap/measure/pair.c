/* Every metric of a pair of tensors in one pass over both: the compiled half of pair/arrays.py, loaded by pair/native.py.
 *
 * Element types, vector helpers and the trick of a file that includes itself (once for any processor, once for AVX2)
 * are onepass.c's; it is included here so that both read a tensor's bytes alike.
 *
 * The tensors are seen as rows x columns. Threads take chunks off a counter and add what they found to the whole in
 * the order of the chunks, so the sums come out the same for any number of threads. A chunk goes piece by piece, a
 * piece being up to PIECE elements that stay in the nearest cache while four short loops go over them: load, relative
 * errors and bins, sums, rows and columns. (One loop for all would need twice the registers that there are.) Differences
 * and sums are in double; relative errors, ulps and bins of types that fit a float are in float, eight at a time. A
 * piece whose sum of squares is not an ordinary number holds NaN, Inf or values near the end of float's range: it is
 * done again with those pairs struck out, and if need be in double.
 */
#ifndef PAIR_INSIDE
#include "onepass.c"
#include <sched.h>
#include <stdlib.h>

enum { PIECE = 512, CHUNK = 1 << 18, CHUNK_LEAST = 4, BINS = 1 << 15, COPIES = 2 };

typedef struct { /* about the means: aa, bb, ab */
    int64_t finite, close, nan_mismatch, inf_mismatch, nonfinite;
    double max_abs, sum_abs, max_relative, sum_relative, max_ulp, error, reference, reference_abs;
    double mean_a, mean_b, aa, bb, ab;
    uint64_t fingerprint_a, fingerprint_b; /* of each side's bytes, complex parts taken for elements */
} Totals;

typedef struct { /* the same as in pair/native.py */
    const char *a, *b;
    const float *table_a, *table_b;
    int64_t kind_a, kind_b, rows, columns, row_group, column_group;
    double rtol, atol, eps, scale, smallest;
    double *row[2], *column[2]; /* squared error and squared reference, an entry for each group of rows or columns */
    uint64_t *histogram;        /* of |difference|, then of the relative error */
    int64_t next, merged;
    Totals totals;
} Pair;

typedef struct { /* what a thread needs for itself */
    double a[PIECE], b[PIECE], error[PIECE], reference[PIECE];
    int64_t keep[PIECE];
    uint32_t bins[PIECE];
    uint32_t histogram[COPIES][2][BINS]; /* neighbours count apart, since equal bins in a row would wait for each other */
    int64_t counted;
    double *column[2];
} Work;

static void merge_totals(Totals *to, const Totals *t) {
    double n = (double)to->finite, m = (double)t->finite, share = m / (n + m);
    double da = t->mean_a - to->mean_a, db = t->mean_b - to->mean_b;
    if (t->finite) {
        to->aa += t->aa + da * da * n * share, to->bb += t->bb + db * db * n * share;
        to->ab += t->ab + da * db * n * share;
        to->mean_a = to->finite ? to->mean_a + da * share : t->mean_a;
        to->mean_b = to->finite ? to->mean_b + db * share : t->mean_b;
    }
    to->finite += t->finite, to->close += t->close, to->nonfinite += t->nonfinite;
    to->nan_mismatch += t->nan_mismatch, to->inf_mismatch += t->inf_mismatch;
    to->sum_abs += t->sum_abs, to->sum_relative += t->sum_relative, to->error += t->error;
    to->reference += t->reference, to->reference_abs += t->reference_abs;
    to->max_abs = fmax(to->max_abs, t->max_abs), to->max_relative = fmax(to->max_relative, t->max_relative);
    to->max_ulp = fmax(to->max_ulp, t->max_ulp);
    to->fingerprint_a += t->fingerprint_a, to->fingerprint_b += t->fingerprint_b;
}

/* The fingerprint of elements [begin, end) of one side: a chunk's bytes are read here, and are in the cache after it. */
static uint64_t print_side(int64_t kind, const char *x, int64_t begin, int64_t end) {
    int64_t size = SIZE[kind], words = size == 8 ? 2 : 1;
    return print_of(size == 8 ? 4 : (int)size, x + begin * size, begin * words, end * words);
}

/* Counts add up to the same in any order. One copy may have wrapped below zero (see `piece`), their sum has not. */
static void flush_histogram(Pair *p, Work *w) {
    for (int h = 0; h < 2; h++)
        for (int64_t i = 0; i < BINS; i++) {
            uint32_t count = 0;
            EACH(COPIES) count += w->histogram[j][h][i], w->histogram[j][h][i] = 0;
            if (count) __atomic_fetch_add(&p->histogram[h * BINS + i], count, __ATOMIC_RELAXED);
        }
    w->counted = 0;
}

/* Marks the pairs that count. The others become zeros on both sides, which add nothing to any sum. */
static int64_t strike_out(const Pair *p, Work *w, int64_t at, int64_t n, int wide, Totals *t) {
    int64_t struck = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = value_at((enum kind)p->kind_a, p->table_a, p->a, at + i);
        double y = value_at((enum kind)p->kind_b, p->table_b, p->b, at + i);
        w->keep[i] = -1;
        if (isfinite(x) && isfinite(y)) continue;
        w->keep[i] = 0, struck++;
        if (isnan(x) != isnan(y)) t->nan_mismatch++;
        else if (isnan(x) || x == y) t->nonfinite++;
        else t->inf_mismatch++;
        if (wide) w->a[i] = w->b[i] = 0;
        else ((float *)w->a)[i] = ((float *)w->b)[i] = 0;
    }
    return struck;
}

#define PAIR_INSIDE
#undef NAME
#define NAME(name) name##_any
#include "pair.c"
#undef NAME
#ifdef HAVE_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_avx2
#include "pair.c"
#undef NAME
#pragma GCC pop_options
#endif

int64_t layertap_pair_size(void) { return sizeof(Pair); }

/* How many chunks there are. A chunk is whole rows, a whole number of row groups, or else a part of one row. */
int64_t layertap_pair_chunks(const Pair *p, int64_t *rows, int64_t *columns) {
    *columns = p->columns < CHUNK ? p->columns : CHUNK, *rows = 1;
    if (p->columns < CHUNK) {
        *rows = CHUNK / p->columns > CHUNK_LEAST ? CHUNK / p->columns : CHUNK_LEAST;
        *rows = (*rows + p->row_group - 1) / p->row_group * p->row_group;
    }
    return ((p->rows + *rows - 1) / *rows) * ((p->columns + *columns - 1) / *columns);
}

static Work *spare; /* the last one used: for a small tensor, fresh memory would cost more than the work itself */

/* Works until no chunk before `stop` is left; any number of threads may be in here at once. Returns 0, or 1 without
 * memory. Where it goes on from there `next` is set to `merged` first: the numbers are the same as in one go. */
int layertap_pair_until(Pair *p, int64_t stop) {
    int64_t rows, columns, chunks = layertap_pair_chunks(p, &rows, &columns), i;
    if (stop < chunks) chunks = stop;
    int64_t across = (p->columns + columns - 1) / columns, room = columns / p->column_group + 2;
    Work *w = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQUIRE);
    if (!w) w = calloc(1, sizeof *w);
    double *column = malloc(2 * (size_t)room * sizeof *column);
    unsigned mode = keep_subnormals();
    int failed = !w || !column;
    if (!failed) w->column[0] = column, w->column[1] = column + room;
    while (!failed && (i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < chunks) {
        int64_t row = i / across * rows, last_row = row + rows < p->rows ? row + rows : p->rows;
        int64_t from = i % across * columns, to = from + columns < p->columns ? from + columns : p->columns;
        int64_t begin = row * p->columns + from, end = (last_row - 1) * p->columns + to; /* a chunk has no gaps */
        Totals t = {.fingerprint_a = print_side(p->kind_a, p->a, begin, end),
                    .fingerprint_b = print_side(p->kind_b, p->b, begin, end)};
        memset(column, 0, 2 * (size_t)room * sizeof *column);
#ifdef HAVE_AVX2
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            pair_chunk_avx2(p, w, row, last_row, from, to, &t);
        } else
#endif
            pair_chunk_any(p, w, row, last_row, from, to, &t);
        if (w->counted > INT32_MAX) flush_histogram(p, w);
        while (__atomic_load_n(&p->merged, __ATOMIC_ACQUIRE) != i) sched_yield(); /* those before us are at work */
        merge_totals(&p->totals, &t);
        if (across > 1) p->row[0][row / p->row_group] += t.error, p->row[1][row / p->row_group] += t.reference;
        int64_t first = from / p->column_group, entries = (to - 1) / p->column_group - first + 1;
        for (int k = 0; k < 2; k++)
            for (int64_t c = 0; c < entries; c++) p->column[k][first + c] += w->column[k][c];
        __atomic_store_n(&p->merged, i + 1, __ATOMIC_RELEASE);
    }
    if (!failed) flush_histogram(p, w);
    restore(mode);
    if (w) free(__atomic_exchange_n(&spare, w, __ATOMIC_RELEASE));
    free(column);
    return failed;
}

int layertap_pair(Pair *p) { return layertap_pair_until(p, INT64_MAX); }

#else /* the part that is compiled once for each instruction set */

INLINE void NAME(load_floats)(enum kind kind, const float *table, const char *x, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        F8 v = NAME(floats)(kind, NAME(words)(kind, x + i * SIZE[kind]), table);
        memcpy(out + i, &v, sizeof v);
    }
    for (; i < n; i++) out[i] = (float)value_at(kind, table, x, i);
    for (; i & 7; i++) out[i] = 0;
}

INLINE void NAME(load_doubles)(enum kind kind, const float *table, const char *x, int64_t n, double scale, double *out) {
    for (int64_t i = 0; i < n; i++) out[i] = value_at(kind, table, x, i) * scale;
    for (int64_t i = n; i & 7; i++) out[i] = 0;
}

static const void *NAME(load)(enum kind kind, const float *table, const char *x, int64_t n, int wide, double scale,
                              int copy, void *out) {
    if (kind == F32 && !wide && !copy) return x;
    switch (kind) {
#define CASE(kind) case kind: \
    if (wide) NAME(load_doubles)(kind, table, x, n, scale, out); else NAME(load_floats)(kind, table, x, n, out); break;
        CASE(F32) CASE(F16) CASE(BF16) CASE(TABLE8) CASE(INT8) CASE(UINT8) CASE(INT16) CASE(UINT16)
#undef CASE
#define CASE(kind) case kind: NAME(load_doubles)(kind, table, x, n, scale, out); break;
        CASE(F64) CASE(INT32) CASE(UINT32) CASE(INT64) CASE(UINT64)
#undef CASE
    }
    return out;
}

INLINE double NAME(total)(D4 x) { return (x[0] + x[1]) + (x[2] + x[3]); }
INLINE D4 NAME(splat)(double x) { return x - (D4){0}; }
INLINE D4 NAME(size4)(D4 x) { return (D4)((Q4)x & ((Q4){0} + INT64_MAX)); }
INLINE D4 NAME(load4)(const void *p) { D4 x; memcpy(&x, p, sizeof x); return x; }
#ifdef __AVX2__
INLINE D4 NAME(widen4)(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
#else
INLINE D4 NAME(widen4)(const float *p) { D4 x; EACH(4) x[j] = p[j]; return x; }
#endif

/* Relative errors, ulps, and both histogram bins of each pair in one word: the upper halves of the two numbers as
 * floats, rounded. The step of a type at |a| is a power of two, so dividing by it is a subtraction of exponents; in
 * float it is short by 2^64, lest a zero reference overflow. */
INLINE void NAME(relative_floats)(const Pair *p, Work *w, const float *a, const float *b, int64_t n, Totals *t) {
    const U8 magnitude = (U8){0} + INT32_MAX, exponent = (U8){0} + 0x7F800000, half = (U8){0} + 0x8000;
    const F8 eps = (float)p->eps - (F8){0}, least = (float)p->smallest - (F8){0};
    F8 most = {0}, ulp = {0};
    D4 sum = {0}, sum2 = {0};
    for (int64_t i = 0; i < n; i += 8) {
        F8 x = (F8)NAME(words32)(a + i), y = (F8)NAME(words32)(b + i), d = (F8)((U8)(x - y) & magnitude);
        x = (F8)((U8)x & magnitude);
        F8 r = d / (x + eps);
        U8 step = (190u << 23) - ((U8)NAME(max8)(x, least) & exponent);
        U8 bins = (((U8)d + half) >> 16) | (((U8)r + half) & 0xFFFF0000u);
        memcpy(w->bins + i, &bins, sizeof bins);
        most = NAME(max8)(r, most), ulp = NAME(max8)(d * (F8)step, ulp);
        sum += NAME(low)(r), sum2 += NAME(high)(r);
    }
    EACH(8) t->max_relative = fmax(t->max_relative, most[j]), t->max_ulp = fmax(t->max_ulp, ulp[j] * 0x1p64);
    t->sum_relative = NAME(total)(sum + sum2);
}

INLINE void NAME(relative_doubles)(const Pair *p, Work *w, const double *a, const double *b, int64_t n, Totals *t) {
    const Q4 exponent = (Q4){0} + 0x7FF0000000000000u;
    const D4 least = NAME(splat)(p->smallest);
    D4 most = {0}, ulp = {0}, sum = {0};
    for (int64_t i = 0; i < n; i += 4) {
        D4 x = NAME(load4)(a + i), d = NAME(size4)(x - NAME(load4)(b + i));
        x = NAME(size4)(x);
        D4 r = d / (x + p->eps);
        Q4 step = (2046ull << 52) - ((Q4)NAME(max4)(x, least) & exponent);
        most = NAME(max4)(r, most), ulp = NAME(max4)(d * (D4)step, ulp), sum += r;
        for (int j = 0; j < 4; j++) {
            float fd = (float)d[j], fr = (float)r[j];
            uint32_t bd, br;
            memcpy(&bd, &fd, 4), memcpy(&br, &fr, 4);
            w->bins[i + j] = ((bd + 0x8000) >> 16 & 0x7FFF) | ((br + 0x8000) & 0x7FFF0000u);
        }
    }
    EACH(4) t->max_relative = fmax(t->max_relative, most[j]), t->max_ulp = fmax(t->max_ulp, ulp[j]);
    t->sum_relative = NAME(total)(sum);
}

/* Four pairs from `i` on, in double. */
INLINE void NAME(pairs4)(int wide, const void *a, const void *b, int64_t i, D4 *x, D4 *y) {
    if (wide) {
        *x = NAME(load4)((const double *)a + i), *y = NAME(load4)((const double *)b + i);
    } else {
        *x = NAME(widen4)((const float *)a + i), *y = NAME(widen4)((const float *)b + i);
    }
}

/* Says whether all values were ordinary numbers: if not, Totals is of no use. */
INLINE int NAME(differences)(const Pair *p, Work *w, int wide, const void *a, const void *b, int64_t n, Totals *t) {
    const D4 rtol = NAME(splat)(p->rtol), atol = NAME(splat)(p->atol);
    D4 most = {0}, abs = {0}, size = {0};
    Q4 close = {0};
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; i += 4) {
        D4 x, y;
        NAME(pairs4)(wide, a, b, i, &x, &y);
        D4 d = NAME(size4)(x - y), s = NAME(size4)(x), dd = d * d, ss = s * s;
        memcpy(w->error + i, &dd, sizeof dd), memcpy(w->reference + i, &ss, sizeof ss);
        most = NAME(max4)(d, most), close -= (Q4)(d <= rtol * s + atol), abs += d, size += s;
    }
    EACH(4) t->max_abs = fmax(t->max_abs, most[j]), t->close += (int64_t)close[j];
    t->sum_abs = NAME(total)(abs), t->reference_abs = NAME(total)(size);
    return t->sum_abs + t->reference_abs < (wide ? INFINITY : 0x1p60);
}

/* Products about the first pair: then rounding stays small beside the spread however far the mean is from zero. The
 * histogram is filled in the same loop, since counting keeps other parts of the processor busy than adding does. */
INLINE void NAME(moments)(Work *w, int wide, int masked, const void *a, const void *b, int64_t n, Totals *t) {
    double first_a = wide ? *(const double *)a : *(const float *)a, first_b = wide ? *(const double *)b : *(const float *)b;
    const D4 shift_a = NAME(splat)(first_a), shift_b = NAME(splat)(first_b);
    D4 sx = {0}, sy = {0}, sxx = {0}, syy = {0}, sxy = {0};
#pragma GCC unroll 2
    for (int64_t i = 0; i < n; i += 4) {
        D4 x, y;
        uint64_t bins[2];
        NAME(pairs4)(wide, a, b, i, &x, &y);
        x -= shift_a, y -= shift_b;
        if (masked) {
            Q4 keep = (Q4)NAME(load4)(w->keep + i);
            x = (D4)((Q4)x & keep), y = (D4)((Q4)y & keep);
        }
        memcpy(bins, w->bins + i, sizeof bins);
        sx += x, sy += y, sxx = NAME(fma)(x, x, sxx), sxy = NAME(fma)(x, y, sxy), syy = NAME(fma)(y, y, syy);
        for (int j = 0; j < 2; j++) {
            w->histogram[0][0][bins[j] & 0x7FFF]++, w->histogram[0][1][bins[j] >> 16 & 0x7FFF]++;
            w->histogram[1][0][bins[j] >> 32 & 0x7FFF]++, w->histogram[1][1][bins[j] >> 48]++;
        }
    }
    if (t->finite == 0) return;
    double sum_x = NAME(total)(sx), sum_y = NAME(total)(sy);
    double mean_x = sum_x / (double)t->finite, mean_y = sum_y / (double)t->finite;
    t->mean_a = first_a + mean_x, t->mean_b = first_b + mean_y;
    t->aa = fmax(0, NAME(total)(sxx) - sum_x * mean_x), t->bb = fmax(0, NAME(total)(syy) - sum_y * mean_y);
    t->ab = NAME(total)(sxy) - sum_x * mean_y;
}

/* All but the sums of squares, which stay in `w` for rows and columns. */
INLINE int NAME(loops)(const Pair *p, Work *w, int wide, const void *a, const void *b, int64_t n, int sure, Totals *t) {
    if (!NAME(differences)(p, w, wide, a, b, n, t) && !sure) return 0;
    if (wide) NAME(relative_doubles)(p, w, a, b, n, t);
    else NAME(relative_floats)(p, w, a, b, n, t);
    if (t->finite < n) NAME(moments)(w, wide, 1, a, b, n, t);
    else NAME(moments)(w, wide, 0, a, b, n, t);
    return 1;
}

static Totals NAME(piece)(const Pair *p, Work *w, int64_t at, int64_t n) {
    enum kind kind_a = (enum kind)p->kind_a, kind_b = (enum kind)p->kind_b;
    int64_t padded = (n + 7) & ~7LL;
    int wide = kind_a >= F64 || kind_b >= F64;
    for (int strike = 0;; strike = 1) {
        int copy = strike || padded > n, sure = strike && wide;
        const void *a = NAME(load)(kind_a, p->table_a, p->a + at * SIZE[kind_a], n, wide, p->scale, copy, w->a);
        const void *b = NAME(load)(kind_b, p->table_b, p->b + at * SIZE[kind_b], n, wide, p->scale, copy, w->b);
        Totals t = {.finite = n};
        if (strike) t.finite -= strike_out(p, w, at, n, wide, &t);
        else if (copy) for (int64_t i = 0; i < n; i++) w->keep[i] = -1;
        for (int64_t i = n; i < padded; i++) w->keep[i] = 0;
        int fine = wide ? NAME(loops)(p, w, 1, a, b, padded, sure, &t) : NAME(loops)(p, w, 0, a, b, padded, 0, &t);
        if (fine) {
            uint32_t struck = (uint32_t)(padded - t.finite); /* these were counted as exact pairs */
            w->histogram[0][0][0] -= struck, w->histogram[0][1][0] -= struck, t.close -= struck;
            w->counted += padded;
            return t;
        }
        if (strike) wide = 1;
    }
}

/* Adds `from` to `to`, element by element, and returns the sum of `from`. */
INLINE double NAME(add_line)(double *to, const double *from, int64_t n) {
    D4 sum = {0};
    double rest = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        D4 x = NAME(load4)(from + i), y = NAME(load4)(to + i) + x;
        memcpy(to + i, &y, sizeof y), sum += x;
    }
    for (; i < n; i++) to[i] += from[i], rest += from[i];
    return NAME(total)(sum) + rest;
}

/* The same where `group` columns share an entry; `column` is the number of the first, `to` the entry of column 0. */
static double NAME(add_groups)(double *to, const double *from, int64_t column, int64_t n, int64_t group) {
    double whole = 0;
    int64_t entry = column / group;
    for (int64_t i = 0, end = (entry + 1) * group - column; i < n; entry++, end += group) {
        D4 sum = {0};
        if (end > n) end = n;
        for (; i + 4 <= end; i += 4) sum += NAME(load4)(from + i);
        for (; i < end; i++) sum[0] += from[i];
        to[entry] += NAME(total)(sum), whole += NAME(total)(sum);
    }
    return whole;
}

/* Rows [row, last_row), columns [from, to): either whole rows or a part of one. */
static void NAME(pair_chunk)(const Pair *p, Work *w, int64_t row, int64_t last_row, int64_t from, int64_t to, Totals *t) {
    int64_t width = to - from, whole = width == p->columns, segments = (width + PIECE - 1) / PIECE;
    int64_t step = ((width + segments - 1) / segments + 7) & ~7LL, rows = whole && width <= PIECE ? PIECE / width : 1;
    for (int64_t c = from; c < to; c += step) /* down the rows, so that the sums of these columns stay close by */
        for (int64_t r = row; r < last_row; r += rows) {
            int64_t n = to - c < step ? to - c : step, count = last_row - r < rows ? last_row - r : rows;
            Totals piece = NAME(piece)(p, w, r * p->columns + c, count * n);
            for (int64_t i = 0; i < count; i++) {
                int64_t group = p->column_group, entry = (r + i) / p->row_group;
                double sums[2];
                for (int k = 0; k < 2; k++) {
                    const double *squares = (k ? w->reference : w->error) + i * n;
                    if (group == 1) sums[k] = NAME(add_line)(w->column[k] + (c - from), squares, n);
                    else sums[k] = NAME(add_groups)(w->column[k] - from / group, squares, c, n, group);
                    if (whole) p->row[k][entry] += sums[k];
                }
                piece.error += sums[0], piece.reference += sums[1];
            }
            merge_totals(t, &piece);
        }
}
#endif
