/* Local training of one client: all its mini-batches, forward, backward and SGD, in one call.

   Images run in blocks of LANES, one a lane: a block's activations stay in the cache from the first layer to the last
   and back. The numbers depend on the order of the mini-batches alone, never on threads: there are none in here. */
#include "convolution.h"
#include "dense.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    int64_t layers, size, classes;
    const Layer *layer;
    const uint8_t *images;       /* [image][C][H + 2 border][W + 2 border] */
    const int64_t *rows, *labels; /* of each sample: its image, its class */
    int64_t C, H, W, border;
    const float *values; /* [C][256]: the normalised value of each pixel value */
} Model;

typedef struct {
    int64_t steps, batch;
    const int64_t *samples, *counts; /* [steps][batch], [steps] */
    const uint8_t *fresh, *flips;    /* [steps]; [steps][batch] or null */
    const int64_t *crops;            /* [steps][batch][2] or null */
    float rate, momentum, decay;
    int64_t nesterov;
} Schedule;

enum { MOST = 32 }; /* layers */

typedef struct {
    vec *memory, *x[MOST + 1], *gx[MOST + 1], *dense, *turned, *taps; /* x[i], gx[i]: a layer's input and its gradient */
    ivec *winner[MOST];
    int64_t inputs[MOST + 1], convolved; /* vectors in x[i]; parameters of convolutions */
} Work;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Lay the work memory out; with memory == 0 only count. */
static int64_t lay_out(const Model *model, Work *work) {
    vec *at = work->memory;
    int64_t dense = 0, turned = 0;
    work->convolved = 0;
    for (int64_t i = 0; i <= model->layers; i++) {
        const Layer *a = model->layer + i;
        const int64_t size = work->inputs[i] = i < model->layers ? a->C * a->H * a->W : model->classes;
        work->x[i] = at, at += size;
        work->gx[i] = at, at += size;
        if (i == model->layers) break;
        if (a->kind == CONVOLUTION) {
            const int64_t rows = pooled_rows(a);
            work->winner[i] = (ivec *)at, at += a->M * rows * pooled_columns(a);
            dense = larger(dense, a->M * 2 * rows * (a->W + a->S - 1) + PIXELS);
            work->convolved = larger(work->convolved, larger(a->weight + a->M * a->C * a->R * a->S, a->bias + a->M));
        } else {
            turned = larger(turned, (a->C + LANES - 1) / LANES * LANES);
        }
    }
    work->dense = at, at += dense;
    work->turned = at, at += turned;
    work->taps = at, at += work->convolved;
    return at - work->memory;
}

static int begin(const Model *model, Work *work) {
    work->memory = 0;
    const int64_t size = lay_out(model, work) * (int64_t)sizeof(vec);
    work->memory = aligned_alloc(sizeof(vec), size);
    if (!work->memory) return 1;
    memset(work->memory, 0, size); /* the borders stay zero */
    lay_out(model, work);
    return 0;
}

/* Where layer i writes its output: inside the border of the next layer's input. */
static Image inside(const Model *model, vec *first, int64_t i) {
    const Layer *a = model->layer + i;
    if (i < model->layers && a->kind == CONVOLUTION)
        return (Image){first + a->top * a->W + a->left, a->H * a->W, a->W};
    if (i == 0) return (Image){first, model->H * model->W, model->W}; /* a dense layer takes a picture as a row of numbers */
    return (Image){first, pooled_rows(a - 1) * pooled_columns(a - 1), pooled_columns(a - 1)};
}

/* Put up to LANES samples into the lanes of the first layer's input; lanes left over show the first one again. */
static void show(const Model *model, Image to, const int64_t *samples, int64_t n, const uint8_t *flips, const int64_t *crops) {
    const int64_t wide = model->W + 2 * model->border, high = model->H + 2 * model->border;
    const uint8_t *from[LANES];
    int64_t step[LANES];
    for (int l = 0; l < LANES; l++) {
        const int64_t k = l < n ? l : 0, row = model->rows[samples[k]];
        const int64_t top = crops ? crops[2 * k] : model->border, left = crops ? crops[2 * k + 1] : model->border;
        const int mirrored = flips && flips[k];
        from[l] = model->images + (row * model->C * high + top) * wide + left + (mirrored ? model->W - 1 : 0);
        step[l] = mirrored ? -1 : 1;
    }
    for (int64_t c = 0; c < model->C; c++)
        for (int64_t y = 0; y < model->H; y++) {
            float *row = (float *)(to.first + c * to.channel + y * to.row);
            const float *values = model->values + 256 * c;
            for (int l = 0; l < LANES; l++) {
                const uint8_t *pixel = from[l] + (c * high + y) * wide;
                if (step[l] > 0)
                    for (int64_t z = 0; z < model->W; z++) row[z * LANES + l] = values[pixel[z]];
                else
                    for (int64_t z = 0; z < model->W; z++) row[z * LANES + l] = values[pixel[-z]];
            }
        }
}

static void forward(const Model *model, Work *work, const float *theta) {
    for (int64_t i = 0; i < model->layers; i++) {
        const Layer *a = model->layer + i;
        if (a->kind == CONVOLUTION)
            convolve(a, theta, work->x[i], inside(model, work->x[i + 1], i + 1), work->winner[i]);
        else
            dense_forward(a, theta, work->x[i], work->x[i + 1]);
    }
}

