// Local training of K clients, batch innermost: x is (K, H, C, W, B), a lane is an image. Compiled at run time (NVRTC) for
// one set of sizes; `native.py` gives the macros and launches. Everything is float32 with fused multiply-adds, every sum
// has a fixed order: the same input gives the same bits.

#define FULL 0xffffffffu

// The sum of v over the lanes of a warp, in every lane.
__device__ __forceinline__ float over_lanes(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL, v, o);
    return v;
}

#ifdef CONVOLUTION
// A thread computes PAIR neighbouring pooled outputs of FM channels for one image: its window is read once into registers.
#define FOURS ((FM + 3) / 4)
#define COLUMNS (S + 2 * PAIR - 1)
extern "C" __global__ void __launch_bounds__(THREADS)
forward(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
        float* __restrict__ y, unsigned char* __restrict__ code, int stride_w, int stride_bias, int batch) {
    __shared__ float4 filters[C * TAPS * FOURS];  // [tap][channel], so that four channels are one read
    const int cells = POOLED_W / PAIR;
    const int k = blockIdx.x / (POOLED_H * cells), i = blockIdx.x / cells % POOLED_H, j = blockIdx.x % cells * PAIR;
    const int m0 = blockIdx.z * FM, b = blockIdx.y * THREADS + threadIdx.x;
    for (int n = threadIdx.x; n < C * TAPS * FOURS * 4; n += THREADS) {
        const int m = n % (FOURS * 4), tap = n / (FOURS * 4);
        ((float*)filters)[n] = m < FM && m0 + m < M ? w[(wide)k * stride_w + (m0 + m) * (C * TAPS) + tap] : 0.0f;
    }
    __syncthreads();
    if (b >= BATCH) return;
    float sum[FM][2][2 * PAIR];
#pragma unroll
    for (int m = 0; m < FM; m++)
#pragma unroll
        for (int e = 0; e < 2 * PAIR; e++) sum[m][0][e] = sum[m][1][e] = 0.0f;
    const float* window = x + (((wide)k * H + 2 * i) * C * W + 2 * j) * BATCH + b;
#pragma unroll 1
    for (int c = 0; c < C; c++, window += W * BATCH) {
        float a[R + 1][COLUMNS];
#pragma unroll
        for (int r = 0; r <= R; r++)
#pragma unroll
            for (int s = 0; s < COLUMNS; s++) a[r][s] = window[(r * C * W + s) * BATCH];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int s = 0; s < S; s++)
#pragma unroll
                for (int four = 0; four < FOURS; four++) {
                    const float4 f4 = filters[(c * TAPS + r * S + s) * FOURS + four];
                    const float f[4] = {f4.x, f4.y, f4.z, f4.w};
#pragma unroll
                    for (int q = 0; q < 4; q++)
                        if (4 * four + q < FM)
#pragma unroll
                            for (int e = 0; e < 2 * PAIR; e++) {
                                sum[4 * four + q][0][e] = fmaf(f[q], a[r][s + e], sum[4 * four + q][0][e]);
                                sum[4 * four + q][1][e] = fmaf(f[q], a[r + 1][s + e], sum[4 * four + q][1][e]);
                            }
                }
    }
#pragma unroll
    for (int m = 0; m < FM; m++) {
        if (m0 + m >= M) break;
#pragma unroll
        for (int p = 0; p < PAIR; p++) {
            float top = sum[m][0][2 * p];
            int won = 0;
            if (sum[m][0][2 * p + 1] > top) { top = sum[m][0][2 * p + 1]; won = 1; }
            if (sum[m][1][2 * p] > top) { top = sum[m][1][2 * p]; won = 2; }
            if (sum[m][1][2 * p + 1] > top) { top = sum[m][1][2 * p + 1]; won = 3; }
#ifdef BIAS
            top += bias[(wide)k * stride_bias + m0 + m];
#endif
#ifdef RELU
            if (top <= 0.0f) { top = 0.0f; won = DEAD; }
#endif
            const wide at = AT(k, i, m0 + m, j + p) * BATCH + b;
            y[at] = top;
            code[at] = (unsigned char)won;
        }
    }
}

