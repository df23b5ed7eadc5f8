/* One tensor against its reference in the signs by which rounding is judged, in one pass over both: the compiled half of
 * pair/deferred.py, loaded by pair/signs_native.py. Element types and their conversions are onepass.c's.
 *
 * A row goes piece by piece through two short buffers of doubles. What is at or below `closed_*` is what a mask adds to
 * close a place, and stands for minus infinity. A place that is not finite on one side only is counted and left out of
 * all sums; equal infinities and two NaN are no error. The caller gives the sums over rows and columns as zeros.
 */
#include "onepass.c"
#include <stdlib.h>

enum { LENGTH = 512 };

typedef struct { /* the same as in pair/signs_native.py */
    const char *a, *b;
    int64_t kind_a, kind_b, rows, width;
    double closed_a, closed_b, massive;
    double *row, *column; /* squared errors, then squared references */
    int64_t several;
    double wrong, square, product, total, worst_row, row_index, worst_column, column_index, nonfinite, calm, grid;
} Signs;

static void load_piece(int64_t kind, const char *x, int64_t at, int64_t n, double closed, double *to) {
    if (kind == 0) EACH(n) to[j] = (double)((const float *)x)[at + j];
    else if (kind == 2) EACH(n) {
        uint32_t bits = (uint32_t)((const uint16_t *)x)[at + j] << 16;
        float value;
        memcpy(&value, &bits, 4);
        to[j] = value;
    }
    else if (kind == 8) EACH(n) to[j] = ((const double *)x)[at + j];
    else EACH(n) to[j] = value_at((enum kind)kind, NULL, x, at + j);
    EACH(n) to[j] = to[j] <= closed ? -INFINITY : to[j];
}

/* Whether all values have four bits at most, the first one included; counts those that are not zero. */
static int few_bits(const double *values, int64_t n, int64_t *some) {
    int few = 1;
    EACH(n) {
        float value = (float)values[j];
        uint32_t bits;
        int exponent;
        memcpy(&bits, &value, 4);
        *some += value != 0;
        if ((bits & 0x7f800000) == 0 && value != 0) value = frexpf(value, &exponent), memcpy(&bits, &value, 4);
        few &= value == value && (bits & 0xfffff) == 0;
    }
    return few;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The worst line, for its size or the mean size if that is more, and the error without lines that are massive. */
static int judge_lines(const double *wrong, const double *size, int64_t n, double massive, double *worst, double *index,
                       double *calm) {
    double mean = 0, left = 0, rest = 0, *sorted = malloc(sizeof(double) * (size_t)n);
    int64_t usual = 0;
    if (!sorted) return 0;
    EACH(n) mean += size[j] / (double)n, sorted[j] = size[j];
    qsort(sorted, (size_t)n, sizeof(double), ascending);
    double typical = sorted[(n - 1) / 2];
    free(sorted);
    *worst = -1;
    EACH(n) {
        double share = wrong[j] / fmax(fmax(size[j], mean), 1e-300);
        if (share > *worst) *worst = share, *index = (double)j;
        if (size[j] <= massive * typical || typical == 0) left += wrong[j], rest += size[j], usual++;
    }
    *worst = sqrt(*worst);
    if (usual < n) *calm = fmax(*calm, sqrt(left / fmax(rest, 1e-300)));
    return 1;
}

/* Equal bits need no sums; whether they lie on a grid is known after a few of them, unless they do. */
static int equal_bits(Signs *s) {
    double b[LENGTH];
    int64_t count = s->rows * s->width, some = 0;
    int few = 1;
    if (s->kind_a != s->kind_b || memcmp(s->a, s->b, (size_t)(count * SIZE[s->kind_a])) != 0) return 0;
    for (int64_t k = 0; few && k < count; k += LENGTH) {
        int64_t n = count - k < LENGTH ? count - k : LENGTH;
        load_piece(s->kind_b, s->b, k, n, -INFINITY, b);
        few = few_bits(b, n, &some);
    }
    s->grid = few && some >= s->several;
    return 1;
}

int layertap_signs(Signs *s) {
    double a[LENGTH], b[LENGTH], *column_wrong = s->column, *column_size = s->column + s->width;
    int64_t some = 0;
    int few = 1;
    if (equal_bits(s)) return 1;
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t k = 0; k < s->width; k += LENGTH) {
            int64_t n = s->width - k < LENGTH ? s->width - k : LENGTH, at = i * s->width + k, odd = 0;
            double wrong = 0, square = 0, product = 0, total = 0;
            load_piece(s->kind_b, s->b, at, n, -INFINITY, b);
            if (few) few = few_bits(b, n, &some);
            EACH(n) b[j] = b[j] <= s->closed_b ? -INFINITY : b[j];
            load_piece(s->kind_a, s->a, at, n, s->closed_a, a);
            EACH(n) odd += !isfinite(b[j] - a[j]);
            if (odd)
                EACH(n) if (!isfinite(b[j] - a[j])) {
                    s->nonfinite += !(a[j] == b[j] || (a[j] != a[j] && b[j] != b[j]));
                    a[j] = b[j] = 0;
                }
            EACH(n) {
                double d = b[j] - a[j], dd = d * d, aa = a[j] * a[j];
                wrong += dd, square += aa, product += a[j] * d, total += d;
                column_wrong[k + j] += dd, column_size[k + j] += aa;
            }
            s->row[i] += wrong, s->row[s->rows + i] += square;
            s->wrong += wrong, s->square += square, s->product += product, s->total += total;
        }
    s->grid = few && some >= s->several;
    s->calm = 0;
    return judge_lines(s->row, s->row + s->rows, s->rows, s->massive, &s->worst_row, &s->row_index, &s->calm) &&
           judge_lines(column_wrong, column_size, s->width, s->massive, &s->worst_column, &s->column_index, &s->calm);
}

int64_t layertap_signs_size(void) { return (int64_t)sizeof(Signs); }
