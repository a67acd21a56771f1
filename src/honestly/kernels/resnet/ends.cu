// Both ends of a residual network: the images as they come in, the loss, and the step of the optimiser.

#ifdef PATCHES
// The 3 x 3 patch around every pixel as 32 channels, tap by tap, the last ones 0: the first convolution becomes a 1 x 1 one.
// Images may be cropped out of a larger, padded one (CROP), and mirrored.
extern "C" __global__ void __launch_bounds__(256)
patches(const unsigned char* __restrict__ pixels, const wide* __restrict__ rows, const wide* __restrict__ samples,
        const unsigned char* __restrict__ flips, const wide* __restrict__ crops, const float* __restrict__ scale,
        const float* __restrict__ shift, bf16_bits* __restrict__ out, const float* __restrict__ weights,
        const wide* __restrict__ t, int clients) {
    __shared__ bf16_bits image[CHANNELS * (HEIGHT + 2) * (WIDTH + 2)];  // as it is trained on, with a frame of zeros
    const int k = blockIdx.z, b = blockIdx.x;
    if (b >= images_of(weights, t, k, clients)) return;
    const wide number = ((wide)*t * clients + k) * IMAGES_A_CLIENT + b;
    const int tall = HEIGHT + 2 * CROP, broad = WIDTH + 2 * CROP;
    const unsigned char* const from = pixels + rows[samples[number]] * (CHANNELS * tall * broad);
#ifdef FLIPS
    const bool mirrored = flips[number];
#else
    const bool mirrored = false;
#endif
#ifdef CROPS
    const int down = (int)crops[2 * number], right = (int)crops[2 * number + 1];
#else
    const int down = CROP, right = CROP;
#endif
    for (unsigned n = threadIdx.x; n < CHANNELS * (HEIGHT + 2) * (WIDTH + 2); n += 256) {
        const int c = n / ((HEIGHT + 2) * (WIDTH + 2)), h = (int)(n / (WIDTH + 2) % (HEIGHT + 2)) - 1;
        const int w = (int)(n % (WIDTH + 2)) - 1, column = right + (mirrored ? WIDTH - 1 - w : w);
        const bool inside = h >= 0 && h < HEIGHT && w >= 0 && w < WIDTH;
        image[n] = inside ? (bf16_bits)to_bf16(0.0f, from[(c * tall + down + h) * broad + column] * scale[c] + shift[c]) : 0;
    }
    __syncthreads();
    // a thread has eight of the 32 channels, at every 64th place: where they lie from that place on
    const unsigned piece = threadIdx.x % 4;
    int away[EIGHT];
#pragma unroll
    for (int e = 0; e < EIGHT; e++) {
        const unsigned channel = piece * EIGHT + e, tap = channel / CHANNELS, c = channel % CHANNELS;
        away[e] = tap < 9 ? (c * (HEIGHT + 2) + tap / 3) * (WIDTH + 2) + tap % 3 : -1;
    }
    const wide start = ((wide)k * IMAGES_A_CLIENT + b) * HEIGHT * WIDTH * 32;
    for (unsigned n = threadIdx.x; n < HEIGHT * WIDTH * 4; n += 256) {
        const int place = n / 4 / WIDTH * (WIDTH + 2) + n / 4 % WIDTH;
        unsigned v[EIGHT];
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] = away[e] < 0 ? 0u : image[place + away[e]];
        *(uint4*)(out + start + (wide)n * EIGHT) = {v[1] << 16 | v[0], v[3] << 16 | v[2], v[5] << 16 | v[4], v[7] << 16 | v[6]};
    }
}
#endif

