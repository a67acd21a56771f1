/* Convolution, 2 x 2 max-pooling, bias and ReLU of a block of images, forward and backward. */
#ifndef HONESTLY_CONVOLUTION_H
#define HONESTLY_CONVOLUTION_H
#include "layers.h"
#include <string.h>

/* One pooled pixel of N output channels. `winner` is the corner with the largest value, -1 where ReLU lets nothing by. */
INLINE void pool_tile(const Layer *a, const vec *x, const float *w, const float *bias, Image y, ivec *winner, int64_t step,
                      const int N) {
    vec sum[4][POOL_TILE];
    UNROLL for (int k = 0; k < N; k++) sum[0][k] = sum[1][k] = sum[2][k] = sum[3][k] = (vec){0};
    const int64_t R = a->R, S = a->S, W = a->W, taps = a->C * R * S;
    for (int64_t c = 0; c < a->C; c++, x += a->H * W)
        for (int64_t i = 0; i < R; i++)
            for (int64_t j = 0; j < S; j++, w++) {
                const vec *at = x + i * W + j;
                const vec x0 = at[0], x1 = at[1], x2 = at[W], x3 = at[W + 1];
                UNROLL for (int k = 0; k < N; k++) {
                    const float v = w[k * taps];
                    sum[0][k] += x0 * v;
                    sum[1][k] += x1 * v;
                    sum[2][k] += x2 * v;
                    sum[3][k] += x3 * v;
                }
            }
    UNROLL for (int k = 0; k < N; k++) {
        vec best = sum[0][k];
        ivec which = {0};
        UNROLL for (int q = 1; q < 4; q++) {
            const ivec more = (sum[q][k] > best) | (sum[q][k] != sum[q][k]); /* among equals the first; NaN stays */
            best = either(more, sum[q][k], best);
            which = (more & q) | (~more & which);
        }
        if (bias) best += bias[k];
        if (a->relu) {
            const ivec dead = best <= 0.0f;
            best = where(~dead, best);
            which |= dead;
        }
        y.first[k * y.channel] = best;
        winner[k * step] = which;
    }
}

static void convolve(const Layer *a, const float *theta, const vec *x, Image y, ivec *winner) {
    const int64_t rows = pooled_rows(a), columns = pooled_columns(a), step = rows * columns;
    const float *w = theta + a->weight, *bias = a->bias < 0 ? 0 : theta + a->bias;
    for (int64_t m = 0; m < a->M; m += POOL_TILE) {
        const int64_t n = a->M - m < POOL_TILE ? a->M - m : POOL_TILE;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                const Image out = {y.first + m * y.channel + i * y.row + j, y.channel, y.row};
                SIZED(n, pool_tile(a, x + 2 * i * a->W + 2 * j, w + m * a->C * a->R * a->S, bias ? bias + m : 0, out,
                                   winner + m * step + i * columns + j, step, N))
            }
    }
}

/* The gradient before pooling, with S - 1 columns of zeros on either side, from that behind it; the bias's gradient. */
static void unpool(const Layer *a, Image g, const ivec *winner, vec *dense, vec *grad) {
    const int64_t rows = pooled_rows(a), columns = pooled_columns(a), width = a->W + a->S - 1;
    for (int64_t m = 0; m < a->M; m++) {
        vec sum = {0};
        for (int64_t i = 0; i < rows; i++) {
            vec *up = dense + (m * 2 * rows + 2 * i) * width + a->S - 1, *low = up + width;
            for (int64_t j = 0; j < columns; j++, winner++, up += 2, low += 2) {
                const vec v = g.first[m * g.channel + i * g.row + j];
                sum += where(*winner >= 0, v);
                up[0] = where(*winner == 0, v);
                up[1] = where(*winner == 1, v);
                low[0] = where(*winner == 2, v);
                low[1] = where(*winner == 3, v);
            }
        }
        if (a->bias >= 0) grad[a->bias + m] += sum;
    }
}

