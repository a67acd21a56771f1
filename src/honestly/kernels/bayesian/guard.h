/* guard.py: the answer of every layer is moved to where it keeps the promise. n clients, at most f of them liars. */

#define EXACT 12
#define PULLS 200
#define WITHIN 1.001
#define PERRON_STEPS 16
#define CLIMBS 8
enum { MOST = 512, ORDERS = 72, SETS = 14688, SLOTS = 1 << 15 }; /* SETS: 72 orders x 12 sizes x (1 + 2 x 8 climbs) */

/* Some clients, as bits. */
struct set {
    uint64_t bits[MOST / 64];
};

/* The sets that a search came by: each is looked at once. */
struct table {
    uint16_t order[ORDERS][MOST];
    int32_t count, slots[SLOTS];
    struct set sets[SETS];
    int32_t next[SETS], resized[SETS]; /* where it climbs, at its size and at any; -1 if that is not known */
    double gamma[SETS];                /* -1 if it is not known */
};

/* A search for the worst set. */
struct search {
    double f, norm;               /* f; |a.G a| */
    double *E, *q, *length, *own; /* errors about the answer, |e_k|^2, |e_k|, |G_kk| */
    int64_t sizes, firsts;
    const int64_t *size, *first;  /* of the sets, and the clients, to start from */
    struct table *table;          /* large, and rarely needed: NULL until it is */
};

#define HAS(set, k) ((set).bits[(k) / 64] >> ((k) % 64) & 1)
#define MEMBERS(k, set, n) /* each client of the set, in order */ \
    for (int64_t word_ = 0; word_ < ((n) + 63) / 64; word_++) \
        for (uint64_t bits_ = (set).bits[word_]; bits_ != 0; bits_ &= bits_ - 1) \
            for (int64_t k = 64 * word_ + __builtin_ctzll(bits_), once_ = 1; once_; once_ = 0)
#define ADD(set, k) ((set).bits[(k) / 64] |= (uint64_t)1 << ((k) % 64))

/* Whether |sum_S e_k|^2 <= f sum_S |e_k|^2 is certain for all sets S of h clients or more.

   With x_k = |e_k| and C the cosines, or 0 where they are negative, the left is at most x.C x, summed over S. For every
   positive y that is at most sum_S x_k^2 c_k, c_k = (C y)_k / y_k (Collatz and Wielandt): all is well if c_k <= f for
   all k. It still is if the h smallest x_k^2 (f - c_k), and all others below 0, have a sum that is not below 0: NumPy,
   which asks for the first alone, would search and find nothing. */
