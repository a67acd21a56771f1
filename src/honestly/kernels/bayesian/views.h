/* views.py and centre.py: one Gram matrix, a robust centre, and the honest spread about it.

   Gram matrices are kept by columns: if rounding left them not quite symmetric, products add up what NumPy adds up. The
   errors about a centre a need no matrix of their own: E_ij = G_ij - g_i - g_j with g = G a - a.G a / 2, which is all
   that is kept of them. */

#define MEDIAN_STEPS 5
#define TIE (1.0 + 1e-9)
#define MEDIAN_COS2 0.455
#define CHANCE 1.0
#define SMALLEST 0.01

/* A view about a centre. */
struct view {
    const double *gram, *q; /* G; G_kk */
    double *centre, *g, *r2, s2, d;
    const double *reference; /* G about the previous model, where it is known */
};

/* D_ji = |w_i - w_j|^2: row j has the distances of all to j, so that a column has those of one client. */
APART void distances(const struct space *s, In G, In q, Row D) {
    int64_t n = s->n, p = s->p;
    EACH(j, n) {
        EACH(i, p) {
            double apart = G[j * p + i] * -2.0 + q[i] + q[j];
            D[j * p + i] = MAX(apart, 0.0);
        }
        for (int64_t i = n; i < p; i++) D[j * p + i] = 0.0;
    }
}

/* G_kk */
static void diagonal(const struct space *s, In G, Row q) {
    EACH(k, s->n) q[k] = G[k * s->p + k];
}

/* |w_k - sum_j a_j w_j|^2 */
APART void residuals(const struct space *s, In G, In q, In a, Row out) {
    times(s, G, a, out);
    double norm = dot(s, out, a);
    EACH(k, s->n) {
        double r2 = q[k] - 2.0 * out[k] + norm;
        out[k] = MAX(r2, 0.0);
    }
}

/* g, by which the errors about the centre a are known. */
APART void centre_gram(const struct space *s, const double *G, const double *a, double *g) {
    times(s, G, a, g);
    double half = 0.5 * dot(s, g, a);
    EACH(k, s->n) g[k] -= half;
}

#define OWN(v, k) ((v)->q[k] - (v)->g[k] - (v)->g[k]) /* E_kk */

APART void about(const struct space *s, struct view *v) {
    In q = v->q, a = v->centre;
    Row g = v->g, r2 = v->r2;
    centre_gram(s, v->gram, a, g);
    EACH(k, s->p) {
        double own = q[k] - g[k] - g[k], others = MAX(1.0 - a[k], 0.1);
        r2[k] = MAX(own, 0.0) / (others * others);
    }
    double s2 = kth(s, v->r2, s->h);
    v->s2 = MAX(s2, TINY);
}

APART double majority(const struct space *s, const struct view *v) {
    EACH(k, s->n) s->row[7][k] = OWN(v, k);
    return kth(s, s->row[7], s->h);
}

/* Equal weights for the h smallest. */
APART void nearest(const struct space *s, In x, Row a) {
    double within = TIE * kth(s, x, s->h);
    EACH(k, s->p) a[k] = x[k] <= within ? 1.0 : 0.0;
    normalise(s, a);
}

/* Weights of the mean of the tightest ball of h points, moved once to the h points nearest to it. */
APART void tightest(const struct space *s, In G, Row D, Row a) {
    int64_t n = s->n, p = s->p, best = 0;
    Row size = s->row[0], mean = s->row[1], q = s->row[7];
    diagonal(s, G, q);
    distances(s, G, q, D);
    kth_of_columns(s, D, size);
    memset(mean, 0, p * sizeof *mean);
    EACH(j, n) EACH(i, p) mean[i] += D[j * p + i];
    EACH(i, n) size[i] += 1e-6 * (mean[i] / (double)n);
    EACH(i, n) if (size[i] < size[best]) best = i;
    EACH(j, n) mean[j] = D[j * p + best];
    nearest(s, mean, a);
    residuals(s, G, q, a, mean);
    nearest(s, mean, a);
}

/* Weights of (nearly) the geometric median, by Weiszfeld from weights (R_min / R_k)^2. */
APART void medians(const struct space *s, In G, In q, In radius, Row a) {
    Row r2 = s->row[0];
    double close = smallest(s, radius);
    close = MAX(close, TINY);
    EACH(k, s->p) {
        double share = close / MAX(radius[k], TINY);
        a[k] = share * share;
    }
    normalise(s, a);
    double least = MAX(1e-11 * close, TINY);
    EACH(step, MEDIAN_STEPS) {
        residuals(s, G, q, a, r2);
        EACH(k, s->p) a[k] = MAX(1.0 - a[k], 0.1) / sqrt(MAX(r2[k], least));
        normalise(s, a);
    }
}