// The gradient at the corner that won; 0 at the other three. (Multiplying by 0 is cheaper than reading what won.)
#define CORNERS(up, won) \
    const float u00 = (won) == 0 ? (up) : 0.0f, u01 = (won) == 1 ? (up) : 0.0f; \
    const float u10 = (won) == 2 ? (up) : 0.0f, u11 = (won) == 3 ? (up) : 0.0f;

// One exchange of a sum over lanes of 32 entries at once: a lane keeps half of the entries and gives the others away.
template <int o> __device__ __forceinline__ void halve(float (&entry)[32], int lane) {
    const bool upper = lane & o;
#pragma unroll
    for (int t = 0; t < o; t++) {
        const float give = upper ? entry[t] : entry[t + o], keep = upper ? entry[t + o] : entry[t];
        entry[t] = keep + __shfl_xor_sync(FULL, give, o);
    }
}

// parts[k, split, m, c, :] = sum over b and the split's rows of gradient x window; entry TAPS is the bias.
// One block for a client, an input channel, GM output channels and some rows.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
weight_gradient(const float* __restrict__ x, const float* __restrict__ g, const unsigned char* __restrict__ code,
                float* __restrict__ parts, int splits, int batch) {
    __shared__ float sums[THREADS / 32][GM][32];
    const int tiles = (M + GM - 1) / GM;
    const int m0 = blockIdx.x % tiles * GM, c = blockIdx.x / tiles % C;
    const int split = blockIdx.x / (tiles * C) % splits, k = blockIdx.x / (tiles * C * splits);
    const int from = POOLED_H * split / splits, to = POOLED_H * (split + 1) / splits;
    float sum[GM][32];
#pragma unroll
    for (int m = 0; m < GM; m++)
#pragma unroll
        for (int t = 0; t < 32; t++) sum[m][t] = 0.0f;
    for (int b = threadIdx.x; b < BATCH; b += THREADS)
#pragma unroll 1
        for (int i = from; i < to; i++) {
            const float* window = x + (((wide)k * H + 2 * i) * C + c) * W * BATCH + b;
            float a[R + 1][S + 1];
#pragma unroll
            for (int r = 0; r <= R; r++)
#pragma unroll
                for (int s = 0; s < S - 1; s++) a[r][s + 2] = window[(r * C * W + s) * BATCH];
#pragma unroll 1
            for (int j = 0; j < POOLED_W; j++) {
#pragma unroll
                for (int r = 0; r <= R; r++) {  // the window moves two columns on
#pragma unroll
                    for (int s = 0; s < S - 1; s++) a[r][s] = a[r][s + 2];
                    a[r][S - 1] = window[(r * C * W + 2 * j + S - 1) * BATCH];
                    a[r][S] = window[(r * C * W + 2 * j + S) * BATCH];
                }
#pragma unroll
                for (int m = 0; m < GM; m++) {
                    const bool inside = m0 + m < M;
                    const wide at = AT(k, i, inside ? m0 + m : m0, j) * BATCH + b;
                    const float up = inside ? g[at] : 0.0f;
                    const int won = code[at];
                    CORNERS(up, won)
#pragma unroll
                    for (int r = 0; r < R; r++)
#pragma unroll
                        for (int s = 0; s < S; s++) {
                            float& t = sum[m][r * S + s];
                            t = fmaf(u00, a[r][s], t);
                            t = fmaf(u01, a[r][s + 1], t);
                            t = fmaf(u10, a[r + 1][s], t);
                            t = fmaf(u11, a[r + 1][s + 1], t);
                        }
                    sum[m][TAPS] += won < DEAD ? up : 0.0f;
                }
            }
        }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < GM; m++) {
        halve<16>(sum[m], lane); halve<8>(sum[m], lane); halve<4>(sum[m], lane); halve<2>(sum[m], lane);
        halve<1>(sum[m], lane);  // entry 0 of lane l is now the sum of entry l over all lanes
        sums[warp][m][lane] = sum[m][0];
    }
    __syncthreads();
    for (int n = threadIdx.x; n < GM * 32; n += THREADS) {
        const int m = n / 32, t = n % 32;
        if (m0 + m >= M || t > TAPS) continue;
        float total = 0.0f;
        for (int v = 0; v < THREADS / 32; v++) total += sums[v][m][t];
        parts[((((wide)k * splits + split) * M + m0 + m) * C + c) * 32 + t] = total;
    }
}