/* Gradients of n taps in a row of N output channels. */
INLINE void tap_tile(const Layer *a, const vec *x, const vec *dense, vec *grad, const int M, const int N) {
    const int64_t rows = 2 * pooled_rows(a), columns = 2 * pooled_columns(a), width = a->W + a->S - 1;
    vec sum[TAP_TILE][TAPS];
    UNROLL for (int k = 0; k < M; k++) UNROLL for (int j = 0; j < N; j++) sum[k][j] = (vec){0};
    for (int64_t y = 0; y < rows; y++, x += a->W, dense += width)
        for (int64_t z = 0; z < columns; z++) {
            vec pixel[TAPS];
            UNROLL for (int j = 0; j < N; j++) pixel[j] = x[z + j];
            UNROLL for (int k = 0; k < M; k++) {
                const vec v = dense[k * rows * width + z];
                UNROLL for (int j = 0; j < N; j++) sum[k][j] += v * pixel[j];
            }
        }
    UNROLL for (int k = 0; k < M; k++) UNROLL for (int j = 0; j < N; j++) grad[k * a->C * a->R * a->S + j] += sum[k][j];
}

static void weight_gradient(const Layer *a, const vec *x, const vec *dense, vec *grad) {
    const int64_t rows = 2 * pooled_rows(a), width = a->W + a->S - 1;
    for (int64_t c = 0; c < a->C; c++)
        for (int64_t m = 0; m < a->M; m += TAP_TILE)
            for (int64_t i = 0; i < a->R; i++)
                for (int64_t j = 0; j < a->S; j += TAPS) {
                    const int64_t n = a->S - j < TAPS ? a->S - j : TAPS;
                    const vec *from = x + (c * a->H + i) * a->W + j, *g = dense + m * rows * width + a->S - 1;
                    vec *to = grad + a->weight + ((m * a->C + c) * a->R + i) * a->S + j;
                    if (a->M - m >= TAP_TILE) {
                        SIZED(n, tap_tile(a, from, g, to, TAP_TILE, N > TAPS ? TAPS : N))
                    } else {
                        for (int64_t k = 0; k < a->M - m; k++)
                            SIZED(n, tap_tile(a, from, g + k * rows * width, to + k * a->C * a->R * a->S, 1,
                                              N > TAPS ? TAPS : N))
                    }
                }
}

/* The gradient of n pixels in a row of N input channels. */
INLINE void inward_tile(const Layer *a, const float *w, const vec *dense, vec *gx, int64_t y, const int K, const int N) {
    const int64_t rows = 2 * pooled_rows(a), width = a->W + a->S - 1, taps = a->R * a->S;
    const int64_t first = y - rows + 1 > 0 ? y - rows + 1 : 0, last = y < a->R - 1 ? y : a->R - 1;
    vec sum[INWARD_TILE][PIXELS];
    UNROLL for (int k = 0; k < K; k++) UNROLL for (int t = 0; t < N; t++) sum[k][t] = (vec){0};
    for (int64_t m = 0; m < a->M; m++, w += a->C * taps, dense += rows * width)
        for (int64_t i = first; i <= last; i++)
            for (int64_t j = 0; j < a->S; j++) {
                const vec *g = dense + (y - i) * width + a->S - 1 - j;
                vec v[PIXELS];
                UNROLL for (int t = 0; t < N; t++) v[t] = g[t];
                UNROLL for (int k = 0; k < K; k++) {
                    const float tap = w[k * taps + i * a->S + j];
                    UNROLL for (int t = 0; t < N; t++) sum[k][t] += v[t] * tap;
                }
            }
    UNROLL for (int k = 0; k < K; k++) UNROLL for (int t = 0; t < N; t++) gx[k * a->H * a->W + t] = sum[k][t];
}

static void input_gradient(const Layer *a, const float *theta, const vec *dense, vec *gx) {
    for (int64_t c = 0; c < a->C; c += INWARD_TILE) {
        const int64_t n = a->C - c < INWARD_TILE ? a->C - c : INWARD_TILE;
        for (int64_t y = 0; y < a->H; y++)
            for (int64_t z = 0; z < a->W; z += PIXELS) {
                const float *w = theta + a->weight + c * a->R * a->S;
                vec *to = gx + (c * a->H + y) * a->W + z;
                if (a->W - z >= PIXELS) {
                    SIZED(n, inward_tile(a, w, dense + z, to, y, N > INWARD_TILE ? INWARD_TILE : N, PIXELS))
                } else {
                    for (int64_t t = 0; t < a->W - z; t++)
                        SIZED(n, inward_tile(a, w, dense + z + t, to + t, y, N > INWARD_TILE ? INWARD_TILE : N, 1))
                }
            }
    }
}
#endif
