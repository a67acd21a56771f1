/* views.py and centre.py: one Gram matrix, a robust centre, and the honest spread about it.

   Matrices are n x n in rows of `p` numbers, n rounded up to whole vectors; what is beyond the n-th is 0. Gram matrices
   are symmetric. The errors about a centre a need no matrix of their own: E_ij = G_ij - g_i - g_j with
   g = G a - a.G a / 2, which is all that is kept of them. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TINY DBL_MIN
#define MEDIAN_STEPS 5
#define TIE (1.0 + 1e-9)
#define MEDIAN_COS2 0.455
#define CHANCE 1.0
enum { WIDTH = 8, FEW = 96 };

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i, count) for (int64_t i = 0; i < (count); i++)

/* Eight numbers: one AVX-512 register, two of AVX, four of SSE or NEON. */
typedef double Lanes __attribute__((vector_size(8 * WIDTH), aligned(8), may_alias));
#define LANES(x) (*(Lanes *)(x))
#define LANES_OF(x) (*(const Lanes *)(x))

/* What one call works with. */
struct space {
    int64_t n, p, h;                    /* clients, numbers in a row, the smallest majority */
    const double *vote, *noise, *prior; /* (n,) or NULL: see sizes.py, memory.py */
    double *A, *B, *C, *pairs;          /* (p, p) each; room for all pairs twice, p p */
    double *row[8];                     /* (p,) each */
};

/* A view about a centre. */
struct view {
    const double *gram;
    double *centre, *g, *r2, s2, d;
};