// The splits' parts summed, into the places of the gradients.
extern "C" __global__ void __launch_bounds__(256)
collect(const float* __restrict__ parts, float* __restrict__ grad, float* __restrict__ bias_grad,
        int splits, int clients, int stride, int stride_bias) {
    const int n = blockIdx.x * 256 + threadIdx.x;
    const int t = n % 32, filter = n / 32 % (M * C), k = n / (32 * M * C);
    if (k >= clients || t > TAPS || (t == TAPS && filter % C)) return;
    float total = 0.0f;
    for (int split = 0; split < splits; split++) total += parts[(((wide)k * splits + split) * M * C + filter) * 32 + t];
    if (t < TAPS) grad[(wide)k * stride + filter * TAPS + t] = total;
#ifdef BIAS
    else bias_grad[(wide)k * stride_bias + filter / C] = total;
#endif
}

#ifdef INWARD
// The gradient of the input. A thread has one image and one channel and walks down the rows with R + 1 of them in
// registers: what a pooled row adds to, it adds to there; the two rows above are then finished.
#define TAP_FOURS ((TAPS + 3) / 4)
extern "C" __global__ void __launch_bounds__(THREADS, 3)
input_gradient(const float* __restrict__ g, const unsigned char* __restrict__ code, const float* __restrict__ w,
               float* __restrict__ gx, int stride_w, int batch) {
    __shared__ float4 filters[M * TAP_FOURS];
    const int k = blockIdx.x / C, c = blockIdx.x % C, b = blockIdx.y * THREADS + threadIdx.x;
    for (int n = threadIdx.x; n < M * TAP_FOURS * 4; n += THREADS) {
        const int m = n / (TAP_FOURS * 4), tap = n % (TAP_FOURS * 4);
        ((float*)filters)[n] = tap < TAPS ? w[(wide)k * stride_w + (m * C + c) * TAPS + tap] : 0.0f;
    }
    __syncthreads();
    if (b >= BATCH) return;
    float sum[R + 1][W];
#pragma unroll
    for (int r = 0; r <= R; r++)
#pragma unroll
        for (int s = 0; s < W; s++) sum[r][s] = 0.0f;
    float up[POOLED_W];
    int won[POOLED_W];
#pragma unroll
    for (int j = 0; j < POOLED_W; j++) { up[j] = g[AT(k, 0, 0, j) * BATCH + b]; won[j] = code[AT(k, 0, 0, j) * BATCH + b]; }
    float* out = gx + ((wide)k * H * C + c) * W * BATCH + b;
#pragma unroll 1
    for (int i = 0; i < POOLED_H; i++) {
#pragma unroll 1
        for (int m = 0; m < M; m++) {
            float f[TAP_FOURS * 4];
#pragma unroll
            for (int n = 0; n < TAP_FOURS; n++) {
                const float4 f4 = filters[m * TAP_FOURS + n];
                f[4 * n] = f4.x; f[4 * n + 1] = f4.y; f[4 * n + 2] = f4.z; f[4 * n + 3] = f4.w;
            }
            float next_up[POOLED_W];  // read ahead, while this channel is computed
            int next_won[POOLED_W];
            const int last = i == POOLED_H - 1 && m == M - 1;
            const int next_m = last || m + 1 < M ? m + 1 - last : 0, next_i = m + 1 < M || last ? i : i + 1;
#pragma unroll
            for (int j = 0; j < POOLED_W; j++) {
                const wide at = AT(k, next_i, next_m, j) * BATCH + b;
                next_up[j] = g[at];
                next_won[j] = code[at];
            }
#pragma unroll
            for (int j = 0; j < POOLED_W; j++) {
                CORNERS(up[j], won[j])
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int s = 0; s < S; s++) {
                        sum[r][2 * j + s] = fmaf(u00, f[r * S + s], sum[r][2 * j + s]);
                        sum[r][2 * j + s + 1] = fmaf(u01, f[r * S + s], sum[r][2 * j + s + 1]);
                        sum[r + 1][2 * j + s] = fmaf(u10, f[r * S + s], sum[r + 1][2 * j + s]);
                        sum[r + 1][2 * j + s + 1] = fmaf(u11, f[r * S + s], sum[r + 1][2 * j + s + 1]);
                    }
            }
#pragma unroll
            for (int j = 0; j < POOLED_W; j++) { up[j] = next_up[j]; won[j] = next_won[j]; }
        }
#pragma unroll
        for (int r = 0; r < 2; r++, out += C * W * BATCH)
#pragma unroll
            for (int s = 0; s < W; s++) out[s * BATCH] = sum[r][s];
#pragma unroll
        for (int r = 0; r <= R; r++)
#pragma unroll
            for (int s = 0; s < W; s++) sum[r][s] = r + 2 <= R ? sum[(r + 2) % (R + 1)][s] : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < R - 1; r++, out += C * W * BATCH)