static void backward(const Model *model, Work *work, const float *theta, float *grad) {
    for (int64_t i = model->layers - 1; i >= 0; i--) {
        const Layer *a = model->layer + i;
        if (a->kind == CONVOLUTION) {
            memset(work->dense, 0, (a->M * 2 * pooled_rows(a) * (a->W + a->S - 1) + PIXELS) * sizeof(vec));
            unpool(a, inside(model, work->gx[i + 1], i + 1), work->winner[i], work->dense, work->taps);
            weight_gradient(a, work->x[i], work->dense, work->taps);
            if (i) input_gradient(a, theta, work->dense, work->gx[i]);
        } else {
            if (a->relu)
                for (int64_t m = 0; m < a->M; m++)
                    work->gx[i + 1][m] = where(~(work->x[i + 1][m] <= 0.0f), work->gx[i + 1][m]);
            dense_gradient(a, work->x[i], work->gx[i + 1], work->turned, grad);
            if (i) dense_inward(a, theta, work->gx[i + 1], work->gx[i]);
        }
    }
}

/* Cross-entropy of n lanes, each weighing `weight`; its gradient takes the place of that of the scores. */
static double cross_entropy(const Model *model, const vec *scores, vec *g, const int64_t *samples, int64_t n, float weight) {
    double loss = 0;
    for (int64_t m = 0; m < model->classes; m++) g[m] = (vec){0};
    for (int64_t l = 0; l < n; l++) {
        float most = scores[0][l], sum = 0;
        for (int64_t m = 1; m < model->classes; m++) most = fmaxf(most, scores[m][l]);
        for (int64_t m = 0; m < model->classes; m++) sum += g[m][l] = expf(scores[m][l] - most);
        const int64_t label = model->labels[samples[l]];
        loss += weight * (logf(sum) + most - scores[label][l]);
        for (int64_t m = 0; m < model->classes; m++) g[m][l] *= weight / sum;
        g[label][l] -= weight;
    }
    return loss;
}

/* `g += decay w; v = momentum v + g; w -= rate (g + momentum v)` with Nesterov's momentum, `w -= rate v` without. */
static void descend(const Schedule *s, int64_t size, float *restrict w, float *restrict g, float *restrict v, int fresh) {
    const float rate = s->rate, momentum = s->momentum, decay = s->decay, kept = fresh ? 0.0f : momentum;
    if (momentum == 0.0f)
        for (int64_t i = 0; i < size; i++) w[i] -= rate * (g[i] + decay * w[i]);
    else if (s->nesterov)
        for (int64_t i = 0; i < size; i++) {
            const float slope = g[i] + decay * w[i];
            v[i] = kept * v[i] + slope;
            w[i] -= rate * (slope + momentum * v[i]);
        }
    else
        for (int64_t i = 0; i < size; i++) {
            v[i] = kept * v[i] + (g[i] + decay * w[i]);
            w[i] -= rate * v[i];
        }
}

/* Train `theta` by the schedule; `loss` is the sum of the mini-batches' losses. 1: out of memory. */
int honestly_train(const Model *model, const Schedule *s, float *theta, float *loss) {
    Work work;
    float *grad = malloc((model->size + LANES) * sizeof(float)), *velocity = calloc(model->size, sizeof(float));
    if (begin(model, &work) || !grad || !velocity) {
        free(work.memory), free(grad), free(velocity);
        return 1;
    }
    double sum = 0;
    for (int64_t t = 0; t < s->steps; t++) {
        const int64_t n = s->counts[t];
        memset(grad, 0, (model->size + LANES) * sizeof(float));
        memset(work.taps, 0, work.convolved * sizeof(vec));
        for (int64_t b = 0; b < n; b += LANES) {
            const int64_t at = t * s->batch + b, lanes = n - b < LANES ? n - b : LANES;
            show(model, inside(model, work.x[0], 0), s->samples + at, lanes, s->flips ? s->flips + at : 0,
                 s->crops ? s->crops + 2 * at : 0);
            forward(model, &work, theta);
            sum += cross_entropy(model, work.x[model->layers], work.gx[model->layers], s->samples + at, lanes, 1.0f / n);
            backward(model, &work, theta, grad);
        }
        for (int64_t i = 0; i < work.convolved; i++) grad[i] += total(work.taps[i]);
        descend(s, model->size, theta, grad, velocity, s->fresh[t]);
    }
    *loss = (float)sum;
    free(work.memory), free(grad), free(velocity);
    return 0;
}

/* The scores of n samples, [n][classes]. 1: out of memory. */
int honestly_logits(const Model *model, const float *theta, const int64_t *samples, int64_t n, float *scores) {
    Work work;
    if (begin(model, &work)) return 1;
    for (int64_t b = 0; b < n; b += LANES) {
        const int64_t lanes = n - b < LANES ? n - b : LANES;
        show(model, inside(model, work.x[0], 0), samples + b, lanes, 0, 0);
        forward(model, &work, theta);
        for (int64_t l = 0; l < lanes; l++)
            for (int64_t m = 0; m < model->classes; m++)
                scores[(b + l) * model->classes + m] = work.x[model->layers][m][l];
    }
    free(work.memory);
    return 0;
}
