/* The passes for values that are worked on as T; included once for each. */

#define LANES (BYTES / (int)sizeof(T))
typedef T NAME(vec) __attribute__((vector_size(BYTES)));
typedef T NAME(loose) __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias)); /* at any address */
typedef T NAME(half) __attribute__((vector_size(BYTES / 2)));
typedef double NAME(sum) __attribute__((vector_size(BYTES)));
#define V NAME(vec)
#define HALF NAME(half)
#define D NAME(sum)
#define LOOSE NAME(loose)
#if WIDE
typedef int64_t NAME(mask) __attribute__((vector_size(BYTES)));
#else
typedef int32_t NAME(mask) __attribute__((vector_size(BYTES)));
#endif
#define MASK NAME(mask)

/* Rows of a packed block stand this far apart: their cache lines do not all compete for one place. */
#define STRIDE (CHUNK + 4 * LINE / (int)sizeof(T))

/* Values start.. of one row as T. */
static void NAME(widen)(T *restrict out, const void *place, int kind, int64_t start, int64_t count) {
    if (kind == FLOAT32) {
        const float *restrict in = (const float *)place + start;
        for (int64_t c = 0; c < count; c++) out[c] = (T)in[c];
    } else if (kind == FLOAT64) {
        const double *restrict in = (const double *)place + start;
        for (int64_t c = 0; c < count; c++) out[c] = (T)in[c];
    } else {
#if WIDE
        float part[CHUNK];
#else
        float *part = out;
#endif
        const uint16_t *in = (const uint16_t *)place + start;
        if (kind == FLOAT16) widen_float16(part, in, count);
        else widen_bfloat16(part, in, count);
#if WIDE
        for (int64_t c = 0; c < count; c++) out[c] = part[c];
#endif
    }
}

/* The same less the centre. */
static void NAME(centred)(T *restrict out, const void *place, int kind, int64_t start, int64_t count,
                          const T *restrict centre) {
    if (!centre) {
        NAME(widen)(out, place, kind, start, count);
    } else if (kind == (WIDE ? FLOAT64 : FLOAT32)) {
        const T *restrict in = (const T *)place + start;
        for (int64_t c = 0; c < count; c++) out[c] = in[c] - centre[c];
    } else {
        NAME(widen)(out, place, kind, start, count);
        for (int64_t c = 0; c < count; c++) out[c] -= centre[c];
    }
}

/* One row as T: where it lies, if it can be read there, else a copy in `room`. */
INLINE const T *NAME(seen)(const struct job *job, int64_t leaf, int64_t row, int64_t start, int64_t count,
                           const T *centre, T *room) {
    int64_t k = leaf * job->rows + row;
    const void *place = (const void *)(intptr_t)job->places[k];
    if (!centre && job->kinds[k] == (WIDE ? FLOAT64 : FLOAT32)) return (const T *)place + start;
    NAME(centred)(room, place, job->kinds[k], start, count, centre);
    return room;
}

INLINE const T *NAME(centre_of)(const struct job *job, int64_t leaf, int64_t start, int64_t count, T *room) {
    if (!job->centres) return NULL;
    NAME(widen)(room, (const void *)(intptr_t)job->centres[leaf], job->centre_kinds[leaf], start, count);
    return room;
}

/* A sum of values in float64, half as many lanes wide; and what its lanes add up to. */
INLINE D NAME(wide)(V sum) {
#if WIDE
    return sum;
#else
    union { V whole; HALF part[2]; } split = {sum};
    return __builtin_convertvector(split.part[0], D) + __builtin_convertvector(split.part[1], D);
#endif
}

INLINE double NAME(lanes)(D sum) {
    double found = 0;
    UNROLL for (int l = 0; l < BYTES / 8; l++) found += sum[l];
    return found;
}

/* Row i of a triangle, whose rows stand one after the other. */
#define LINE_OF(G, i) ((G) + (i) * ((i) + 1) / 2)

/* G[i][j] += <row_i, row_j> for four rows i and `across` rows j. Every product of two rows is added up in the same order,
   whatever the place: equal rows have equal products. */