#pragma unroll
        for (int s = 0; s < W; s++) out[s * BATCH] = sum[r][s];
}
#endif
#endif

#ifdef STEP
// x[k, y, c, x, b] = pixel * scale[c] + shift[c] of sample samples[t, k, b]. One block turns 32 images x 128 pixels.
extern "C" __global__ void __launch_bounds__(256)
gather(const unsigned char* __restrict__ images, const wide* __restrict__ rows, const wide* __restrict__ samples,
       const wide* __restrict__ t, const float* __restrict__ scale, const float* __restrict__ shift,
       float* __restrict__ x, int clients) {
    __shared__ unsigned int tile[32][33];
    const int first = blockIdx.x * 128, k = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int n = warp; n < 32; n += 8) {
        const int b = blockIdx.y * 32 + n;
        if (b < BATCH && first + 4 * lane < PIXELS) {
            const wide image = rows[samples[(t[0] * clients + k) * BATCH + b]];
            tile[n][lane] = *(const unsigned int*)(images + image * PIXELS + first + 4 * lane);
        }
    }
    __syncthreads();
    const int b = blockIdx.y * 32 + lane;
    if (b >= BATCH) return;
    for (int n = warp; n < 128 && first + n < PIXELS; n += 8) {
        const int p = first + n, c = p / (HEIGHT * WIDTH), row = p / WIDTH % HEIGHT, column = p % WIDTH;
        const float value = (float)(tile[lane][n / 4] >> (n % 4 * 8) & 255u);
        x[((((wide)k * HEIGHT + row) * CHANNELS + c) * WIDTH + column) * BATCH + b] = fmaf(value, scale[c], shift[c]);
    }
}

