/* The estimator of the rule Bayesian: Gram matrices in, weights and reasons out, in one call.

   A translation of src/honestly/rules/bayesian, which defines it: functions and constants have the same names, and
   comparisons the same order. One view after the other, where NumPy takes all of them at once, so that a view stays in
   the first-level cache. One thread, no state. */
#include "numbers.h"
#include "views.h"
#include "likeness.h"
#include "guard.h"

#define NO_UNIT 1e-12
#define LARGEST 1e290 /* of the entries of a Gram matrix: larger ones, and NaN, are left to NumPy */

enum { JUDGED, UNDECIDED, NOT_HERE, NO_MEMORY };

/* In and out. */
struct job {
    int64_t layers, n, tolerated;
    int64_t firsts, sizes;              /* how many clients, and sizes of sets, a search starts from */
    const double *gram;                 /* (layers, n, n) */
    const double *reference;            /* the same about the previous model: `gram` itself, another one, or NULL */
    const uint8_t *judged;              /* (layers,) */
    const double *prior, *vote, *noise; /* (n,) or NULL */
    const int64_t *first, *size;
    double *numbers; /* weights (layers, n); evidence, kept, distance (n, layers) each; against, votes (n,) each */
    uint8_t *flags;  /* accused, opposed, absurd (n,) each; group (n, n) */
    int64_t *copies; /* (n,) the first client of each one's group of copies */
    int64_t any_judged, contradiction, settled, rounds, pulled;
    double spread;
};

/* average.py: v_k = 1 / sum_j max(0, cos_kj)^4, from all views' errors together; each counts by its share. */
APART void shared_votes(const struct space *s, const struct judgement *all, Row E, Row votes) {
    int64_t n = s->n, p = s->p;
    Row inverse = s->row[0];
    memset(E, 0, p * p * sizeof *E);
    EACH(i, all->V) {
        const struct view *v = all->views + i;
        double share = (i == 0 ? 1.0 : 1.0 / (double)(all->V - 1)) / v->s2;
        In G = v->gram, g = v->g;
        EACH(a, n) EACH(b, p) E[a * p + b] += share * (G[a * p + b] - g[a] - g[b]);
    }
    EACH(k, n) inverse[k] = 1.0 / sqrt(MAX(E[k * p + k], TINY));
    EACH(a, n) {
        double alike = 0.0;
        EACH(b, n) {
            double c = E[a * p + b] * inverse[a] * inverse[b];
            c = a == b ? 0.0 : MIN(MAX(c, 0.0), 1.0);
            alike += c * c * (c * c);
        }
        votes[a] = 1.0 / (1.0 + alike);
    }
}

/* average.py: clients nearer to one another than a tenth of the spread have the same first client. */
APART void copies(const struct space *s, const double *D, double s2, int64_t *first) {
    int changed = 1;
    EACH(k, s->n) first[k] = k;
    while (changed) {
        changed = 0;
        EACH(i, s->n) EACH(j, i) {
            int near = 0.01 * s2 >= D[i * s->p + j] || 0.01 * s2 >= D[j * s->p + i];
            if (!near || first[i] == first[j]) continue;
            first[i] = first[j] = MIN(first[i], first[j]);
            changed = 1;
        }
    }
}

/* estimate.py: the weights of the clients that agree where a majority does, if it does; else there is a spread. */
APART int without_unit(const struct space *s, In q, In D, In radius, Row weights) {
    int64_t n = s->n, p = s->p, best = 0;
    double count = 0.0;
    double noise = kth(s, q, s->h);
    noise = NO_UNIT * MAX(noise, TINY);
    EACH(k, n) if (radius[k] < radius[best]) best = k;
    if (radius[best] > noise) return 0;
    EACH(k, n) count += weights[k] = D[k * p + best] <= MAX(radius[best], noise);
    EACH(k, n) weights[k] /= count;
    return 1;
}

/* The memory of a call is one piece: `carve` counts it first, then hands it out. */
struct memory {
    char *start;
    size_t used;
};

static void *carve(struct memory *memory, size_t bytes) {
    void *found = memory->start == NULL ? NULL : memory->start + memory->used;
    memory->used += (bytes + 63) & ~(size_t)63;
    return found;
}