INLINE void NAME(rectangle)(const T *rows, int64_t i, int64_t j, int64_t count, D *G, struct row ahead,
                            const int across) {
    const T *a = rows + i * STRIDE, *b = rows + j * STRIDE;
    V sums[4][ACROSS];
    UNROLL for (int p = 0; p < 4; p++) UNROLL for (int q = 0; q < across; q++) sums[p][q] = (V){0};
    for (int64_t c = 0; c < count; c += LANES) {
        V y[ACROSS];
        __builtin_prefetch(ahead.at + c * ahead.size, 0, 2);
        UNROLL for (int q = 0; q < across; q++) {
            y[q] = *(const V *)(b + q * STRIDE + c);
            HOLD(y[q]);
        }
        UNROLL for (int p = 0; p < 4; p++) {
            V x = *(const V *)(a + p * STRIDE + c);
            HOLD(x);
            UNROLL for (int q = 0; q < across; q++) sums[p][q] += x * y[q];
        }
    }
    UNROLL for (int p = 0; p < 4; p++)
        UNROLL for (int q = 0; q < across; q++) LINE_OF(G, i + p)[j + q] += NAME(wide)(sums[p][q]);
}

/* The same for four rows with themselves. */
INLINE void NAME(corner)(const T *rows, int64_t i, int64_t count, D *G, struct row ahead) {
    const T *a = rows + i * STRIDE;
    V sums[4][4];
    UNROLL for (int p = 0; p < 4; p++) UNROLL for (int q = 0; q <= p; q++) sums[p][q] = (V){0};
    for (int64_t c = 0; c < count; c += LANES) {
        V x[4];
        __builtin_prefetch(ahead.at + c * ahead.size, 0, 2);
        UNROLL for (int p = 0; p < 4; p++) {
            x[p] = *(const V *)(a + p * STRIDE + c);
            HOLD(x[p]);
        }
        UNROLL for (int p = 0; p < 4; p++) UNROLL for (int q = 0; q <= p; q++) sums[p][q] += x[p] * x[q];
    }
    UNROLL for (int p = 0; p < 4; p++)
        UNROLL for (int q = 0; q <= p; q++) LINE_OF(G, i + p)[i + q] += NAME(wide)(sums[p][q]);
}

/* The lower triangle of `rows rows^T`, which is added to G; the number of rows is a multiple of 4. */
static void NAME(triangle)(const T *rows, int64_t n, int64_t count, D *G, struct ahead *ahead) {
    for (int64_t i = 0; i < n; i += 4) {
        NAME(corner)(rows, i, count, G, next_row(ahead, rows));
        for (int64_t j = 0; j < i;) {
            int64_t left = i - j, across = left == 4 ? 2 : left < ACROSS ? left : ACROSS;
            struct row next = next_row(ahead, rows);
            switch (across) {
            case 1: NAME(rectangle)(rows, i, j, count, G, next, 1); break;
            case 2: NAME(rectangle)(rows, i, j, count, G, next, 2); break;
#if ACROSS == 6
            case 3: NAME(rectangle)(rows, i, j, count, G, next, 3); break;
            case 5: NAME(rectangle)(rows, i, j, count, G, next, 5); break;
#endif
            default: NAME(rectangle)(rows, i, j, count, G, next, ACROSS);
            }
            j += across;
        }
    }
}

INLINE int64_t NAME(room_for_gram)(const struct job *job) {
    int64_t padded = (job->rows + 3) / 4 * 4;
    return padded * (padded + 1) / 2 * BYTES + (padded * STRIDE + CHUNK) * (int64_t)sizeof(T);
}