/* 1 / |e_k| */
APART void inverse_lengths(const struct space *s, const struct view *v, Row inverse) {
    In q = v->q, g = v->g;
    EACH(k, s->p) {
        double r2 = q[k] - g[k] - g[k];
        inverse[k] = 1.0 / sqrt(MAX(r2, TINY));
    }
    for (int64_t k = s->n; k < s->p; k++) inverse[k] = 0.0;
}

/* In how many directions independent errors would be as unlike one another, from the median of cos^2. */
APART double effective_dimension(const struct space *s, const struct view *v) {
    int64_t n = s->n, p = s->p, count = 0;
    Row inverse = s->row[0], c2 = s->pairs;
    In g = v->g;
    inverse_lengths(s, v, inverse);
    EACH(i, n) {
        In G = v->gram + i * p;
        EACH(j, i) {
            double c = (G[j] - g[i] - g[j]) * inverse[i] * inverse[j];
            c = MIN(MAX(c, -1.0), 1.0);
            c2[count + j] = c * c;
        }
        count += i;
    }
    double middle = nth(s->pairs, s->pairs + count, count, count / 2);
    return MEDIAN_COS2 / MAX(middle, 1e-9);
}

/* r^2 p: over what noise gives a client of that size. */
static double in_own_unit(double r2, const double *unit, int64_t k) {
    return unit == NULL ? r2 : r2 * MAX(unit[k], SMALLEST);
}

/* average.py: c + sum_k v_k f_k (w_k - c) / sum_k v_k as weights, `out` from `centre`; and the factors, if asked for.
   g belongs to the centre. With `by_size` the clients' sizes count. */
APART void shorten_errors(const struct space *s, In q, const double *centre, In g, In votes, double d, int by_size,
                          double *out, Row kept) {
    int64_t p = s->p;
    const double *vote = by_size ? s->vote : NULL, *noise = by_size ? s->noise : NULL;
    Row r2 = s->row[6], moved = s->row[7];
    EACH(k, p) {
        double own = q[k] - g[k] - g[k];
        r2[k] = MAX(own, TINY);
    }
    double longest = kth(s, r2, s->h) * (1.0 + 2.0 * sqrt(CHANCE / d) + 2.0 * CHANCE / d), all = sum(s, votes);
    EACH(k, p) {
        double own = in_own_unit(r2[k], vote, k);
        moved[k] = MIN(longest, own) / own * (votes[k] / all);
    }
    double rest = 1.0 - sum(s, moved);
    EACH(k, p) out[k] = moved[k] + rest * centre[k];
    if (kept != NULL) EACH(k, p) {
        double own = in_own_unit(r2[k], noise, k);
        kept[k] = MIN(longest, own) / own;
    }
}

/* A centre that no minority captures, and the effective dimension about it. D and radius belong to the Gram matrix;
   both are overwritten. The view's memory is filled. */
APART void survey(const struct space *s, struct view *v, Row D, Row radius) {
    int64_t n = s->n, p = s->p;
    Row Nt = s->B, T = s->C, count = s->row[2], a = s->row[3];
    struct view tight = {v->gram, v->q, s->row[4], s->row[5], a, 0.0, 0.0, NULL};
    /* N, whose rows are the neighbourhoods, transposed */
    memset(count, 0, p * sizeof *count);
    EACH(j, n) {
        EACH(i, p) {
            double inside = TIE * radius[i] >= D[j * p + i] ? 1.0 : 0.0;
            Nt[j * p + i] = inside;
            count[i] += inside;
        }
        for (int64_t i = n; i < p; i++) Nt[j * p + i] = 0.0;
    }
    EACH(i, n) count[i] = 1.0 / count[i];
    EACH(j, n) EACH(i, p) Nt[j * p + i] *= count[i];
    multiply(s, v->gram, Nt, T); /* G N^T */
    multiply(s, Nt, T, D);       /* N G N^T */
    tightest(s, D, T, a);
    EACH(j, n) tight.centre[j] = dot(s, a, Nt + j * p);
    /* the geometric median, moved once by the shortened errors of all */
    Row ones = count;
    EACH(k, p) ones[k] = k < n;
    medians(s, v->gram, v->q, radius, v->centre);
    centre_gram(s, v->gram, v->centre, v->g);
    double d = effective_dimension(s, v);
    shorten_errors(s, v->q, v->centre, v->g, ones, d, 0, v->centre, NULL);
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
