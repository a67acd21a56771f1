/* Dense layers with bias and ReLU of a block of images, forward and backward. */
#ifndef HONESTLY_DENSE_H
#define HONESTLY_DENSE_H
#include "layers.h"

INLINE void dense_tile(const Layer *a, const float *w, const vec *x, const float *bias, vec *y, const int N) {
    vec sum[DENSE_TILE];
    UNROLL for (int k = 0; k < N; k++) sum[k] = (vec){0};
    for (int64_t f = 0; f < a->C; f++) UNROLL for (int k = 0; k < N; k++) sum[k] += x[f] * w[k * a->C + f];
    UNROLL for (int k = 0; k < N; k++) {
        vec v = bias ? sum[k] + bias[k] : sum[k];
        if (a->relu) v = where(~(v <= 0.0f), v);
        y[k] = v;
    }
}

static void dense_forward(const Layer *a, const float *theta, const vec *x, vec *y) {
    const float *w = theta + a->weight, *bias = a->bias < 0 ? 0 : theta + a->bias;
    int64_t m = 0;
    for (; m + DENSE_TILE <= a->M; m += DENSE_TILE)
        dense_tile(a, w + m * a->C, x, bias ? bias + m : 0, y + m, DENSE_TILE);
    for (; m + 4 <= a->M; m += 4) dense_tile(a, w + m * a->C, x, bias ? bias + m : 0, y + m, 4);
    for (; m < a->M; m++) dense_tile(a, w + m * a->C, x, bias ? bias + m : 0, y + m, 1);
}

INLINE void dense_inward_tile(const Layer *a, const float *w, const vec *g, vec *gx, const int N) {
    vec sum[DENSE_TILE];
    UNROLL for (int k = 0; k < N; k++) sum[k] = (vec){0};
    for (int64_t m = 0; m < a->M; m++) UNROLL for (int k = 0; k < N; k++) sum[k] += g[m] * w[m * a->C + k];
    UNROLL for (int k = 0; k < N; k++) gx[k] = sum[k];
}

static void dense_inward(const Layer *a, const float *theta, const vec *g, vec *gx) {
    const float *w = theta + a->weight;
    int64_t f = 0;
    for (; f + DENSE_TILE <= a->C; f += DENSE_TILE) dense_inward_tile(a, w + f, g, gx + f, DENSE_TILE);
    for (; f + 4 <= a->C; f += 4) dense_inward_tile(a, w + f, g, gx + f, 4);
    for (; f < a->C; f++) dense_inward_tile(a, w + f, g, gx + f, 1);
}

/* `grad += g x^T` for K rows and N vectors of columns; `x` is transposed, one image a row, so that lanes are columns. */
INLINE void outer_tile(const Layer *a, const vec *x, int64_t width, const vec *g, float *grad, const int K, const int N) {
    vec sum[OUTER_TILE][4];
    UNROLL for (int k = 0; k < K; k++) UNROLL for (int t = 0; t < N; t++) sum[k][t] = *(loose *)(grad + k * a->C + t * LANES);
    const float *scalar = (const float *)g;
    for (int l = 0; l < LANES; l++, x += width) UNROLL for (int k = 0; k < K; k++) {
        const float v = scalar[k * LANES + l];
        UNROLL for (int t = 0; t < N; t++) sum[k][t] += x[t] * v;
    }
    /* a last vector reaches into the next row, to which it adds zeros: so the rows are written in order */
    UNROLL for (int k = 0; k < K; k++) UNROLL for (int t = 0; t < N; t++) *(loose *)(grad + k * a->C + t * LANES) = sum[k][t];
}

/* Gradients of weights and bias; `turned` is memory for LANES rows of the transposed input. */
static void dense_gradient(const Layer *a, const vec *x, const vec *g, vec *turned, float *grad) {
    const int64_t width = (a->C + LANES - 1) / LANES;
    float *to = (float *)turned;
    for (int64_t f = 0; f < width * LANES; f++)
        for (int l = 0; l < LANES; l++) to[l * width * LANES + f] = f < a->C ? x[f][l] : 0.0f;
    float *w = grad + a->weight;
    for (int64_t m = 0; m < a->M; m += OUTER_TILE) {
        const int64_t n = a->M - m < OUTER_TILE ? a->M - m : OUTER_TILE;
        int64_t t = 0;
        for (; t + 4 <= width; t += 4)
            SIZED(n, outer_tile(a, turned + t, width, g + m, w + m * a->C + t * LANES, N > OUTER_TILE ? OUTER_TILE : N, 4))
        for (; t < width; t++)
            SIZED(n, outer_tile(a, turned + t, width, g + m, w + m * a->C + t * LANES, N > OUTER_TILE ? OUTER_TILE : N, 1))
    }
    if (a->bias >= 0)
        for (int64_t m = 0; m < a->M; m++) grad[a->bias + m] += total(g[m]);
}
#endif