static void NAME(gram)(const struct job *job, int64_t item, void *scratch) {
    const int64_t n = job->rows, padded = (n + 3) / 4 * 4, *cut = job->cut + 4 * item;
    D *G = scratch;
    memset(G, 0, padded * (padded + 1) / 2 * BYTES);
    T *rows = (T *)(G + padded * (padded + 1) / 2), *middle = rows + padded * STRIDE;
    for (int64_t k = n; k < padded; k++) memset(rows + k * STRIDE, 0, CHUNK * sizeof(T));
    const int64_t chunk = chunk_of(n, sizeof(T));
    int64_t filled = 0;
    for (int64_t s = cut[0]; s < cut[1]; s++) {
        const int64_t *segment = job->segments + 3 * s, leaf = segment[0];
        for (int64_t start = segment[1]; start < segment[2];) {
            int64_t count = segment[2] - start < chunk - filled ? segment[2] - start : chunk - filled;
            const T *centre = NAME(centre_of)(job, leaf, start, count, middle);
            for (int64_t k = 0; k < n; k++)
                NAME(centred)(rows + k * STRIDE + filled, (const void *)(intptr_t)job->places[leaf * n + k],
                              job->kinds[leaf * n + k], start, count, centre);
            filled += count;
            start += count;
            int last = start == segment[2] && s + 1 == cut[1];
            if (filled < chunk && !last) continue;
            int64_t used = (filled + LANES - 1) / LANES * LANES;
            for (int64_t k = 0; k < n; k++)
                for (int64_t c = filled; c < used; c++) rows[k * STRIDE + c] = 0;
            int64_t next = segment[2] - start < chunk ? segment[2] - start : chunk;
            struct ahead ahead = {job, leaf, start, next, 0, next ? n : 0, 0};
            for (int64_t c = 0; c < used; c += RUN)
                NAME(triangle)(rows + c, padded, used - c < RUN ? used - c : RUN, G, &ahead);
            filled = 0;
        }
    }
    double *found = job->found + item * job->each;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) found[i * n + j] = NAME(lanes)(LINE_OF(G, i)[j]);
}

/* A mean: out = sum of weights[k] row_k, in chains of rows. Rows of weight 0 are not read. */
static void NAME(weighted)(const struct job *job, const double *weights, int64_t leaf, int64_t start, int64_t count,
                           const T *centre, T *restrict out, T *room) {
    const T *x[CHAIN];
    T w[CHAIN];
    int64_t k = 0, n = job->rows;
    int first = 1;
    while (k < n || first) {
        int held = 0;
        for (; k < n && held < CHAIN; k++) {
            if (weights[k] == 0) continue;
            w[held] = (T)weights[k];
            x[held] = NAME(seen)(job, leaf, k, start, count, centre, room + held * STRIDE);
            held++;
        }
        if (!held && !first) break;
        if (held == CHAIN) {
            int64_t c = 0;
            for (; c + LANES <= count; c += LANES) {
                V sum = *(const LOOSE *)(x[0] + c) * w[0];
                UNROLL for (int j = 1; j < CHAIN; j++) sum += *(const LOOSE *)(x[j] + c) * w[j];
                if (!first) sum += *(LOOSE *)(out + c);
                *(LOOSE *)(out + c) = sum;
            }
            for (; c < count; c++) {
                T sum = x[0][c] * w[0];
                UNROLL for (int j = 1; j < CHAIN; j++) sum += x[j][c] * w[j];
                out[c] = first ? sum : out[c] + sum;
            }
        } else {
            if (first) memset(out, 0, count * sizeof(T));
            for (int j = 0; j < held; j++)
                for (int64_t c = 0; c < count; c++) out[c] += x[j][c] * w[j];
        }
        first = 0;
    }
}

/* Whether all values are finite and within the limit. */
static int NAME(sane)(const T *values, int64_t count, T limit) {
    int wrong = 0;
    for (int64_t c = 0; c < count; c++) wrong |= !((values[c] < 0 ? -values[c] : values[c]) <= limit);
    return !wrong;
}

static void NAME(put)(const struct job *job, int64_t leaf, int64_t start, int64_t count, const T *values) {
    void *place = (void *)(intptr_t)job->outs[leaf];
    if (job->out_kinds[leaf] == (WIDE ? FLOAT64 : FLOAT32)) memcpy((T *)place + start, values, count * sizeof(T));
#if !WIDE
    else if (job->out_kinds[leaf] == FLOAT16) narrow_float16((uint16_t *)place + start, values, count);
    else narrow_bfloat16((uint16_t *)place + start, values, count);
#endif
}

INLINE int64_t NAME(room_for_mix)(const struct job *job) {
    (void)job;
    return (CHAIN + 1) * STRIDE * (int64_t)sizeof(T);
}

