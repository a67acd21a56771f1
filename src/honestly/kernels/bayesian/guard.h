/* guard.py: the answer of every layer is moved to where it keeps the promise. n clients, at most f of them liars. */

#define EXACT 12
#define PULLS 200
#define WITHIN 1.001
#define PERRON_STEPS 16
#define CLIMBS 8
enum { MOST = 128, ORDERS = 72, SETS = 7776, SLOTS = 1 << 14 }; /* SETS: 72 orders x 12 sizes x (1 + 8 climbs) */

/* Some clients, as bits. */
struct set {
    uint64_t bits[MOST / 64];
};

/* The sets that a search came by: each is looked at once. `next` is where it climbs, -1 if that is not known. */
struct search {
    double f, norm;                 /* f; |a.G a| */
    double *E, *q, *length, *own;   /* errors about the answer, |e_k|^2, |e_k|, |G_kk| */
    int64_t sizes, firsts;
    const int64_t *size, *first;    /* of the sets, and the clients, to start from */
    uint8_t (*order)[MOST];         /* (ORDERS,) */
    struct set *sets;               /* (SETS,) */
    int32_t *next, *slots, count;
    double *gamma;                  /* (SETS,) -1 if it is not known */
};

#define HAS(set, k) ((set).bits[(k) / 64] >> ((k) % 64) & 1)
#define ADD(set, k) ((set).bits[(k) / 64] |= (uint64_t)1 << ((k) % 64))

/* Whether |sum_S e_k|^2 <= f sum_S |e_k|^2 is certain for all sets S of h clients or more.

   With x_k = |e_k| and C the cosines, or 0 where they are negative, the left is x.C x, summed over S. For every positive y
   it is at most sum_S x_k^2 c_k, c_k = (C y)_k / y_k (Collatz and Wielandt): all is well if c_k <= f for all k. It still is
   if the h smallest x_k^2 (f - c_k), and all others below 0, have a sum that is not: NumPy, which asks for the first alone,
   would search and find nothing. */
static int is_certain(const struct space *s, const struct view *v, double f) {
    int64_t n = s->n, p = s->p;
    Row C = s->A, y = s->row[1], next = s->row[2], q = s->row[4], left = s->row[5];
    cosines(s, v, C);
    EACH(i, n) {
        double own = s->row[0][i];
        q[i] = MAX(OWN(v, i), 0.0);
        C[i * p + i] = MIN(q[i] * own * own, 1.0);
        EACH(j, p) C[i * p + j] = MAX(C[i * p + j], 0.0);
    }
    EACH(k, p) y[k] = k < n;
    EACH(step, PERRON_STEPS) {
        double top = TINY, most = 0.0;
        times(s, C, y, next);
        EACH(k, n) {
            double c = next[k] / y[k];
            left[k] = q[k] * (f - c);
            most = MAX(most, c);
            y[k] = MAX(next[k], 1e-12);
            top = MAX(top, y[k]);
        }
        if (most <= f) return 1;
        double last = kth(s, left, s->h), total = 0.0;
        int64_t taken = 0;
        EACH(k, n) if (left[k] < last || left[k] < 0.0) total += left[k], taken++;
        if (taken < s->h) total += (double)(s->h - taken) * last;
        if (total >= 0.0) return 1;
        EACH(k, n) y[k] /= top;
    }
    return 0;
}

/* u = sum_S e as products with all e_k; returns how many S has, and |u|^2 and sum_S |e_k|^2. */
static int64_t add_up(const struct space *s, const struct search *x, struct set set, double *u, double *N, double *Q) {
    int64_t m = 0;
    *N = *Q = 0.0;
    memset(u, 0, s->p * sizeof *u);
    EACH(k, s->n) if (HAS(set, k)) {
        const double *row = x->E + k * s->p;
        EACH(j, s->p) u[j] += row[j];
        *Q += x->q[k];
        m++;
    }
    EACH(k, s->n) if (HAS(set, k)) *N += u[k];
    return m;
}

/* gamma = |z - m_S|^2 / (k_S s_S^2) = N (m - f) / (f (m Q - N)) */
static double gamma_of(const struct space *s, const struct search *x, struct set set) {
    double N, Q, own = 0.0, m = (double)add_up(s, x, set, s->row[1], &N, &Q);
    EACH(k, s->n) if (HAS(set, k)) own += x->own[k];
    double rounding = 1e-12 * m * (own + m * x->norm), spread = m * Q - N;
    if (!(rounding < N)) N = 0.0;
    return N * (m - x->f) / MAX(x->f * MAX(spread, 0.0), rounding + TINY);
}

/* Positions in ascending order of the values, equal ones as they come. */
static void sort(const double *value, int64_t n, uint8_t *order) {
    EACH(i, n) {
        int64_t j = i;
        for (; j > 0 && value[i] < value[order[j - 1]]; j--) order[j] = order[j - 1];
        order[j] = (uint8_t)i;
    }
}

static int by_place(const void *a, const void *b) { return memcmp(a, b, MOST); }