#ifdef HEAD
// Mean over the plane, the last layer, cross-entropy, and their gradients: a block has one image, a thread one channel.
// What BatchNorm's gradient needs is summed up as in `convolve.cu`.
#ifdef SHORTCUT_SUMS
#define SUMS 3
#else
#define SUMS 2
#endif
extern "C" __global__ void __launch_bounds__(CHANNELS)
head(const bf16_bits* __restrict__ z, const bf16_bits* __restrict__ y, const float* __restrict__ norm,
     const bf16_bits* __restrict__ shortcut_y, const float* __restrict__ shortcut_norm, const float* __restrict__ linear, bf16_bits* __restrict__ g, float* __restrict__ sums, float* __restrict__ means,
     float* __restrict__ errors, float* __restrict__ losses, const wide* __restrict__ labels,
     const wide* __restrict__ samples, const float* __restrict__ weights, const wide* __restrict__ t, int stride,
     int clients) {
    __shared__ float means_of[CHANNELS], logits[CLASSES];
    const int k = blockIdx.z, b = blockIdx.x, c = threadIdx.x, lane = c % 32;
    if (b >= images_of(weights, t, k, clients)) return;
    const wide number = ((wide)*t * clients + k) * IMAGES_A_CLIENT + b, row = (wide)k * IMAGES_A_CLIENT + b;
    const float* const matrix = linear + (wide)k * stride;  // [class][channel], then the biases
    unsigned positive = 0;
    float mean = 0.0f;
#pragma unroll
    for (int p = 0; p < PLANE_SIZE; p++) {
        const float v = __uint_as_float((unsigned)z[(row * PLANE_SIZE + p) * CHANNELS + c] << 16);
        mean += v;
        positive |= (v > 0.0f ? 1u : 0u) << p;
    }
    mean /= PLANE_SIZE;
    means_of[c] = mean;
    means[row * CHANNELS + c] = mean;
    __syncthreads();
    for (int j = c / 32; j < CLASSES; j += CHANNELS / 32) {
        float sum = 0.0f;
        for (int n = lane; n < CHANNELS; n += 32) sum += matrix[j * CHANNELS + n] * means_of[n];
#pragma unroll
        for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (lane == 0) logits[j] = sum + matrix[CLASSES * CHANNELS + j];
    }
    __syncthreads();
    float most = logits[0], whole = 0.0f, gradient = 0.0f;
    for (int j = 1; j < CLASSES; j++) most = most > logits[j] ? most : logits[j];
    for (int j = 0; j < CLASSES; j++) whole += expf(logits[j] - most);
    const int label = (int)labels[samples[number]];
    const float weight = weights[number];
    for (int j = 0; j < CLASSES; j++) {
        const float error = weight * (expf(logits[j] - most) / whole - (j == label ? 1.0f : 0.0f));
        gradient += error * matrix[j * CHANNELS + c];
        if (c == j) errors[row * CLASSES + j] = error;
    }
    if (c == 0) losses[row] = weight * (logf(whole) + most - logits[label]);
    const unsigned each = to_bf16(0.0f, gradient / PLANE_SIZE);  // in the lower half
    const float value = __uint_as_float(each << 16), centre = norm[(wide)k * 4 * CHANNELS + 2 * CHANNELS + c];
    float of_g = 0.0f, of_gy = 0.0f;
#ifdef SHORTCUT_SUMS
    const float shortcut_centre = shortcut_norm[(wide)k * 4 * CHANNELS + 2 * CHANNELS + c];
    float of_shortcut = 0.0f;
#endif
#pragma unroll
    for (int p = 0; p < PLANE_SIZE; p++) {
        const wide at = (row * PLANE_SIZE + p) * CHANNELS + c;
        const bool passes = positive >> p & 1u;
        g[at] = passes ? (bf16_bits)each : (bf16_bits)0;
        if (passes) {
            of_g += value;
            of_gy += value * (__uint_as_float((unsigned)y[at] << 16) - centre);
#ifdef SHORTCUT_SUMS
            of_shortcut += value * (__uint_as_float((unsigned)shortcut_y[at] << 16) - shortcut_centre);
#endif
        }
    }
    sums[row * SUMS * CHANNELS + c] = of_g;
    sums[(row * SUMS + 1) * CHANNELS + c] = of_gy;
#ifdef SHORTCUT_SUMS
    sums[(row * SUMS + 2) * CHANNELS + c] = of_shortcut;
#endif
}