// Cross-entropy of one client a block: loss[k] += rate * sum of weight * -ln p(label); g = weight * (p - one-hot).
extern "C" __global__ void __launch_bounds__(128)
cross_entropy(const float* __restrict__ logits, const wide* __restrict__ labels, const wide* __restrict__ samples,
              const float* __restrict__ weights, const float* __restrict__ rate, const wide* __restrict__ t,
              float* __restrict__ g, float* __restrict__ loss, int clients) {
    __shared__ float sums[4];
    const int k = blockIdx.x;
    float mine = 0.0f;
    for (int b = threadIdx.x; b < BATCH; b += 128) {
        const wide at = (t[0] * clients + k) * BATCH + b;
        const float weight = weights[at];
        const int label = (int)labels[samples[at]];
        float z[CLASSES], top = logits[((wide)k * CLASSES) * BATCH + b], total = 0.0f;
#pragma unroll
        for (int n = 0; n < CLASSES; n++) { z[n] = logits[((wide)k * CLASSES + n) * BATCH + b]; top = fmaxf(top, z[n]); }
#pragma unroll
        for (int n = 0; n < CLASSES; n++) { z[n] -= top; total += expf(z[n]); }
        const float log_total = logf(total);
#pragma unroll
        for (int n = 0; n < CLASSES; n++) {
            const float log_p = z[n] - log_total;
            if (n == label) mine -= weight * log_p;
            g[((wide)k * CLASSES + n) * BATCH + b] = weight * (expf(log_p) - (n == label ? 1.0f : 0.0f));
        }
    }
    mine = over_lanes(mine);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) loss[k] += rate[t[0] * clients + k] * (((sums[0] + sums[1]) + sums[2]) + sums[3]);
}

// PyTorch's SGD on all rows: g += wd w; v = keep mu v + g; w -= rate lr (g + mu v), or w -= rate lr v without Nesterov.
extern "C" __global__ void __launch_bounds__(256)
sgd(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ v, const float* __restrict__ rate,
    const float* __restrict__ keep, const wide* __restrict__ t, int clients, int size) {
    const int k = blockIdx.y;
    const float speed = LEARNING_RATE * rate[t[0] * clients + k], memory = MOMENTUM * keep[t[0] * clients + k];
    const int n = blockIdx.x * 256 + threadIdx.x;
    if (n >= size) return;
    const wide at = (wide)k * size + n;
    const float old = w[at], gradient = fmaf(WEIGHT_DECAY, old, g[at]);
#ifdef HEAVY_BALL
    const float velocity = fmaf(memory, v[at], gradient);
    v[at] = velocity;
#ifdef NESTEROV
    w[at] = old - speed * fmaf(MOMENTUM, velocity, gradient);
#else
    w[at] = old - speed * velocity;
#endif
#else
    w[at] = old - speed * gradient;
#endif
}

extern "C" __global__ void next_step(wide* __restrict__ t) { t[0] += 1; }
#endif

#ifdef DENSE
// y = y + bias, then ReLU: (K, M, B) in place.
extern "C" __global__ void __launch_bounds__(256)
bias_relu(float* __restrict__ y, const float* __restrict__ bias, int stride, int outputs, int batch) {
    const int k = blockIdx.y, n = blockIdx.x * 256 + threadIdx.x;
    if (n >= outputs * batch) return;
    const wide at = (wide)k * outputs * batch + n;
    float value = y[at];
#ifdef BIAS
    value += bias[(wide)k * stride + n / batch];
#endif
#ifdef RELU
    if (value <= 0.0f) value = 0.0f;
#endif
    y[at] = value;
}

// g = g where y > 0, and the bias's gradient: its sum over the batch. One warp for an output of a client.
extern "C" __global__ void __launch_bounds__(256)
bias_relu_back(float* __restrict__ g, const float* __restrict__ y, float* __restrict__ bias_grad,
               int stride, int outputs, int batch) {
    const int k = blockIdx.y, m = blockIdx.x * 8 + threadIdx.x / 32;
    if (m >= outputs) return;
    const wide row = ((wide)k * outputs + m) * batch;
    float sum = 0.0f;
    for (int b = threadIdx.x % 32; b < batch; b += 32) {
        float up = g[row + b];
#ifdef RELU
        if (!(y[row + b] > 0.0f)) up = 0.0f;
        g[row + b] = up;
#endif
        sum += up;
    }
    sum = over_lanes(sum);
#ifdef BIAS
    if (threadIdx.x % 32 == 0) bias_grad[(wide)k * stride + m] = sum;
#endif
}
#endif
