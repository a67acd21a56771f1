/* Rows of numbers: sums, products, and the k-th smallest.

   Rows have room for p numbers, n rounded up to whole registers, and matrices are n such rows; what is beyond the n-th
   is 0. No -ffast-math: additions have an order, the same in every call. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define TINY DBL_MIN
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i, count) for (int64_t i = 0; i < (count); i++)
/* A function that is not copied into its callers: no slower here, and compiled in a third of the time. */
#define APART static __attribute__((noinline))
enum { WIDTH = 8, FEW = 32, SOME = 96 }; /* WIDTH: of the largest registers; FEW, SOME: clients, see kth */

/* A register: 8 numbers with AVX-512, 4 with AVX, 2 with SSE or NEON. */
#if defined(__AVX512F__)
enum { LANE = 8 };
#elif defined(__AVX__)
enum { LANE = 4 };
#else
enum { LANE = 2 };
#endif
typedef double Lanes __attribute__((vector_size(8 * LANE), aligned(8), may_alias));
typedef int64_t Counts __attribute__((vector_size(8 * LANE)));
#define LANES(x) (*(Lanes *)(x))
#define LANES_OF(x) (*(const Lanes *)(x))

typedef double *restrict Row;
typedef const double *restrict In;

/* What one call works with. */
struct space {
    int64_t n, p, h;                    /* clients, numbers in a row, the smallest majority */
    const double *vote, *noise, *prior; /* (p,) or NULL: see sizes.py, memory.py */
    double *A, *B, *C, *pairs;          /* (p, p) each; the last has room for all pairs twice */
    double *row[8];                     /* (p,) each */
};

/* The k-th smallest, from 0, of m numbers; they are overwritten. `other` has room for as many. */
APART double nth(double *x, double *other, int64_t m, int64_t k) {
    for (;;) { /* the pivot is never among what is left */
        double a = x[0], b = x[m / 2], c = x[m - 1];
        double pivot = MAX(MIN(a, b), MIN(MAX(a, b), c));
        int64_t low = 0, high = 0, i = 0;
#if defined(__AVX512F__)
        for (__m512d middle = _mm512_set1_pd(pivot); i < m; i += 8) {
            __mmask8 some = m - i < 8 ? (1 << (m - i)) - 1 : 255;
            __m512d value = _mm512_maskz_loadu_pd(some, x + i);
            __mmask8 below = _mm512_mask_cmp_pd_mask(some, value, middle, _CMP_LT_OQ);
            __mmask8 above = _mm512_mask_cmp_pd_mask(some, value, middle, _CMP_GT_OQ);
            int lower = __builtin_popcount(below), higher = __builtin_popcount(above);
            _mm512_mask_storeu_pd(x + low, (1 << lower) - 1, _mm512_maskz_compress_pd(below, value));
            _mm512_mask_storeu_pd(other + high, (1 << higher) - 1, _mm512_maskz_compress_pd(above, value));
            low += lower;
            high += higher;
        }
#else
        for (; i < m; i++) {
            double value = x[i];
            x[low] = other[high] = value;
            low += value < pivot;
            high += value > pivot;
        }
#endif
        if (k < low)
            m = low;
        else if (k >= m - high) {
            k -= m - high;
            m = high;
            double *swap = x;
            x = other;
            other = swap;
        } else
            return pivot;
    }
}

/* The h-th smallest of n numbers; of few it is the largest that fewer than h are smaller than. */
APART double kth(const struct space *s, const double *x, int64_t h) {
    if (s->n <= FEW) {
        double found = -INFINITY;
        for (int64_t j = 0; j < s->n; j += LANE) {
            Lanes mine = LANES_OF(x + j);
            Counts smaller = {0};
            EACH(i, s->n) smaller -= (Lanes){0} + x[i] < mine; /* true is -1 */
            EACH(l, LANE) {
                double candidate = smaller[l] < h && j + l < s->n ? mine[l] : -INFINITY;
                found = MAX(candidate, found); /* in this order NaN is passed over */
            }
        }
        return found;
    }
    memcpy(s->pairs, x, s->n * sizeof *x);
    return nth(s->pairs, s->pairs + s->n, s->n, h - 1);
}

/* The h-th smallest of every column; with few clients a register of columns at a time, the smallest so far in order. */
APART void kth_of_columns(const struct space *s, In D, Row out) {
    int64_t n = s->n, p = s->p, h = s->h;
    for (int64_t j = 0; n <= SOME && j < p; j += LANE) {
        Lanes least[SOME];
        EACH(i, n) {
            Lanes x = LANES_OF(D + i * p + j);
            EACH(k, MIN(i, h)) {
                Lanes a = least[k];
                EACH(l, LANE) {
                    least[k][l] = MIN(a[l], x[l]);
                    x[l] = MAX(a[l], x[l]);
                }
            }
            if (i < h) least[i] = x;
        }
        LANES(out + j) = least[h - 1];
    }
    EACH(j, n > SOME ? n : 0) {
        EACH(i, n) s->pairs[i] = D[i * p + j];
        out[j] = nth(s->pairs, s->pairs + n, n, h - 1);
    }
}

/* The sum of p numbers, p a multiple of WIDTH. */
static double add(In x, int64_t p) {
    Lanes found = {0};
    double total = 0.0;
    for (int64_t i = 0; i < p; i += LANE) found += LANES_OF(x + i);
    EACH(l, LANE) total += found[l];
    return total;
}

static double sum(const struct space *s, In x) { return add(x, s->p); }

static double dot(const struct space *s, In x, In y) {
    Lanes found = {0};
    double total = 0.0;
    for (int64_t i = 0; i < s->p; i += LANE) found += LANES_OF(x + i) * LANES_OF(y + i);
    EACH(l, LANE) total += found[l];
    return total;
}

/* Divide by the sum; what is beyond the n-th becomes 0. */
APART void normalise(const struct space *s, Row a) {
    for (int64_t k = s->n; k < s->p; k++) a[k] = 0.0;
    double share = 1.0 / sum(s, a);
    EACH(k, s->p) a[k] *= share;
}

static double smallest(const struct space *s, const double *x) {
    double found = x[0];
    EACH(k, s->n) found = MIN(found, x[k]);
    return found;
}

/* y = G x, G by columns. */
APART void times(const struct space *s, In G, In x, Row y) {
    for (int64_t j = 0; j < s->p; j += LANE) {
        Lanes even = {0}, odd = {0};
        int64_t i = 0;
        for (; i + 1 < s->n; i += 2) {
            even += x[i] * LANES_OF(G + i * s->p + j);
            odd += x[i + 1] * LANES_OF(G + (i + 1) * s->p + j);
        }
        if (i < s->n) even += x[i] * LANES_OF(G + i * s->p + j);
        LANES(y + j) = even + odd;
    }
}

/* Z = X^T Y, in blocks of four rows that stay in registers. */
APART void multiply(const struct space *s, In X, In Y, Row Z) {
    int64_t n = s->n, p = s->p;
    for (int64_t j = 0; j < p; j += LANE)
        for (int64_t i = 0; i < n; i += 4) {
            Lanes a = {0}, b = {0}, c = {0}, d = {0};
            EACH(k, n) {
                const double *x = X + k * p + i;
                Lanes y = LANES_OF(Y + k * p + j);
                a += x[0] * y;
                b += x[1] * y;
                c += x[2] * y;
                d += x[3] * y;
            }
            double *z = Z + i * p + j;
            LANES(z) = a;
            LANES(z + p) = b;
            LANES(z + 2 * p) = c;
            LANES(z + 3 * p) = d;
        }
}
