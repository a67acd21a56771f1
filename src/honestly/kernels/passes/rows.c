/* Passes over the columns of n rows that lie anywhere in memory, in float16, bfloat16, float32 or float64.

   Work is cut into items: some columns of one layer. Threads of the caller take the next item from a counter that they
   share, and write what they found to that item's place, so that the caller can add it up in an order that no scheduler
   changes. Nothing is locked, kept or started here. Plain C with the vector extension of GCC and Clang: compiled for
   this processor, the same text becomes AVX-512, AVX2, SSE or NEON. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define ACROSS 6 /* rows beside four others whose products the 32 registers hold */
#else
#define ACROSS 3 /* with 16 of them */
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define FREE _Pragma("clang loop vectorize(assume_safety)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define FREE _Pragma("GCC ivdep")
#endif

/* Kept in a register: compilers like to load a value again for each of its uses, and loads are what there is least of. */
#if defined(__x86_64__)
#define HOLD(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define HOLD(vector) __asm__("" : "+w"(vector))
#else
#define HOLD(vector) (void)(vector)
#endif

enum { FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };
#define SIZE_OF(kind) ((kind) == FLOAT64 ? 8 : (kind) == FLOAT32 ? 4 : 2)
/* Columns worked on at once: four rows of them stay in the first-level cache, and a lane adds up at most 128 products
   before they go on in float64. */
enum { RUN = BYTES < 32 ? 512 : 1024 };
/* Columns of a row that are read at once, at most. Tensors that were allocated one by one begin at the same place of a
   page: runs of a page from each of many such rows compete for the same lines of a cache, longer ones much less. */
enum { CHUNK = 4 * RUN };
enum { CHAIN = 5 };    /* rows that are added up in registers; with the result they fit in a set of eight cache lines */
enum { LEVEL = 64 };   /* columns of a network's rows, all of which stay in the first-level cache */
enum { LINE = 64 };
enum { MOST_RANKED = 256 }; /* rows of which those nearest to the median are averaged, at most */

struct job {
    int64_t rows, items, next;
    const int64_t *places;       /* [leaf][row]: address of the tensor's first value */
    const int8_t *kinds;         /* [leaf][row] */
    const int64_t *centres;      /* [leaf]: address of the row to subtract, or NULL */
    const int8_t *centre_kinds;
    const int64_t *segments;     /* leaf, start, stop */
    const int64_t *cut;          /* of each item: first segment, last segment + 1, layer, whether it is of float64 */
    double *found;               /* what each item gives, `each` numbers */
    int64_t each;
    const double *weights;       /* mix: [layer][row]; residuals and rank: [mixture][row], or NULL */
    int64_t mixtures;            /* residuals and rank: how many; 0 for the rows as they are */
    int64_t with_norms;
    const int64_t *outs;         /* [leaf]: address of the result's first value */
    const int8_t *out_kinds;
    const int32_t *steps;        /* of a network: whether the smaller is wanted, a, b, where it goes */
    int64_t count, slots;        /* how many steps; how many rows they use, the m rows first */
    const int32_t *wanted;       /* the rows to be averaged in the end */
    int64_t kept;
    int64_t nearest;             /* average so many of them, those nearest to their median; 0: all */
    double limits[2];            /* of the absolute values of float32 and float64 */
    int8_t *fine;                /* [item]: whether all values are finite and within the limit */
};

/* Columns to copy at once of so many rows, `size` bytes each: the copies take at most half of the second-level cache. */
INLINE int64_t chunk_of(int64_t rows, int64_t size) {
    long cache = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    if (cache <= 0) cache = 1 << 19;
    int64_t chunk = RUN;
    while (chunk < CHUNK && 4 * chunk * rows * size <= cache) chunk *= 2;
    return chunk;
}

INLINE float from_bits(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
INLINE uint32_t to_bits(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }

static void widen_bfloat16(float *restrict out, const uint16_t *restrict in, int64_t count) {
    uint32_t *restrict bits = (uint32_t *)out; /* the file is compiled with -fno-strict-aliasing */
    for (int64_t c = 0; c < count; c++) bits[c] = (uint32_t)in[c] << 16;
}

static void widen_float16(float *restrict out, const uint16_t *restrict in, int64_t count) {
    int64_t c = 0;
#if defined(__F16C__)
    for (; c + 8 <= count; c += 8)
        _mm256_storeu_ps(out + c, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + c))));