static void NAME(mix)(const struct job *job, int64_t item, void *scratch) {
    const int64_t *cut = job->cut + 4 * item;
    const double *weights = job->weights + cut[2] * job->rows;
    T *out = scratch, *room = out + STRIDE;
    int fine = 1;
    for (int64_t s = cut[0]; s < cut[1]; s++) {
        const int64_t *segment = job->segments + 3 * s;
        for (int64_t start = segment[1]; start < segment[2]; start += CHUNK) {
            int64_t count = segment[2] - start < CHUNK ? segment[2] - start : CHUNK;
            NAME(weighted)(job, weights, segment[0], start, count, NULL, out, room);
            fine &= NAME(sane)(out, count, (T)job->limits[WIDE]);
            NAME(put)(job, segment[0], start, count, out);
        }
    }
    job->fine[item] = (int8_t)fine;
}

static double NAME(product)(const T *a, const T *b, int64_t count) {
    V sums[4] = {{0}, {0}, {0}, {0}};
    int64_t c = 0;
    for (; c + 4 * LANES <= count; c += 4 * LANES)
        UNROLL for (int j = 0; j < 4; j++)
            sums[j] += *(const LOOSE *)(a + c + j * LANES) * *(const LOOSE *)(b + c + j * LANES);
    T rest = 0;
    for (; c < count; c++) rest += a[c] * b[c];
    return NAME(lanes)(NAME(wide)(sums[0] + sums[1]) + NAME(wide)(sums[2] + sums[3])) + rest;
}

INLINE int64_t NAME(room_for_residuals)(const struct job *job) {
    return (job->mixtures + CHAIN + 2) * STRIDE * (int64_t)sizeof(T);
}

/* Squared norms of the rows, products of the rows with each mixture, squared norms of the mixtures. */
static void NAME(residuals)(const struct job *job, int64_t item, void *scratch) {
    const int64_t n = job->rows, m = job->mixtures, *cut = job->cut + 4 * item;
    T *means = scratch, *middle = means + m * STRIDE, *room = middle + STRIDE;
    double *norms = job->found + item * job->each, *products = norms + n, *own = products + m * n;
    memset(norms, 0, job->each * sizeof(double));
    for (int64_t s = cut[0]; s < cut[1]; s++) {
        const int64_t *segment = job->segments + 3 * s, leaf = segment[0];
        for (int64_t start = segment[1]; start < segment[2]; start += RUN) {
            int64_t count = segment[2] - start < RUN ? segment[2] - start : RUN;
            const T *centre = NAME(centre_of)(job, leaf, start, count, middle);
            for (int64_t i = 0; i < m; i++) {
                T *mean = means + i * STRIDE;
                NAME(weighted)(job, job->weights + i * n, leaf, start, count, centre, mean, room);
                own[i] += NAME(product)(mean, mean, count);
            }
            for (int64_t k = 0; k < n; k++) {
                const T *row = NAME(seen)(job, leaf, k, start, count, centre, room);
                if (job->with_norms) norms[k] += NAME(product)(row, row, count);
                for (int64_t i = 0; i < m; i++) products[i * n + k] += NAME(product)(row, means + i * STRIDE, count);
            }
        }
    }
}

/* a where the mask is set, else b. */
INLINE V NAME(chosen)(MASK mask, V a, V b) { return (V)(((MASK)a & mask) | ((MASK)b & ~mask)); }

/* Of LEVEL columns of m sorted rows, the mean of the `nearest` values that are nearest to the median: a window of the
   sorted ones, which moves up as long as the value that it gains is nearer than the one that it loses. In the same steps
   as rules/_lib/windows.py, so the bits are the same. */
static void NAME(mean_near_median)(const T *const *rows, int64_t m, int64_t nearest, T *sum) {
    for (int c = 0; c < LEVEL; c += LANES) {
#define ROW(i) (*(const LOOSE *)(rows[i] + c))
        const V lower = ROW((m - 1) / 2), upper = ROW(m / 2);
        const V median = m % 2 ? lower : (T)0.5 * lower + (T)0.5 * upper;
        V start = {0}, total = {0};
        for (int64_t i = 0; i < m - nearest; i++) {
            const MASK nearer = ROW(i + nearest) - median < median - ROW(i);
            start = NAME(chosen)(nearer, (V){0} + (T)(i + 1), start);
        }
        for (int64_t i = 0; i < m; i++) {
            const MASK kept = (start <= (T)i) & (start > (T)(i - nearest));
            total += (V)((MASK)ROW(i) & kept);
        }
        *(LOOSE *)(sum + c) = total / (T)nearest;
#undef ROW
    }
}