/* The k-th smallest, from 0, of m numbers; they are overwritten. `other` has room for as many. */
static double nth(double *x, double *other, int64_t m, int64_t k) {
    for (;;) {
        double a = x[0], b = x[m / 2], c = x[m - 1];
        double pivot = MAX(MIN(a, b), MIN(MAX(a, b), c));
        int64_t low = 0, high = 0;
        EACH(i, m) {
            double value = x[i];
            x[low] = other[high] = value;
            low += value < pivot;
            high += value > pivot;
        }
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

/* The h-th smallest of n numbers. */
static double kth(const struct space *s, const double *x, int64_t h) {
    memcpy(s->pairs, x, s->n * sizeof *x);
    return nth(s->pairs, s->pairs + s->n, s->n, h - 1);
}

/* The h-th smallest of every column; with few clients eight columns at a time, the smallest so far in order. */
static void kth_of_columns(const struct space *s, const double *D, double *out) {
    int64_t n = s->n, p = s->p, h = s->h;
    for (int64_t j = 0; n <= FEW && j < p; j += WIDTH) {
        Lanes least[FEW];
        EACH(i, n) {
            Lanes x = LANES_OF(D + i * p + j);
            EACH(k, MIN(i, h)) {
                Lanes a = least[k];
                EACH(l, WIDTH) {
                    least[k][l] = MIN(a[l], x[l]);
                    x[l] = MAX(a[l], x[l]);
                }
            }
            if (i < h) least[i] = x;
        }
        LANES(out + j) = least[h - 1];
    }
    EACH(j, n > FEW ? n : 0) {
        EACH(i, n) s->pairs[i] = D[i * p + j];
        out[j] = nth(s->pairs, s->pairs + n, n, h - 1);
    }
}

static double sum(const struct space *s, const double *x) {
    Lanes total = {0};
    for (int64_t i = 0; i < s->p; i += WIDTH) total += LANES_OF(x + i);
    return ((total[0] + total[4]) + (total[1] + total[5])) + ((total[2] + total[6]) + (total[3] + total[7]));
}

static double dot(const struct space *s, const double *x, const double *y) {
    Lanes total = {0};
    for (int64_t i = 0; i < s->p; i += WIDTH) total += LANES_OF(x + i) * LANES_OF(y + i);
    return ((total[0] + total[4]) + (total[1] + total[5])) + ((total[2] + total[6]) + (total[3] + total[7]));
}

static double smallest(const struct space *s, const double *x) {
    double found = x[0];
    EACH(k, s->n) found = MIN(found, x[k]);
    return found;
}

/* y = G x; as G is symmetric, its rows are added up. */
static void times(const struct space *s, const double *G, const double *x, double *y) {
    for (int64_t j = 0; j < s->p; j += WIDTH) {
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

/* Z = X^T Y, in blocks of four rows and eight columns that stay in registers. */
static void multiply(const struct space *s, const double *X, const double *Y, double *Z) {
    int64_t n = s->n, p = s->p;
    for (int64_t j = 0; j < p; j += WIDTH)
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

/* D_ji = |w_i - w_j|^2: row j has the distances of all to j, so that a column has those of one client. */
static void distances(const struct space *s, const double *G, double *D) {
    int64_t n = s->n, p = s->p;
    double *q = s->row[7];
    EACH(k, p) q[k] = k < n ? G[k * p + k] : 0.0;
    EACH(j, n) EACH(i, p) {
        double apart = G[j * p + i] * -2.0 + q[i] + q[j];
        D[j * p + i] = i < n ? MAX(apart, 0.0) : 0.0;
    }
}

/* |w_k - sum_j a_j w_j|^2 */
static void residuals(const struct space *s, const double *G, const double *a, double *out) {
    times(s, G, a, out);
    double norm = dot(s, out, a);
    EACH(k, s->n) {
        double r2 = G[k * s->p + k] - 2.0 * out[k] + norm;
        out[k] = MAX(r2, 0.0);
    }
}

/* g, by which the errors about the centre a are known. */
static void centre_gram(const struct space *s, const double *G, const double *a, double *g) {
    times(s, G, a, g);
    double half = 0.5 * dot(s, g, a);
    EACH(k, s->n) g[k] -= half;
}

#define ERROR(v, s, i, j) ((v)->gram[(i) * (s)->p + (j)] - (v)->g[i] - (v)->g[j])

static void about(const struct space *s, struct view *v) {
    centre_gram(s, v->gram, v->centre, v->g);
    EACH(k, s->n) {
        double r2 = ERROR(v, s, k, k), others = MAX(1.0 - v->centre[k], 0.1);
        v->r2[k] = MAX(r2, 0.0) / (others * others);
    }
    double s2 = kth(s, v->r2, s->h);
    v->s2 = MAX(s2, TINY);
}

static double majority(const struct space *s, const struct view *v) {
    EACH(k, s->n) s->row[7][k] = ERROR(v, s, k, k);
    return kth(s, s->row[7], s->h);
}

/* Equal weights for the h smallest. */
static void nearest(const struct space *s, const double *x, double *a) {
    double within = TIE * kth(s, x, s->h);
    EACH(k, s->n) a[k] = x[k] <= within;
    double count = sum(s, a);
    EACH(k, s->n) a[k] /= count;
}

/* Weights of the mean of the tightest ball of h points, moved once to the h points nearest to it. */
static void tightest(const struct space *s, const double *G, double *D, double *a) {
    int64_t n = s->n, p = s->p, best = 0;
    double *size = s->row[0], *mean = s->row[1];
    distances(s, G, D);
    kth_of_columns(s, D, size);
    memset(mean, 0, p * sizeof *mean);
    EACH(j, n) EACH(i, p) mean[i] += D[j * p + i];
    EACH(i, n) size[i] += 1e-6 * (mean[i] / (double)n);
    EACH(i, n) if (size[i] < size[best]) best = i;
    EACH(j, n) mean[j] = D[j * p + best];
    nearest(s, mean, a);
    residuals(s, G, a, mean);
    nearest(s, mean, a);
}

/* Weights of (nearly) the geometric median, by Weiszfeld from weights (R_min / R_k)^2. */
static void medians(const struct space *s, const double *G, const double *radius, double *a) {
    double *r2 = s->row[0], close = smallest(s, radius);
    close = MAX(close, TINY);
    EACH(k, s->n) {
        double share = close / MAX(radius[k], TINY);
        a[k] = share * share;
    }
    double total = sum(s, a), floor = MAX(1e-11 * close, TINY);
    EACH(k, s->n) a[k] /= total;
    EACH(step, MEDIAN_STEPS) {
        residuals(s, G, a, r2);
        EACH(k, s->n) a[k] = MAX(1.0 - a[k], 0.1) / sqrt(MAX(r2[k], floor));
        total = sum(s, a);
        EACH(k, s->n) a[k] /= total;
    }
}

/* 1 / |e_k| */
static void inverse_lengths(const struct space *s, const struct view *v, double *inverse) {
    EACH(k, s->n) {
        double r2 = ERROR(v, s, k, k);
        inverse[k] = 1.0 / sqrt(MAX(r2, TINY));
    }
}

/* In how many directions independent errors would be as unlike one another, from the median of cos^2. */
static double effective_dimension(const struct space *s, const struct view *v) {
    int64_t n = s->n, p = s->p, count = 0;
    double *inverse = s->row[0];
    inverse_lengths(s, v, inverse);
    EACH(i, n) {
        const double *G = v->gram + i * p, gi = v->g[i], own = inverse[i];
        double *c2 = s->pairs + count - (i + 1);
        for (int64_t j = i + 1; j < n; j++) {
            double c = (G[j] - gi - v->g[j]) * own * inverse[j];
            c = MIN(MAX(c, -1.0), 1.0);
            c2[j] = c * c;
        }
        count += n - i - 1;
    }
    double middle = nth(s->pairs, s->pairs + count, count, count / 2);
    return MEDIAN_COS2 / MAX(middle, 1e-9);
}

/* r^2 p: over what noise gives a client of that size. */
static double in_own_unit(double r2, const double *unit, int64_t k) {
    return unit == NULL ? r2 : r2 * MAX(unit[k], 0.01);
}

/* average.py: c + sum_k v_k f_k (w_k - c) / sum_k v_k as weights, `out` from `centre`; and the factors, if asked for.
   g belongs to the centre. With `by_size` the clients' sizes count. */
static void shorten_errors(const struct space *s, const double *G, const double *centre, const double *g,
                           const double *votes, double d, int by_size, double *out, double *kept) {
    int64_t n = s->n;
    const double *vote = by_size ? s->vote : NULL, *noise = by_size ? s->noise : NULL;
    double *r2 = s->row[6], *moved = s->row[7];
    EACH(k, n) {
        double own = G[k * s->p + k] - g[k] - g[k];
        r2[k] = MAX(own, TINY);
    }
    double longest = kth(s, r2, s->h) * (1.0 + 2.0 * sqrt(CHANCE / d) + 2.0 * CHANCE / d), all = sum(s, votes);
    memset(moved, 0, s->p * sizeof *moved);
    EACH(k, n) {
        double own = in_own_unit(r2[k], vote, k);
        moved[k] = MIN(longest, own) / own * (votes[k] / all);
    }
    double rest = 1.0 - sum(s, moved);
    EACH(k, n) out[k] = moved[k] + rest * centre[k];
    if (kept != NULL) EACH(k, n) {
        double own = in_own_unit(r2[k], noise, k);
        kept[k] = MIN(longest, own) / own;
    }
}

/* A centre that no minority captures, and the effective dimension about it. D and radius belong to the Gram matrix;
   both are overwritten. The view's memory is filled. */
static void survey(const struct space *s, struct view *v, double *D, double *radius) {
    int64_t n = s->n, p = s->p;
    double *Nt = s->B, *T = s->C, *count = s->row[2], *a = s->row[3];
    struct view tight = {v->gram, s->row[4], s->row[5], a, 0.0, 0.0};
    /* N, whose rows are the neighbourhoods, transposed */
    memset(count, 0, p * sizeof *count);
    EACH(j, n) EACH(i, p) {
        double inside = i < n && TIE * radius[i] >= D[j * p + i];
        Nt[j * p + i] = inside;
        count[i] += inside;
    }
    EACH(i, n) count[i] = 1.0 / count[i];
    EACH(j, n) EACH(i, p) Nt[j * p + i] *= count[i];
    multiply(s, v->gram, Nt, T); /* G N^T */
    multiply(s, Nt, T, D);       /* N G N^T */
    tightest(s, D, T, a);
    EACH(j, n) tight.centre[j] = dot(s, a, Nt + j * p);
    /* the geometric median, moved once by the shortened errors of all */
    double *ones = count;
    EACH(k, p) ones[k] = k < n;
    medians(s, v->gram, radius, v->centre);
    centre_gram(s, v->gram, v->centre, v->g);
    double d = effective_dimension(s, v);
    shorten_errors(s, v->gram, v->centre, v->g, ones, d, 0, v->centre, NULL);
    about(s, v);
    about(s, &tight);
    if (majority(s, &tight) < majority(s, v)) {
        memcpy(v->centre, tight.centre, p * sizeof *a);
        memcpy(v->g, tight.g, p * sizeof *a);
        memcpy(v->r2, tight.r2, p * sizeof *a);
        v->s2 = tight.s2;
    }
    v->d = effective_dimension(s, v);
}