#elif defined(__aarch64__)
    const __fp16 *restrict half = (const __fp16 *)in;
    for (; c < count; c++) out[c] = half[c];
#endif
    for (; c < count; c++) {
        uint32_t rest = (uint32_t)(in[c] & 0x7fff) << 13, sign = (uint32_t)(in[c] & 0x8000) << 16;
        uint32_t finite = to_bits(from_bits(rest) * 0x1p112f);
        uint32_t special = rest | 0x7f800000;
        out[c] = from_bits(sign | ((in[c] & 0x7c00) == 0x7c00 ? special : finite));
    }
}

static void narrow_bfloat16(uint16_t *restrict out, const float *restrict in, int64_t count) {
    const uint32_t *restrict bits = (const uint32_t *)in;
    for (int64_t c = 0; c < count; c++) out[c] = (uint16_t)((bits[c] + 0x7fff + ((bits[c] >> 16) & 1)) >> 16);
}

static void narrow_float16(uint16_t *restrict out, const float *restrict in, int64_t count) {
    int64_t c = 0;
#if defined(__F16C__)
    for (; c + 8 <= count; c += 8)
        _mm_storeu_si128((__m128i *)(out + c), _mm256_cvtps_ph(_mm256_loadu_ps(in + c), 0));
#elif defined(__aarch64__)
    __fp16 *restrict half = (__fp16 *)out;
    for (; c < count; c++) half[c] = (__fp16)in[c];
#endif
    for (; c < count; c++) {
        uint32_t bits = to_bits(in[c]), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff, half;
        if (rest >= 0x7f800001) half = 0x7e00;
        else if (rest >= 0x47800000) half = 0x7c00; /* 65536 and more */
        else if (rest < 0x38800000) half = to_bits(from_bits(rest) + 0.5f) - 0x3f000000; /* rounds to a multiple of 2^-24 */
        else half = (rest + 0xc8000fff + (rest >> 13 & 1)) >> 13;
        out[c] = (uint16_t)(sign | half);
    }
}

/* The columns that come next, row by row: each tile of products asks for a run of one row while it is worked on. */
struct ahead {
    const struct job *job;
    int64_t leaf, start, columns, row, rows, at; /* rows: 0 if nothing comes next */
};

struct row { const char *at; int64_t size; };

INLINE struct row next_row(struct ahead *ahead, const void *otherwise) {
    if (ahead->row >= ahead->rows) return (struct row){otherwise, 0};
    int64_t k = ahead->leaf * ahead->job->rows + ahead->row, size = SIZE_OF(ahead->job->kinds[k]);
    struct row next = {(const char *)(intptr_t)ahead->job->places[k] + (ahead->start + ahead->at) * size, size};
    ahead->at += RUN;
    if (ahead->at >= ahead->columns) ahead->at = 0, ahead->row++;
    return next;
}

#define PASTED(a, b) a##_##b
#define NAMED(a, b) PASTED(a, b)

#define T float
#define NAME(name) NAMED(name, float)
#define WIDE 0
#include "passes.h"
#undef T
#undef NAME
#undef WIDE

#define T double
#define NAME(name) NAMED(name, double)
#define WIDE 1
#include "passes.h"

/* Each of these takes at most `most` items and returns how many it took, or -1 if there is no memory. */
#define ENTRY(name)                                                                                          \
    int64_t honestly_##name(struct job *job, int64_t most) {                                                 \
        int64_t size = 0, taken = 0;                                                                         \
        for (int64_t wide = 0; wide < 2; wide++) {                                                           \
            int64_t needed = wide ? room_for_##name##_double(job) : room_for_##name##_float(job);            \
            if (needed > size) size = needed;                                                                \
        }                                                                                                    \
        void *scratch = NULL;                                                                                \
        if (posix_memalign(&scratch, 4096, size + 4096)) return -1;                                          \
        while (taken < most) {                                                                               \
            int64_t item = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);                              \
            if (item >= job->items) break;                                                                   \
            if (job->cut[4 * item + 3]) name##_double(job, item, scratch);                                   \
            else name##_float(job, item, scratch);                                                           \
            taken++;                                                                                         \
        }                                                                                                    \
        free(scratch);                                                                                       \
        return taken;                                                                                        \
    }

ENTRY(gram)
ENTRY(mix)
ENTRY(residuals)
ENTRY(rank)

int64_t honestly_vector_bytes(void) { return BYTES; }