APART int is_certain(const struct space *s, const struct view *v, double f) {
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
APART int64_t add_up(const struct space *s, const struct search *x, struct set set, double *u, double *N, double *Q) {
    int64_t m = 0;
    *N = *Q = 0.0;
    memset(u, 0, s->p * sizeof *u);
    MEMBERS(k, set, s->n) {
        const double *row = x->E + k * s->p;
        for (int64_t j = 0; j < s->p; j += LANE) LANES(u + j) += LANES_OF(row + j);
        *Q += x->q[k];
        m++;
    }
    MEMBERS(k, set, s->n) *N += u[k];
    return m;
}

/* gamma = |z - m_S|^2 / (k_S s_S^2) = N (m - f) / (f (m Q - N)) */
APART double gamma_of(const struct space *s, const struct search *x, struct set set) {
    double N, Q, own = 0.0, m = (double)add_up(s, x, set, s->row[1], &N, &Q);
    MEMBERS(k, set, s->n) own += x->own[k];
    double rounding = 1e-12 * m * (own + m * x->norm), spread = m * Q - N;
    if (!(rounding < N)) N = 0.0;
    return N * (m - x->f) / MAX(x->f * MAX(spread, 0.0), rounding + TINY);
}

/* Positions in ascending order of the values, equal ones as they come. */
APART void sort(const double *value, int64_t n, uint16_t *order) {
    EACH(i, n) {
        int64_t j = i;
        for (; j > 0 && value[i] < value[order[j - 1]]; j--) order[j] = order[j - 1];
        order[j] = (uint16_t)i;
    }
}

/* Which of two orders comes first; what is behind the n clients is 0 in both. */
APART int compare(const void *one, const void *other) {
    const uint16_t *a = one, *b = other;
    int64_t k = 0;
    if (memcmp(a, b, MOST * sizeof *a) == 0) return 0;
    while (a[k] == b[k]) k++;
    return a[k] < b[k] ? -1 : 1;
}

/* The number of a set, which is added if it is new. */
APART int32_t number_of(struct table *x, struct set set) {
    uint64_t hash = 0;
    EACH(i, MOST / 64) hash = (hash ^ set.bits[i]) * 0xD6E8FEB86659FD93u;
    for (uint64_t slot = hash >> 49;; slot = (slot + 1) % SLOTS) {
        int32_t found = x->slots[slot];
        if (found == 0) {
            x->sets[x->count] = set;
            x->next[x->count] = x->resized[x->count] = -1;
            x->gamma[x->count] = -1.0;
            x->slots[slot] = ++x->count;
            return x->count - 1;
        }
        if (memcmp(x->sets + found - 1, &set, sizeof set) == 0) return found - 1;
    }
}

/* The m clients with the smallest values; of equal ones, the first. */
APART struct set set_of_least(const struct space *s, const double *value, int64_t m) {
    double last = kth(s, value, m);
    struct set set = {{0}};
    int64_t left = m;
    EACH(k, s->n) if (value[k] < last) ADD(set, k), left--;
    EACH(k, s->n) if (left > 0 && !(value[k] < last) && !(value[k] > last)) ADD(set, k), left--;
    return set;
}

/* The m clients of largest 2 u.e_k - rho m q_k, rho = N / (m Q). */
APART int32_t climb(const struct space *s, const struct search *x, int32_t from) {
    struct table *table = x->table;
    if (table->next[from] >= 0) return table->next[from];
    double *u = s->row[1], *value = s->row[2], N, Q;
    int64_t m = add_up(s, x, table->sets[from], u, &N, &Q);
    double rho = N / MAX((double)m * Q, TINY), share = rho * (double)m;
    EACH(k, s->n) value[k] = share * x->q[k] - 2.0 * u[k];
    return table->next[from] = number_of(table, set_of_least(s, value, m));
}

/* All clients with 2 u.e_k > f q_k, and at least the h clients of largest 2 u.e_k - f q_k. */
APART int32_t resize(const struct space *s, const struct search *x, int32_t from) {
    struct table *table = x->table;
    if (table->resized[from] >= 0) return table->resized[from];
    double *u = s->row[1], *value = s->row[2], N, Q;
    add_up(s, x, table->sets[from], u, &N, &Q);
    EACH(k, s->n) value[k] = x->f * x->q[k] - 2.0 * u[k];
    struct set set = set_of_least(s, value, s->h);
    EACH(k, s->n) if (value[k] < 0.0) ADD(set, k);
    return table->resized[from] = number_of(table, set);
}

/* Sets to start from: the clients nearest to, most unlike and most opposed to each of some clients. */
APART int64_t starts(const struct space *s, const struct search *x) {
    int64_t n = s->n, p = s->p, count = 0, kept = 0;
    uint16_t(*order)[MOST] = x->table->order;
    double *value = s->row[1];
    memset(order, 0, sizeof x->table->order);
    EACH(kind, 3) EACH(i, x->firsts) {
        int64_t a = x->first[i];
        const double *row = x->E + a * p;
        EACH(j, n) {
            double apart = row[j] * -2.0 + x->E[a * p + a] + x->E[j * p + j];
            value[j] = kind == 0 ? MAX(apart, 0.0) : kind == 1 ? -row[j] / x->length[a] / x->length[j] : -row[j];
        }
        sort(value, n, order[count++]);
    }
    qsort(order, count, sizeof *order, compare);
    EACH(i, count) if (kept == 0 || compare(order[i], order[kept - 1]) != 0)
        memmove(order[kept++], order[i], sizeof *order);
    return kept;
}

/* Take a set if its gamma is larger than any before; the largest gamma. */
APART double look_at(const struct space *s, const struct search *x, int32_t at, double most, struct set *worst) {
    double *gamma = x->table->gamma + at;
    if (*gamma < 0.0) *gamma = gamma_of(s, x, x->table->sets[at]);
    if (*gamma > most) *worst = x->table->sets[at];
    return MAX(*gamma, most);
}

/* The S with the largest gamma; which is returned. */
APART double worst_subset(const struct space *s, const struct search *x, struct set *worst) {
    struct table *table = x->table;
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
    memset(table->slots, 0, sizeof table->slots);
    table->count = 0;
    int64_t orders = starts(s, x), all_sizes = x->sizes == s->n - s->h + 1;
    EACH(i, x->sizes) EACH(j, orders) {
        struct set set = {{0}};
        EACH(k, x->size[i]) ADD(set, table->order[j][k]);
        int32_t at = number_of(table, set);
        EACH(step, CLIMBS) at = climb(s, x, at);
        most = look_at(s, x, at, most, worst);
        if (all_sizes) continue;
        EACH(step, CLIMBS) at = resize(s, x, at);
        most = look_at(s, x, at, most, worst);
    }
    return most;
}

/* Project the answer onto the ball of the worst S until it lies in all of them; whether it had to be moved. */
APART int pull(const struct space *s, struct search *x, const double *gram, const double *q, double *a) {
    int64_t n = s->n, p = s->p, step = 0;
    struct view v = {gram, q, a, s->row[3], NULL, 0.0, 0.0, NULL};
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
