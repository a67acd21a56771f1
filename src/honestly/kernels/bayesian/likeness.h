/* likeness.py: who lies. Far clients that err alike, or that oppose what the others agree on. */

#define COMMON 0.1
#define SEARCH 3.4
#define OPPOSED 2.5
#define NEAR_BASE 0.8
#define NEAR_CHANCE 3.0
#define TIGHT 16.0
#define AGREE 0.7
#define SAME 0.93
#define LOOSEST 5.0
#define QUANTILE 0.75
#define CHI2 1.323
#define POWER_STEPS 6
#define MEMBER 0.5
#define SUSPECTED (-0.1)
#define FARAWAY 25.0
#define LONGER 25.0
#define ABSURD 1e6
#define ROUNDS 5

/* The judgement of V views, all of whose arrays are (V, p) or, without a V, (p,). */
struct judgement {
    int64_t V;
    struct view *views;
    double *first;                       /* the centres before anybody was accused */
    double *x, *alike, *support;         /* nats; mean cosines; (p,) */
    uint8_t *members, *alike_convicted, *opposing, *side, *moved;
    uint8_t *accused, *guilty, *absurd;  /* (p,) */
    int64_t *far, *who;                  /* (p,) positions of clients */
    int contradiction, settled;
    int64_t rounds;
};

/* C_ij = cos(e_i, e_j), 0 on the diagonal. */
APART void cosines(const struct space *s, const struct view *v, Row C) {
    int64_t n = s->n, p = s->p;
    Row inverse = s->row[0];
    In G = v->gram, g = v->g;
    inverse_lengths(s, v, inverse);
    EACH(i, n) {
        EACH(j, p) {
            double c = (G[i * p + j] - g[i] - g[j]) * inverse[i] * inverse[j];
            C[i * p + j] = MIN(MAX(c, -1.0), 1.0);
        }
        C[i * p + i] = 0.0;
    }
}

/* d = 1.323 / q, q the upper quartile of (cos - mean cos)^2 over the pairs of these clients. */
APART double dimension(const struct space *s, const double *C, const int64_t *who, int64_t few) {
    int64_t count = 0;
    Row spread = s->pairs;
    if (few < 2) return 1.0;
    EACH(a, few) {
        In row = C + who[a] * s->p;
        EACH(b, a) spread[count + b] = row[who[b]];
        count += a;
    }
    int64_t whole = (count + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t i = count; i < whole; i++) spread[i] = 0.0;
    double mean = add(spread, whole) / (double)count;
    EACH(i, count) {
        double apart = spread[i] - mean;
        spread[i] = apart * apart;
    }
    double q = nth(spread, spread + count, count, (int64_t)(QUANTILE * (double)count));
    return CHI2 / MAX(q, 1e-9);
}

/* The far clients that err most alike: the top eigenvector of likeness beyond chance. */
APART void top_group(const struct space *s, const double *C, const int64_t *far, int64_t count, double chance,
                     uint8_t *members) {
    struct space few = {.n = count, .p = (count + WIDTH - 1) / WIDTH * WIDTH};
    Row S = s->pairs, y = s->row[1], next = s->row[2];
    EACH(a, count) {
        y[a] = 1.0;
        EACH(b, few.p) {
            double beyond = b < count ? C[far[a] * s->p + far[b]] - chance : 0.0;
            S[a * few.p + b] = MAX(beyond, 0.0);
        }
    }
    EACH(step, POWER_STEPS + 1) {
        double top = TINY;
        times(&few, S, y, next);
        EACH(a, count) top = MAX(top, next[a]);
        EACH(a, few.p) y[a] = next[a] / top;
    }
    EACH(a, count) members[far[a]] = y[a] > MEMBER;
}

/* -(count / 2) ln(1 - x^2), x the cosine beyond what is common. */
static double nats(double cosine, double common, double count) {
    double x = MAX(cosine - common, 0.0);
    return -0.5 * count * log1p(-x * x);
}