INLINE int64_t NAME(room_for_rank)(const struct job *job) {
    return (job->rows + job->mixtures + 1) * STRIDE * (int64_t)sizeof(T) + job->slots * (LEVEL * (int64_t)sizeof(T) + LINE);
}

/* Each column through a network; the mean of the wanted rows, or of the values nearest to their median. */
static void NAME(rank)(const struct job *job, int64_t item, void *scratch) {
    const int64_t n = job->rows, m = job->mixtures ? job->mixtures : n, *cut = job->cut + 4 * item;
    T *rows = scratch, *mixed = rows + n * STRIDE, *out = mixed + job->mixtures * STRIDE, *level = out + STRIDE;
    const T *first = job->mixtures ? mixed : rows;
    const T part = (T)1 / (T)job->kept, *ordered[MOST_RANKED];
    const int64_t chunk = chunk_of(n + job->mixtures, sizeof(T));
    int fine = 1;
    for (int64_t s = cut[0]; s < cut[1]; s++) {
        const int64_t *segment = job->segments + 3 * s, leaf = segment[0];
        for (int64_t start = segment[1]; start < segment[2]; start += chunk) {
            int64_t count = segment[2] - start < chunk ? segment[2] - start : chunk;
            for (int64_t k = 0; k < n; k++) {
                T *row = rows + k * STRIDE;
                NAME(widen)(row, (const void *)(intptr_t)job->places[leaf * n + k], job->kinds[leaf * n + k], start, count);
                fine &= NAME(sane)(row, count, (T)job->limits[WIDE]);
                for (int64_t c = count; c < (count + LEVEL - 1) / LEVEL * LEVEL; c++) row[c] = 0;
            }
            for (int64_t i = 0; i < job->mixtures; i++) {
                T *restrict mixture = mixed + i * STRIDE;
                memset(mixture, 0, chunk * sizeof(T));
                for (int64_t k = 0; k < n; k++) {
                    const T weight = (T)job->weights[i * n + k], *restrict row = rows + k * STRIDE;
                    if (weight != 0)
                        for (int64_t c = 0; c < count; c++) mixture[c] += weight * row[c];
                }
            }
            for (int64_t at = 0; at < count; at += LEVEL) {
#define SLOT(place) ((place) < m ? (T *)first + (place) * STRIDE + at : level + ((place) - m) * LEVEL)
                int64_t row = 0, line = 0; /* what comes next is asked for, a line with each step */
                const int more = start + chunk < segment[2];
                for (int64_t t = 0; t < job->count; t++) {
                    const int32_t *step = job->steps + 4 * t;
                    const T *a = SLOT(step[1]), *b = SLOT(step[2]);
                    T *to = SLOT(step[3]);
                    if (more) {
                        const int64_t k = leaf * n + row, size = SIZE_OF(job->kinds[k]);
                        __builtin_prefetch((const char *)(intptr_t)job->places[k] + (start + chunk + at) * size + line, 0, 2);
                        if (++row == n) row = 0, line += LINE;
                    }
                    if (step[0]) { FREE for (int c = 0; c < LEVEL; c++) to[c] = a[c] < b[c] ? a[c] : b[c]; }
                    else { FREE for (int c = 0; c < LEVEL; c++) to[c] = a[c] > b[c] ? a[c] : b[c]; }
                }
                T *restrict sum = out + at;
                if (job->nearest) {
                    for (int64_t i = 0; i < job->kept; i++) ordered[i] = SLOT(job->wanted[i]);
                    NAME(mean_near_median)(ordered, job->kept, job->nearest, sum);
                    continue;
                }
                memcpy(sum, SLOT(job->wanted[0]), LEVEL * sizeof(T));
                for (int64_t i = 1; i < job->kept; i++) {
                    const T *row = SLOT(job->wanted[i]);
                    for (int c = 0; c < LEVEL; c++) sum[c] += row[c];
                }
                if (job->kept > 1) for (int c = 0; c < LEVEL; c++) sum[c] *= part;
#undef SLOT
            }
            NAME(put)(job, leaf, start, count, out);
        }
    }
    job->fine[item] = (int8_t)fine;
}

#undef LANES
#undef V
#undef HALF
#undef D
#undef LINE_OF
#undef LOOSE
#undef MASK
#undef STRIDE
