/* Search for networks of few minima and maxima that find a median: the table in src/honestly/engine/passes/medians.py.

       cc -O3 -march=native benchmarks/median_networks.c -lm -o search
       ./search 20 3000000 1        # rows, steps, seed: the same line on every machine

   A sorting network is changed at random, step by step, and a change stays if the network still finds the median (of an
   even number of rows: the two middle ranks, in any order). Changes that need more operations stay now and then, ever
   less often. Each comparator (a, b) comes with its mirror image, which halves the search. A network is right for all
   values if it is for all zeros and ones; operations keep the order of patterns, so those with as many ones as just
   give 0, and with one more, suffice. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 24
#define MOST_PAIRS 512
#define LANES 8 /* words of 64 patterns that are tested at once */

typedef uint64_t Patterns __attribute__((vector_size(8 * LANES)));
typedef struct { uint8_t low, high; } Pair;
typedef struct { Pair pairs[MOST_PAIRS]; int count; } Network;

static int rows, lower, upper; /* the middle ranks; the same one if the number of rows is odd */
static int groups, *order;     /* groups of patterns, those that refuted a network lately first */
static Patterns *patterns;     /* (groups, rows) */
static int *more;              /* whether the patterns of a group have one more one */
static uint64_t state[2];

static uint64_t draw(void) { /* xorshift128+ */
    uint64_t a = state[0], b = state[1];
    state[0] = b;
    a ^= a << 23;
    state[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
    return state[1] + b;
}

static int below(int bound) { return (int)((draw() >> 11) % (uint64_t)bound); }

static Pair pair_of(int a, int b) { return a < b ? (Pair){a, b} : (Pair){b, a}; }

static Pair mirror(Pair p) { return (Pair){rows - 1 - p.high, rows - 1 - p.low}; }

static int same(Pair p, Pair q) { return p.low == q.low && p.high == q.high; }

/* A pair may have the same rows as its mirror image or none in common: else their order would matter. */
static int allowed(Pair p) {
    Pair q = mirror(p);
    if (p.low == p.high) return 0;
    return same(p, q) || (p.low != q.low && p.low != q.high && p.high != q.low && p.high != q.high);
}

static void make_patterns(void) {
    groups = 0;
    for (int fill = 0; fill < 2; fill++) { /* count, then fill */
        int group = 0;
        for (int extra = 0; extra < 2; extra++) {
            int lane = 0;
            for (uint64_t v = 0; v < 1ull << rows; v++) {
                if (__builtin_popcountll(v) != lower + extra) continue;
                for (int r = 0; fill && r < rows; r++)
                    if (v >> r & 1) patterns[group * rows + r][lane / 64] |= 1ull << lane % 64;
                if (fill) more[group] = extra;
                if (++lane == 64 * LANES) group++, lane = 0;
            }
            if (lane) { /* the rest of the last group: zeros, which are never refuted below, or ones */
                for (; fill && extra && lane < 64 * LANES; lane++)
                    for (int r = rows / 2; r < rows; r++) patterns[group * rows + r][lane / 64] |= 1ull << lane % 64;
                group++;
            }
        }
        if (fill) break;
        groups = group;
        patterns = aligned_alloc(64, (size_t)groups * rows * sizeof(Patterns));
        memset(patterns, 0, (size_t)groups * rows * sizeof(Patterns));
        more = calloc(groups, sizeof(int));
        order = calloc(groups, sizeof(int));
    }
    for (int i = 0; i < groups; i++) order[i] = i;
    for (int i = groups - 1; i > 0; i--) {
        int j = below(i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
}

static int is_right(const Network *net) {
    Patterns at[MOST_ROWS];
    for (int i = 0; i < groups; i++) {
        int group = order[i];
        memcpy(at, patterns + (size_t)group * rows, rows * sizeof(Patterns));
        for (int c = 0; c < net->count; c++) {
            Patterns a = at[net->pairs[c].low], b = at[net->pairs[c].high];
            at[net->pairs[c].low] = a & b;
            at[net->pairs[c].high] = a | b;
        }
        Patterns wrong = at[lower] | at[upper];
        if (more[group]) wrong = lower == upper ? ~at[lower] : ~(at[lower] ^ at[upper]);
        uint64_t any = 0;
        for (int lane = 0; lane < LANES; lane++) any |= wrong[lane];
        if (any) {
            memmove(order + i / 2 + 1, order + i / 2, (i - i / 2) * sizeof(int));
            order[i / 2] = group;
            return 0;
        }
    }
    return 1;
}

/* The pairs with their mirror images, without those that do not reach a middle rank; the number of operations. */
static int unfold(const Network *half, Network *net) {
    Pair all[2 * MOST_PAIRS];
    int count = 0, operations = 0, first;
    for (int i = 0; i < half->count; i++) {
        all[count++] = half->pairs[i];
        if (!same(half->pairs[i], mirror(half->pairs[i]))) all[count++] = mirror(half->pairs[i]);
    }
    uint32_t wanted = 1u << lower | 1u << upper;
    first = count;
    for (int i = count - 1; i >= 0; i--) {
        uint32_t both = 1u << all[i].low | 1u << all[i].high;
        if (!(wanted & both)) continue;
        operations += __builtin_popcount(wanted & both);
        wanted |= both;
        all[--first] = all[i];
    }
    net->count = count - first;
    memcpy(net->pairs, all + first, net->count * sizeof(Pair));
    return operations;
}

static void take_out(Network *half, int i) {
    memmove(half->pairs + i, half->pairs + i + 1, (--half->count - i) * sizeof(Pair));
}

static void put_in(Network *half, int i, Pair p) {
    memmove(half->pairs + i + 1, half->pairs + i, (half->count++ - i) * sizeof(Pair));
    half->pairs[i] = p;
}

static void change(Network *half) {
    int kind = below(10), i = below(half->count), j = below(half->count);
    Pair p = half->pairs[i];
    if (kind < 2 && half->count > 1) {
        take_out(half, i);
    } else if (kind < 3 && half->count < MOST_PAIRS / 2 - 1) {
        do p = pair_of(below(rows), below(rows));
        while (!allowed(p));
        put_in(half, i, p);
    } else if (kind < 6) { /* one end of a comparator */
        do p = pair_of(draw() >> 63 ? half->pairs[i].low : half->pairs[i].high, below(rows));
        while (!allowed(p));
        half->pairs[i] = p;
    } else if (kind < 8) {
        half->pairs[i] = half->pairs[j];
        half->pairs[j] = p;
    } else {
        take_out(half, i);
        put_in(half, j, p);
    }
}

/* Sort by exchanges of neighbours: each round is its own mirror image. */
static void start(Network *half) {
    half->count = 0;
    for (int round = 0; round < rows; round++)
        for (int i = round % 2; i + 1 < rows; i += 2)
            if (rows % 2 || i <= rows - 2 - i) half->pairs[half->count++] = (Pair){i, i + 1};
    if (rows % 2) { /* the mirror image of a round is the next one */
        int count = 0;
        for (int i = 0, round = 0; round < rows; round++)
            for (int k = round % 2; k + 1 < rows; k += 2, i++)
                if (round % 2 == 0) half->pairs[count++] = half->pairs[i];
        half->count = count;
    }
}

int main(int count, char **words) {
    if (count != 4 || (rows = atoi(words[1])) < 3 || rows > MOST_ROWS) {
        fprintf(stderr, "usage: search ROWS (3 to %d) STEPS SEED\n", MOST_ROWS);
        return 2;
    }
    long steps = atol(words[2]);
    lower = (rows - 1) / 2, upper = rows / 2;
    state[0] = 88172645463325252ull + strtoull(words[3], NULL, 10), state[1] = 362436069;
    for (int i = 0; i < 20; i++) draw();
    make_patterns();
    Network half, net, best;
    start(&half);
    int operations = unfold(&half, &net), fewest = operations;
    best = net;
    if (!is_right(&net)) return 1;
    for (long step = 0; step < steps; step++) {
        double temperature = 0.05 + 1.2 * (1.0 - (double)(step % (steps / 3 + 1)) / (steps / 3 + 1));
        Network other = half;
        for (int changes = 1 + !below(3) + !below(6); changes; changes--) change(&other);
        int needed = unfold(&other, &net);
        if (needed > operations && (double)(draw() >> 11) * 0x1p-53 > exp((operations - needed) / temperature)) continue;
        if (!is_right(&net)) continue;
        half = other, operations = needed;
        for (int i = half.count - 1; i >= 0 && 2 * half.count > net.count + 20; i--) { /* those that do nothing */
            Network fewer = half, unfolded;
            take_out(&fewer, i);
            if (unfold(&fewer, &unfolded) == operations && unfolded.count == net.count &&
                !memcmp(unfolded.pairs, net.pairs, net.count * sizeof(Pair)))
                half = fewer;
        }
        if (operations < fewest) fewest = operations, best = net;
    }
    printf("    %d: \"", rows);
    for (int c = 0; c < best.count; c++) printf("%c%c", 'a' + best.pairs[c].low, 'a' + best.pairs[c].high);
    printf("\",  # %d\n", fewest);
    return 0;
}