/* The evidence of likeness in one view, as far as it can be known without the others. `t` is r^2 / s^2. */
APART void look_alike(const struct space *s, struct judgement *all, int64_t i, const int64_t *who, int64_t few) {
    struct view *v = all->views + i;
    double *C = s->A, *x = all->x + i * s->p, *alike = all->alike + i * s->p, cost = SEARCH * log((double)s->n);
    uint8_t *members = all->members + i * s->p;
    cosines(s, v, C);
    v->d = dimension(s, C, who, few);
    double chance = 1.0 / sqrt(v->d), near = NEAR_BASE + NEAR_CHANCE * chance;
    int64_t count = 0, size = 0;
    memset(members, 0, s->p);
    EACH(k, s->n) {
        x[k] = -cost;
        alike[k] = 0.0;
        if (in_own_unit(v->r2[k] / v->s2, s->vote, k) > MAX(near, TIE)) all->far[count++] = k;
    }
    if (count < 1) return;
    top_group(s, C, all->far, count, chance, members);
    /* own: each client's mean cosine with the m other members that do not err much farther; together: of all members */
    double *own = s->row[1], *m = s->row[2], together = 0.0;
    EACH(a, count) size += members[all->far[a]];
    EACH(a, count) {
        int64_t k = all->far[a];
        double total = 0.0, heard = 0.0;
        m[a] = -(double)members[k];
        EACH(b, count) {
            int64_t j = all->far[b];
            if (!members[j]) continue;
            total += C[k * s->p + j];
            if (!(v->r2[j] <= LONGER * v->r2[k])) continue;
            heard += C[k * s->p + j];
            m[a] += 1.0;
        }
        own[a] = heard / MAX(m[a], 1.0);
        if (members[k]) together += total / (double)MAX(size - 1, 1);
    }
    together /= (double)MAX(size, 1);
    EACH(a, count) {
        int64_t k = all->far[a];
        alike[k] = MIN(own[a], together);
        if (m[a] < 1.0) continue;
        x[k] = nats(alike[k], COMMON, m[a] * v->d) - cost;
        if (m[a] < 2.0 || v->d < TIGHT) continue;
        double half = nats(alike[k], AGREE * COMMON, m[a] * v->d) - AGREE * AGREE * cost;
        all->support[k] = MAX(all->support[k], half);
    }
}

/* The cosine with the others that is usual for a client of that size. */
static double usual_agreement(const struct space *s, double usual, int64_t k) {
    if (s->noise == NULL || usual <= 0.0) return usual;
    double u = MIN(usual, 1.0 - 1e-9), odds = u * u / (1.0 - u * u) * s->noise[k];
    return sqrt(odds / (1.0 + odds));
}

/* Evidence for opposition: minus the cosine of each update with the mean of the others', from the previous model. */
APART void oppose(const struct space *s, const struct view *v, double *x, uint8_t *opposing) {
    int64_t n = s->n;
    Row o = s->row[0], g = s->row[1];
    double norm, nats_of_chance = OPPOSED * log((double)n);
    double far = MAX(NEAR_BASE + NEAR_CHANCE * (1.0 / sqrt(v->d)), TIE);
    times(s, v->reference, v->centre, g);
    norm = dot(s, g, v->centre);
    EACH(k, n) {
        double a = v->centre[k], own2 = MAX(v->reference[k * s->p + k], TINY);
        double others2 = norm - 2.0 * a * g[k] + a * a * own2;
        o[k] = -((g[k] - a * own2) / sqrt(MAX(others2, TINY))) / sqrt(own2);
        o[k] = MIN(MAX(o[k], -1.0), 1.0);
    }
    double usual = -kth(s, o, n / 2 + 1); /* where most clients go one way; else there is nothing to oppose */
    if (!(usual > COMMON) || v->d < LOOSEST) return;
    EACH(k, n) {
        if (!(o[k] > COMMON) || !(in_own_unit(v->r2[k] / v->s2, s->vote, k) > far)) continue;
        double beyond = o[k] + usual_agreement(s, usual, k);
        double against = 0.5 * v->d * (beyond * beyond) - nats_of_chance;
        opposing[k] = against > x[k];
        x[k] = MAX(x[k], against);
    }
}

