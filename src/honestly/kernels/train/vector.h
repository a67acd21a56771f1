/* Vectors whose lanes are the images of a block. Plain C with the vector extension of GCC and Clang: no intrinsics, so
   that the same text becomes AVX-512, AVX2, SSE or NEON. */
#ifndef HONESTLY_VECTOR_H
#define HONESTLY_VECTOR_H
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

/* What the registers hold at once: 32 of them with AVX-512 and on ARM, else 16. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define POOL_TILE 6   /* output channels of a convolution, times the four corners of a pooling block */
#define TAP_TILE 4    /* output channels, times up to 5 taps, of a weight gradient */
#define INWARD_TILE 6 /* input channels, times 4 pixels, of an input gradient */
#define DENSE_TILE 12 /* outputs of a dense layer */
#define OUTER_TILE 6  /* rows of a dense weight gradient, times 4 vectors of columns */
#else
#define POOL_TILE 3
#define TAP_TILE 2
#define INWARD_TILE 3
#define DENSE_TILE 8
#define OUTER_TILE 3
#endif
#define TAPS 5
#define PIXELS 4

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* at any address */

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* a where the mask is set, else b */
INLINE vec either(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec where(ivec mask, vec a) { return (vec)(mask & (ivec)a); }

INLINE float total(vec v) {
    float part[LANES];
    *(loose *)part = v;
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) part[l] += part[l + half];
    return part[0];
}

/* Run a piece of code whose size must be known to the compiler for a size that is known only now: 1 .. 6. */
#define SIZED(n, code)                                                                                       \
    switch (n) {                                                                                             \
    case 1: { enum { N = 1 }; code; break; }                                                                 \
    case 2: { enum { N = 2 }; code; break; }                                                                 \
    case 3: { enum { N = 3 }; code; break; }                                                                 \
    case 4: { enum { N = 4 }; code; break; }                                                                 \
    case 5: { enum { N = 5 }; code; break; }                                                                 \
    default: { enum { N = 6 }; code; break; }                                                                \
    }
#endif