// The gradient of the last layer, and the clients' losses.
extern "C" __global__ void __launch_bounds__(CHANNELS)
head_gradient(const float* __restrict__ means, const float* __restrict__ errors, const float* __restrict__ losses,
              float* __restrict__ gradients, float* __restrict__ loss, const float* __restrict__ weights,
              const wide* __restrict__ t, int stride, int clients) {
    const int k = blockIdx.z, j = blockIdx.x, c = threadIdx.x, count = images_of(weights, t, k, clients);
    const wide row = (wide)k * IMAGES_A_CLIENT;
    float sum = 0.0f, bias = 0.0f, lost = 0.0f;
    for (int b = 0; b < count; b++) {
        const float error = errors[(row + b) * CLASSES + j];
        sum += error * means[(row + b) * CHANNELS + c];
        bias += error;
        if (c == 0 && j == 0) lost += losses[row + b];
    }
    float* const to = gradients + (wide)k * stride;
    to[j * CHANNELS + c] = sum;
    if (c == 0) to[CLASSES * CHANNELS + j] = bias;
    if (c == 0 && j == 0) loss[k] += lost;
}
#endif

#ifdef STEP
// The sum of the parts of a gradient.
extern "C" __global__ void __launch_bounds__(256)
add_parts(const float* __restrict__ parts, float* __restrict__ gradient, int splits, int size, int stride) {
    const int n = blockIdx.x * 256 + threadIdx.x, k = blockIdx.z;
    if (n >= size) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int s = 0; s < splits; s++) sum += parts[((wide)k * splits + s) * size + n];
    gradient[(wide)k * stride + n] = sum;
}

// Stochastic gradient descent as in `sgd.py`, of one number.
__device__ __forceinline__ void descend_one(float& w, float g, float& v, float kept) {
    g += WEIGHT_DECAY * w;
#ifdef HEAVY_BALL
    v = kept * v + g;
#ifdef NESTEROV
    g += MOMENTUM * v;
#else
    g = v;
#endif
#endif
    w -= LEARNING_RATE * g;
}

// Of all numbers, and the new parameters in bfloat16.
extern "C" __global__ void __launch_bounds__(256)
descend(float* __restrict__ theta, const float* __restrict__ gradient, float* __restrict__ velocity,
        bf16_bits* __restrict__ rounded, const float* __restrict__ keep, const float* __restrict__ weights,
        const wide* __restrict__ t, int size, int clients) {
    // a thread has four numbers, and four more: neighbours read neighbours
    const int first = blockIdx.x * 2048 + threadIdx.x * 4, k = blockIdx.z;
#pragma unroll
    for (int n = first; n < first + 2048; n += 1024) {
        if (n >= size) break;
        const wide at = (wide)k * size + n;
        float4 w = *(const float4*)(theta + at), g = *(const float4*)(gradient + at);
#ifdef HEAVY_BALL
        float4 v = *(const float4*)(velocity + at);
#endif
        if (images_of(weights, t, k, clients) == 0) return;  // asked only here, while the numbers are on their way
        const float kept = MOMENTUM * keep[(wide)*t * clients + k];
#ifdef HEAVY_BALL
        descend_one(w.x, g.x, v.x, kept); descend_one(w.y, g.y, v.y, kept);
        descend_one(w.z, g.z, v.z, kept); descend_one(w.w, g.w, v.w, kept);
        *(float4*)(velocity + at) = v;
#else
        float none = 0.0f;
        descend_one(w.x, g.x, none, kept); descend_one(w.y, g.y, none, kept);
        descend_one(w.z, g.z, none, kept); descend_one(w.w, g.w, none, kept);
#endif
        *(float4*)(theta + at) = w;
        *(uint2*)(rounded + at) = {to_bf16(w.y, w.x), to_bf16(w.w, w.z)};
    }
}
#endif