/* Who errs like others most of which err like at least twice as many: these copied it, and others, too. */
APART int64_t copied_clients(const struct space *s, const struct judgement *all, uint8_t *copied) {
    int64_t n = s->n, p = s->p, count = 0;
    double *pairs = s->pairs, *C = s->A, *alike = s->row[1];
    memset(pairs, 0, n * p * sizeof *pairs);
    EACH(i, all->V) {
        const struct view *v = all->views + i;
        const uint8_t *convicted = all->alike_convicted + i * p;
        int64_t few = 0;
        EACH(k, n) if (convicted[k]) all->far[few++] = k;
        if (few < 2) continue;
        cosines(s, v, C);
        double bar = COMMON + 1.0 / sqrt(v->d);
        EACH(a, few) EACH(b, few) {
            int64_t at = all->far[a] * p + all->far[b];
            if (C[at] > bar) pairs[at] = 1.0;
        }
    }
    EACH(k, n) {
        alike[k] = 0.0;
        EACH(j, n) alike[k] += pairs[k * p + j];
    }
    EACH(k, n) {
        double more = 0.0;
        EACH(j, n) more += pairs[k * p + j] * (alike[j] >= 2.0 * alike[k]);
        count += copied[k] = 2.0 * more > alike[k];
    }
    return count;
}

/* The evidence against every client in every view. */
APART void look(const struct space *s, struct judgement *all) {
    int64_t n = s->n, p = s->p, few = 0;
    double cost = SEARCH * log((double)n);
    const struct view *whole = all->views;
    EACH(k, n) {
        all->support[k] = -cost;
        if (!all->accused[k] && in_own_unit(whole->r2[k] / whole->s2, s->vote, k) <= FARAWAY) all->who[few++] = k;
    }
    EACH(i, all->V) look_alike(s, all, i, all->who, few);
    EACH(i, all->V) {
        struct view *v = all->views + i;
        double *x = all->x + i * p, *alike = all->alike + i * p, most = -INFINITY, second = -INFINITY;
        uint8_t *opposing = all->opposing + i * p;
        EACH(k, n) {
            if (v->d < LOOSEST) x[k] = -cost;
            else if (v->d < TIGHT && !(alike[k] > SAME)) x[k] = MIN(x[k], all->support[k]);
            if (x[k] > most) second = most, most = x[k];
            else second = MAX(second, x[k]);
        }
        EACH(k, n) { /* it takes two to err alike */
            double companion = x[k] >= most ? second : most;
            if (s->prior == NULL || s->prior[k] > SUSPECTED) x[k] = MIN(x[k], companion);
            all->alike_convicted[i * p + k] = x[k] > 0.0;
            opposing[k] = 0;
        }
    }
    if (copied_clients(s, all, all->side)) EACH(i, all->V) EACH(k, n) {
        if (!all->side[k]) continue;
        all->alike_convicted[i * p + k] = 0;
        all->x[i * p + k] = -cost;
    }
    EACH(i, all->V) if (all->views[i].reference != NULL) {
        oppose(s, all->views + i, all->x + i * p, all->opposing + i * p);
    }
    double moved = -1.0; /* by how much the others moved: where clients agree closely, one that did not seems far away */
    EACH(k, n) {
        double t = in_own_unit(whole->r2[k] / whole->s2, s->vote, k);
        all->absurd[k] = t > ABSURD;
        if (all->absurd[k] && whole->reference != NULL) {
            if (moved < 0.0) {
                times(s, whole->reference, whole->centre, s->row[0]);
                moved = MAX(dot(s, s->row[0], whole->centre), 0.0);
            }
            all->absurd[k] = whole->r2[k] > LONGER * moved;
        }
        if (all->absurd[k]) all->x[k] = log(t);
    }
}