#define DOUBLES(memory, count) carve(memory, (size_t)(count) * sizeof(double))

/* A copy with zeros behind it, if there is anything to copy. */
static double *padded(struct memory *memory, const double *from, int64_t n, int64_t p) {
    double *to = from == NULL ? NULL : DOUBLES(memory, p);
    if (to != NULL) memcpy(to, from, n * sizeof *to);
    return to;
}

struct work {
    struct space s;
    struct judgement all;
    struct view *views;          /* all layers together, then those that are judged, then those that follow */
    double *grams, *q;           /* (layers + 1, n, p), all layers together behind the others; their diagonals */
    double *reference;           /* `grams` about the previous model: `grams` itself, another one, or NULL */
    double *weights;             /* (layers, p) */
    double *D, *radius, *free, *votes, *kept;
    int64_t *order;              /* (layers + 1,) the layer of each view, then the layers without a unit */
    struct search search;
};

APART void lay_out(struct work *w, struct memory *m, const struct job *job) {
    int64_t n = job->n, p = (n + WIDTH - 1) / WIDTH * WIDTH, L = job->layers, V = L + 1;
    if (p >= 64 && p % 32 == 0) p += WIDTH; /* rows a power of two apart compete for the same lines of a cache */
    w->s = (struct space){.n = n, .p = p, .h = n - job->tolerated};
    w->s.vote = padded(m, job->vote, n, p);
    w->s.noise = padded(m, job->noise, n, p);
    w->s.prior = padded(m, job->prior, n, p);
    w->grams = DOUBLES(m, (L + 1) * n * p);
    w->q = DOUBLES(m, (L + 1) * p);
    w->reference = job->reference == NULL ? NULL : job->reference == job->gram ? w->grams : DOUBLES(m, (L + 1) * n * p);
    w->weights = DOUBLES(m, L * p);
    w->D = DOUBLES(m, p * p);
    w->s.A = DOUBLES(m, p * p);
    w->s.B = DOUBLES(m, p * p);
    w->s.C = DOUBLES(m, p * p);
    w->s.pairs = DOUBLES(m, p * p);
    EACH(i, 8) w->s.row[i] = DOUBLES(m, p);
    w->radius = DOUBLES(m, p);
    w->free = DOUBLES(m, p);
    w->votes = DOUBLES(m, p);
    w->kept = DOUBLES(m, p);
    w->order = carve(m, V * sizeof *w->order);
    w->views = carve(m, V * sizeof *w->views);
    double *centres = DOUBLES(m, 3 * V * p);
    EACH(i, m->start == NULL ? 0 : V) {
        double *own = centres + 3 * i * p;
        w->views[i] = (struct view){NULL, NULL, own, own + p, own + 2 * p, 0.0, 0.0, NULL};
    }
    w->search = (struct search){
        .f = (double)job->tolerated,
        .E = DOUBLES(m, p * p),
        .q = DOUBLES(m, p),
        .length = DOUBLES(m, p),
        .own = DOUBLES(m, p),
        .sizes = job->sizes,
        .firsts = job->firsts,
        .size = job->size,
        .first = job->first,
    };
    struct judgement *all = &w->all;
    all->first = DOUBLES(m, V * p);
    all->x = DOUBLES(m, V * p);
    all->alike = DOUBLES(m, V * p);
    all->support = DOUBLES(m, p);
    all->members = carve(m, V * p);
    all->alike_convicted = carve(m, V * p);
    all->opposing = carve(m, V * p);
    all->side = carve(m, p);
    all->moved = carve(m, V);
    all->accused = carve(m, p);
    all->guilty = carve(m, p);
    all->absurd = carve(m, p);
    all->far = carve(m, p * sizeof *all->far);
    all->who = carve(m, p * sizeof *all->who);
}

/* Transpose Gram matrices into rows of p; false if they hold what is left to NumPy. */
APART int transpose(const struct space *s, int64_t layers, const double *grams, double *rows) {
    int64_t n = s->n, p = s->p, bad = 0;
    EACH(layer, layers) {
        In from = grams + layer * n * n;
        Row to = rows + layer * n * p;
        EACH(j, n) EACH(i, n) to[j * p + i] = from[i * n + j];
        EACH(k, n * n) bad += !(fabs(from[k]) <= LARGEST);
    }
    return bad == 0;
}