/* The number of a set, which is added if it is new. */
static int32_t number_of(struct search *x, struct set set) {
    uint64_t hash = (set.bits[0] ^ set.bits[1] * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    for (uint64_t slot = hash >> 50;; slot = (slot + 1) % SLOTS) {
        int32_t found = x->slots[slot];
        if (found == 0) {
            x->sets[x->count] = set;
            x->next[x->count] = -1;
            x->gamma[x->count] = -1.0;
            x->slots[slot] = ++x->count;
            return x->count - 1;
        }
        if (memcmp(x->sets + found - 1, &set, sizeof set) == 0) return found - 1;
    }
}

/* The m clients of largest 2 u.e_k - rho m q_k, rho = N / (m Q). */
static int32_t climb(const struct space *s, struct search *x, int32_t from) {
    if (x->next[from] >= 0) return x->next[from];
    double *u = s->row[1], *value = s->row[2], N, Q;
    int64_t m = add_up(s, x, x->sets[from], u, &N, &Q);
    double rho = N / MAX((double)m * Q, TINY), share = rho * (double)m;
    EACH(k, s->n) value[k] = share * x->q[k] - 2.0 * u[k];
    double last = kth(s, value, m);
    struct set set = {{0}};
    int64_t left = m;
    EACH(k, s->n) if (value[k] < last) ADD(set, k), left--;
    EACH(k, s->n) if (left > 0 && !(value[k] < last) && !(value[k] > last)) ADD(set, k), left--;
    x->next[from] = number_of(x, set);
    return x->next[from];
}

/* Sets to start from: the clients nearest to, most unlike and most opposed to each of some clients. */
static int64_t starts(const struct space *s, struct search *x) {
    int64_t n = s->n, p = s->p, count = 0, kept = 0;
    double *value = s->row[1];
    EACH(kind, 3) EACH(i, x->firsts) {
        int64_t a = x->first[i];
        const double *row = x->E + a * p;
        EACH(j, n) {
            double apart = row[j] * -2.0 + x->E[a * p + a] + x->E[j * p + j];
            value[j] = kind == 0 ? MAX(apart, 0.0) : kind == 1 ? -row[j] / x->length[a] / x->length[j] : -row[j];
        }
        sort(value, n, x->order[count++]);
    }
    qsort(x->order, count, MOST, by_place);
    EACH(i, count) if (kept == 0 || memcmp(x->order[i], x->order[kept - 1], n) != 0)
        memmove(x->order[kept++], x->order[i], MOST);
    return kept;
}

/* The S with the largest gamma; which is returned. */
static double worst_subset(const struct space *s, struct search *x, struct set *worst) {
    double most = -1.0;
    if (s->n <= EXACT) {
        for (uint64_t bits = 0; bits < (uint64_t)1 << s->n; bits++) {
            struct set set = {{bits}};
            if (__builtin_popcountll(bits) < s->h) continue;
            double gamma = gamma_of(s, x, set);
            if (gamma > most) most = gamma, *worst = set;
        }
        return most;
    }
    memset(x->slots, 0, SLOTS * sizeof *x->slots);
    x->count = 0;
    int64_t orders = starts(s, x);
    EACH(i, x->sizes) EACH(j, orders) {
        struct set set = {{0}};
        EACH(k, x->size[i]) ADD(set, x->order[j][k]);
        int32_t at = number_of(x, set);
        EACH(step, CLIMBS) at = climb(s, x, at);
        if (x->gamma[at] < 0.0) x->gamma[at] = gamma_of(s, x, x->sets[at]);
        if (x->gamma[at] > most) most = x->gamma[at], *worst = x->sets[at];
    }
    return most;
}

/* Project the answer onto the ball of the worst S until it lies in all of them; whether it had to be moved. */
static int pull(const struct space *s, struct search *x, const double *gram, const double *q, double *a) {
    int64_t n = s->n, p = s->p, step = 0;
    struct view v = {gram, q, a, s->row[3], NULL, 0.0, 0.0};
    for (; step < PULLS; step++) {
        struct set worst = {{0}};
        times(s, gram, a, v.g);
        x->norm = fabs(dot(s, v.g, a));
        centre_gram(s, gram, a, v.g);
        if (is_certain(s, &v, x->f)) break;
        EACH(i, n) {
            EACH(j, n) x->E[i * p + j] = gram[j * p + i] - v.g[i] - v.g[j];
            x->q[i] = MAX(x->E[i * p + i], 0.0);
            x->length[i] = sqrt(MAX(x->q[i], TINY));
            x->own[i] = fabs(q[i]);
        }
        double gamma = worst_subset(s, x, &worst), m = 0.0;
        if (!(gamma > WITHIN)) break;
        EACH(k, n) m += (double)HAS(worst, k);
        EACH(k, n) {
            double mean = (double)HAS(worst, k) / m;
            a[k] = mean + (a[k] - mean) / sqrt(gamma);
        }
    }
    return step > 0;
}