/* Who stands nearer to the mean of those who err alike than to the centre; how many. */
APART int64_t camp(const struct space *s, const struct judgement *all, int64_t i, uint8_t *side) {
    int64_t n = s->n, many = 0;
    const struct view *v = all->views + i;
    const uint8_t *alike = all->alike_convicted + i * s->p;
    double *guilty = s->row[0], *towards = s->row[1], m = 0.0, apart = 0.0, all_g = 0.0;
    memset(side, 0, s->p);
    EACH(k, n) m += guilty[k] = alike[k] && v->r2[k] <= FARAWAY * v->s2;
    if (m < 2.0) return 0;
    times(s, v->gram, guilty, towards);
    EACH(k, n) all_g += guilty[k] * v->g[k];
    EACH(k, n) {
        double products = towards[k] - m * v->g[k] - all_g - guilty[k] * OWN(v, k);
        towards[k] = products / MAX(m - guilty[k], 1.0);
        apart += towards[k] * guilty[k];
    }
    apart /= m;
    if (!(apart > 0.0)) return 0;
    EACH(k, n) many += side[k] = v->r2[k] <= FARAWAY * v->s2 && towards[k] > 0.5 * apart;
    return many;
}

/* The centre's weights without the accused, unless it is all theirs. */
APART void among(const struct space *s, const double *centre, const double *free, double *out) {
    EACH(k, s->p) out[k] = centre[k] * free[k];
    double total = sum(s, out), freed = sum(s, free);
    EACH(k, s->n) out[k] = total > 1e-3 ? out[k] / total : free[k] / freed;
}

/* The largest evidence against a client, and the view that has it. */
APART double strongest(const struct space *s, const struct judgement *all, int64_t k, int64_t *view) {
    double most = all->x[k];
    *view = 0;
    EACH(i, all->V) if (all->x[i * s->p + k] > most) most = all->x[i * s->p + k], *view = i;
    return most;
}

/* Convict, move the centre to the others, look again; until nothing changes. */
APART void judge(const struct space *s, struct judgement *all) {
    int64_t n = s->n, p = s->p, V = all->V, view;
    double *free = s->row[3], *centre = s->row[4], *g = s->row[5];
    EACH(i, V) memcpy(all->first + i * p, all->views[i].centre, p * sizeof *free);
    for (;;) {
        look(s, all);
        if (all->contradiction) break;
        int erring = 0;
        EACH(i, V) {
            if (all->moved[i]) continue;
            double *first = all->first + i * p;
            int64_t many = camp(s, all, i, all->side);
            if (many < s->h) continue;
            erring = all->moved[i] = 1; /* a majority errs alike there: it is the centre that errs */
            EACH(k, n) first[k] = (double)all->side[k] / (double)many;
        }
        if (erring) memset(all->accused, 0, p);
        int64_t count = 0;
        EACH(k, erring ? 0 : n) {
            double prior = s->prior == NULL ? 0.0 : s->prior[k];
            count += all->guilty[k] = strongest(s, all, k, &view) - prior > 0.0;
        }
        if (!erring) {
            all->contradiction = count > n - s->h;
            all->settled = memcmp(all->guilty, all->accused, n) == 0;
            if (!all->contradiction && (all->settled || all->rounds == ROUNDS)) break;
            EACH(k, n) all->accused[k] = all->guilty[k] && !all->contradiction;
            all->rounds++;
        }
        EACH(k, n) free[k] = !all->accused[k];
        EACH(i, V) {
            struct view *v = all->views + i;
            if (erring || all->contradiction)
                memcpy(v->centre, all->first + i * p, p * sizeof *free);
            else {
                among(s, all->first + i * p, free, centre);
                centre_gram(s, v->gram, centre, g);
                shorten_errors(s, v->q, centre, g, free, v->d, 0, v->centre, NULL);
            }
            about(s, v);
        }
    }
}