APART int take(const struct work *w, const struct job *job) {
    if (!transpose(&w->s, job->layers, job->gram, w->grams)) return 0;
    EACH(layer, job->layers) diagonal(&w->s, w->grams + layer * w->s.n * w->s.p, w->q + layer * w->s.p);
    return w->reference == NULL || w->reference == w->grams ||
           transpose(&w->s, job->layers, job->reference, w->reference);
}

/* All layers together: a Gaussian with d directions of variance s^2 / d in each. `grams` are those of the layers, then
   those of all of them together, which are filled in; false if the numbers are too large. */
APART int together(const struct work *w, int64_t layers, int64_t known, double *grams) {
    int64_t square = w->s.n * w->s.p;
    Row whole = grams + layers * square;
    EACH(i, known) {
        const struct view *v = w->views + 1 + i;
        double share = v->d / v->s2;
        In gram = grams + w->order[1 + i] * square;
        EACH(k, square) whole[k] += share * gram[k];
    }
    EACH(k, square) if (!(fabs(whole[k]) <= LARGEST)) return 0;
    return 1;
}

/* A centre for every layer that has a unit, the judged ones first, in `views` from 1 on, and for all of them together
   in views[0], if there are several; false if that needs numbers too large. */
APART int survey_all(struct work *w, const struct job *job, int64_t *known, int64_t *measured) {
    struct space *s = &w->s;
    int64_t n = s->n, p = s->p, last = job->layers;
    *known = *measured = 0;
    for (int kind = 1; kind >= 0; kind--) EACH(layer, job->layers) {
        const double *gram = w->grams + layer * n * p, *q = w->q + layer * p;
        if ((job->judged[layer] != 0) != kind) continue;
        distances(s, gram, q, w->D);
        kth_of_columns(s, w->D, w->radius);
        if (without_unit(s, q, w->D, w->radius, w->weights + layer * p)) {
            w->order[last--] = layer;
            continue;
        }
        *known += kind;
        *measured += 1;
        w->order[*measured] = layer;
        w->views[*measured].gram = gram;
        w->views[*measured].q = q;
        w->views[*measured].reference = w->reference == NULL ? NULL : w->reference + layer * n * p;
        survey(s, w->views + *measured, w->D, w->radius);
    }
    if (*known < 2) return 1;
    Row whole = w->grams + job->layers * n * p, q = w->q + job->layers * p;
    if (!together(w, job->layers, *known, w->grams)) return 0;
    if (w->reference != NULL) {
        if (w->reference != w->grams && !together(w, job->layers, *known, w->reference)) return 0;
        w->views->reference = w->reference + job->layers * n * p;
    }
    diagonal(s, whole, q);
    w->views->gram = whole;
    w->views->q = q;
    distances(s, whole, q, w->D);
    kth_of_columns(s, w->D, w->radius);
    survey(s, w->views, w->D, w->radius);
    return 1;
}

/* guard.py: move the answers that may not keep the promise; false if there is no memory for it. */
APART int guard(struct work *w, struct job *job) {
    struct space *s = &w->s;
    struct search *search = &w->search;
    EACH(layer, job->layers) {
        double *weights = w->weights + layer * s->p;
        struct view v = {w->grams + layer * s->n * s->p, w->q + layer * s->p, weights, s->row[3], NULL, 0.0, 0.0, NULL};
        centre_gram(s, v.gram, weights, v.g);
        if (is_certain(s, &v, search->f)) continue;
        if (search->table == NULL && (search->table = malloc(sizeof *search->table)) == NULL) return 0;
        if (!pull(s, search, v.gram, v.q, weights)) continue;
        memcpy(job->numbers + layer * s->n, weights, s->n * sizeof *weights);
        job->pulled++;
    }
    return 1;
}

/* After a contradiction there is no evidence against anybody. */
static double told(const struct judgement *all, double nats) { return all->contradiction ? MIN(nats, 0.0) : nats; }

