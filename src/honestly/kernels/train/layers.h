/* The shapes of a model's layers. All activations of a block of images are [channel][row][column][lane]. */
#ifndef HONESTLY_LAYERS_H
#define HONESTLY_LAYERS_H
#include "vector.h"

enum { CONVOLUTION, DENSE };

/* One layer: a convolution with 2 x 2 max-pooling, bias and ReLU, or a dense layer with bias and ReLU. */
typedef struct {
    int64_t kind, relu;
    int64_t C, H, W;          /* input with its border; a dense layer has C inputs, H = W = 1 */
    int64_t M, R, S;          /* outputs, height and width of the kernel */
    int64_t top, left;        /* border of zeros around the input */
    int64_t weight, bias;     /* where they stand in the row of parameters; bias -1: none */
} Layer;

static inline int64_t pooled_rows(const Layer *a) { return (a->H - a->R + 1) / 2; }
static inline int64_t pooled_columns(const Layer *a) { return (a->W - a->S + 1) / 2; }

/* A picture inside another with a border: where its first pixel is, and the steps to the next channel and row. */
typedef struct {
    vec *first;
    int64_t channel, row;
} Image;
#endif