APART int estimate(struct work *w, struct job *job) {
    struct space *s = &w->s;
    struct judgement *all = &w->all;
    int64_t n = s->n, p = s->p, L = job->layers, known, measured, view;
    double *evidence = job->numbers + L * n, *kept = evidence + L * n, *distance = kept + L * n;
    double *against = distance + L * n, *votes = against + n;
    uint8_t *accused = job->flags, *opposed = accused + n, *absurd = opposed + n, *group = absurd + n;
    EACH(i, L * n) evidence[i] = NAN, kept[i] = 1.0, distance[i] = 0.0;
    EACH(k, n) against[k] = -INFINITY;
    if (!take(w, job) || !survey_all(w, job, &known, &measured)) return NOT_HERE;
    EACH(layer, L) memcpy(job->numbers + layer * n, w->weights + layer * p, n * sizeof(double));
    if (measured == 0) return UNDECIDED;
    EACH(k, n) w->free[k] = w->votes[k] = 1.0;
    int64_t skip = known > 1, J = known + skip;
    struct view *views = w->views + 1 - skip;
    const int64_t *order = w->order + 1 - skip;
    EACH(i, measured + skip - J) memcpy(all->first + (J + i) * p, views[J + i].centre, p * sizeof(double));
    job->any_judged = J > 0;
    if (J > 0) {
        all->V = J;
        all->views = views;
        judge(s, all);
        EACH(k, n) {
            w->free[k] = accused[k] = all->accused[k];
            w->free[k] = 1.0 - w->free[k];
            against[k] = told(all, strongest(s, all, k, &view));
            opposed[k] = all->opposing[view * p + k];
            absurd[k] = all->absurd[k];
            EACH(j, n) group[k * n + j] = all->members[view * p + j];
        }
        job->contradiction = all->contradiction;
        job->settled = all->settled;
        job->rounds = all->rounds;
        shared_votes(s, all, s->B, w->votes);
        distances(s, views->gram, views->q, w->D);
        copies(s, w->D, views->s2, job->copies);
    }
    memcpy(votes, w->votes, n * sizeof(double));
    int64_t free = 0;
    EACH(k, n) free += w->free[k] > 0.0;
    for (int64_t i = measured + 1; i <= L; i++) {
        int64_t layer = w->order[i];
        double *weights = w->weights + layer * p;
        EACH(k, n) kept[k * L + layer] = weights[k] > 0.0;
        if (free == n) continue;
        among(s, weights, w->free, s->row[3]);
        memcpy(weights, s->row[3], n * sizeof *weights);
        memcpy(job->numbers + layer * n, weights, n * sizeof *weights);
    }
    double *counted = s->row[4], any = 0.0;
    EACH(k, n) {
        counted[k] = w->votes[k] * w->free[k];
        any += s->vote == NULL ? 0.0 : counted[k] * s->vote[k];
    }
    if (any > 0.0) EACH(k, n) counted[k] *= s->vote[k];
    EACH(i, measured) {
        struct view *v = views + skip + i;
        int64_t layer = order[skip + i];
        double *centre = s->row[3], *g = s->row[5], *weights = w->weights + layer * p;
        among(s, all->first + (skip + i) * p, w->free, centre);
        centre_gram(s, v->gram, centre, g);
        shorten_errors(s, v->q, centre, g, counted, v->d, 1, weights, w->kept);
        memcpy(job->numbers + layer * n, weights, n * sizeof(double));
        EACH(k, n) {
            kept[k * L + layer] = w->kept[k];
            distance[k * L + layer] = sqrt(v->r2[k] / v->s2);
            if (i < known) evidence[k * L + layer] = told(all, all->x[(skip + i) * p + k]);
        }
        if (i < known) job->spread += v->s2;
    }
    job->spread = sqrt(job->spread);
    return guard(w, job) ? JUDGED : NO_MEMORY;
}

int honestly_bayesian(struct job *job) {
    struct memory memory = {NULL, 0};
    struct work work;
    memset(&work, 0, sizeof work);
    lay_out(&work, &memory, job);
    memory.start = calloc(memory.used + 64, 1);
    if (memory.start == NULL) return NO_MEMORY;
    char *whole = memory.start;
    memory = (struct memory){whole + (64 - (uintptr_t)whole % 64), 0};
    lay_out(&work, &memory, job);
    int status = estimate(&work, job);
    free(work.search.table);
    free(whole);
    return status;
}
