// BatchNorm over the images and places of one client, y -> z = relu(scale y + shift [+ short cut]), and its gradient.
#define EPSILON 1e-5
// LANES rows of threads add up the tiles' sums; a thread of the elementwise kernels has POSITIONS positions.

// Two of the `many` sums of channel c over a client's tiles, the first and the `which`-th: 32 channels x LANES threads.
__device__ __forceinline__ void sum_up(const float* __restrict__ sums, int tiles, int many, int which, int channels, int c,
                                       double& first, double& second) {
    __shared__ float rows[2][LANES][32];
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    float one = 0.0f, other = 0.0f;
#pragma unroll 4
    for (int tile = row; tile < tiles; tile += LANES) {
        one += sums[(wide)tile * many * channels + c];
        other += sums[((wide)tile * many + which) * channels + c];
    }
    rows[0][row][column] = one;
    rows[1][row][column] = other;
    __syncthreads();
    first = second = 0.0;
    for (int n = 0; n < LANES; n++) {
        first += rows[0][n][column];
        second += rows[1][n][column];
    }
}

// How many tiles have an image: `several` images a tile or so many tiles an image.
__device__ __forceinline__ int tiles_of(int count, int tiles_an_image, int several) {
    return several > 1 ? (count + several - 1) / several : count * tiles_an_image;
}

// norm: [client][scale, shift, mean, 1 / deviation][channel]. With RUNNING, the share of a mini-batch, also the client's running
// mean and, behind it, variance, which is that of a sample: divided by n - 1.
extern "C" __global__ void __launch_bounds__(32 * LANES)
make_norm(const float* __restrict__ sums, const float* __restrict__ parameters, float* __restrict__ norm,
          float* __restrict__ running, const float* __restrict__ weights, const wide* __restrict__ t, int parameter_stride,
          int running_stride, int channels, int plane, int tiles, int tiles_an_image, int several, int clients) {
    const int k = blockIdx.z, c = blockIdx.x * 32 + threadIdx.x % 32, count = images_of(weights, t, k, clients);
    if (count == 0) return;
    const float* const mine = sums + (wide)k * tiles * 2 * channels;
    const int used = tiles_of(count, tiles_an_image, several);
    double sum, squares;
    sum_up(mine, used, 2, 1, channels, c, sum, squares);
    if (threadIdx.x >= 32) return;
    const double n = (double)count * plane, mean = sum / n, square = squares / n - mean * mean;
    const float deviation = (float)(1.0 / sqrt((square > 0.0 ? square : 0.0) + EPSILON));
    const float* const own = parameters + (wide)k * parameter_stride;  // gamma, then beta
    float* const to = norm + (wide)k * 4 * channels + c;
    const float scale = own[c] * deviation;
    to[0] = scale;
    to[channels] = own[channels + c] - (float)mean * scale;
    to[2 * channels] = (float)mean;
    to[3 * channels] = deviation;
#ifdef RUNNING
    float* const average = running + (wide)k * running_stride + c;
    const double sample = (square > 0.0 ? square : 0.0) * n / (n - 1.0);
    average[0] += RUNNING * ((float)mean - average[0]);
    average[channels] += RUNNING * ((float)sample - average[channels]);
#endif
}

// The gradient of y is scale (g - <g> - h <g h>) = scale g + slope y + offset, where h is y normalised; that of gamma is
// the sum of g h, that of beta the sum of g. sums: g, g (y - mean) [of a short cut: the third]. back: [client][slope, offset].
extern "C" __global__ void __launch_bounds__(32 * LANES)
make_norm_gradient(const float* __restrict__ sums, const float* __restrict__ norm, float* __restrict__ back,
                   float* __restrict__ gradients, const float* __restrict__ weights, const wide* __restrict__ t,
                   int gradient_stride, int channels, int plane, int tiles, int classes, int tiles_an_image, int several,
                   int many, int which, int clients) {
    const int k = blockIdx.z, c = blockIdx.x * 32 + threadIdx.x % 32, count = images_of(weights, t, k, clients);
    if (count == 0) return;
    const float* const mine = sums + (wide)k * tiles * classes * many * channels;
    const int used = tiles_of(count, tiles_an_image, several) * classes;
    double of_g, of_gy;
    sum_up(mine, used, many, which, channels, c, of_g, of_gy);
    if (threadIdx.x >= 32) return;
    const double n = (double)count * plane;
    const float* const own = norm + (wide)k * 4 * channels + c;
    const double scale = own[0], mean = own[2 * channels], deviation = own[3 * channels];
    const double of_gh = of_gy * deviation, slope = -scale * deviation * of_gh / n;
    back[(wide)k * 2 * channels + c] = (float)slope;
    back[(wide)k * 2 * channels + channels + c] = (float)(-scale * of_g / n - slope * mean);
    gradients[(wide)k * gradient_stride + c] = (float)of_gh;
    gradients[(wide)k * gradient_stride + channels + c] = (float)of_g;
}

// What a thread of an elementwise kernel has: eight channels from c on, at every 256th of the places first .. end - 1, which
// count from `start` on. (256 is a multiple of channels / EIGHT, so that the channels are always the same.)
struct Share { int first, end, c; wide start; };
__device__ __forceinline__ Share share_of(int k, int count, int channels, int plane) {
    const int octets = channels / EIGHT, first = blockIdx.x * 256 * POSITIONS + threadIdx.x;
    return {first, count * plane * octets, first % octets * EIGHT, (wide)k * IMAGES_A_CLIENT * plane * octets};
}

// z = relu(scale y + shift), plus the short cut `other` as it is (IDENTITY) or normalised (PROJECTED) before ReLU. With a short
// cut `signs` gets a bit for each number, 1 where z is positive: all that the gradient needs of it.
extern "C" __global__ void __launch_bounds__(256)
activate(const bf16_bits* __restrict__ y, const float* __restrict__ norm, const bf16_bits* __restrict__ other,
         const float* __restrict__ other_norm, bf16_bits* __restrict__ z, unsigned char* __restrict__ signs,
         const float* __restrict__ weights, const wide* __restrict__ t, int channels, int plane, int clients) {
    const int k = blockIdx.z;
    const Share mine = share_of(k, images_of(weights, t, k, clients), channels, plane);
    if (mine.first >= mine.end) return;
    const int c = mine.c;
    float scale[EIGHT], shift[EIGHT];
    load(norm + (wide)k * 4 * channels + c, scale);
    load(norm + (wide)k * 4 * channels + channels + c, shift);
#ifdef PROJECTED
    float other_scale[EIGHT], other_shift[EIGHT];
    load(other_norm + (wide)k * 4 * channels + c, other_scale);
    load(other_norm + (wide)k * 4 * channels + channels + c, other_shift);
#endif
#pragma unroll 4
    for (int n = 0; n < POSITIONS; n++) {
        const int place = mine.first + n * 256;
        if (place >= mine.end) break;
        const wide at = (mine.start + place) * EIGHT;
        float v[EIGHT], out[EIGHT];
        load(y + at, v);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) out[e] = scale[e] * v[e] + shift[e];
#if defined(IDENTITY) || defined(PROJECTED)
        load(other + at, v);
#pragma unroll
#ifdef PROJECTED
        for (int e = 0; e < EIGHT; e++) out[e] += other_scale[e] * v[e] + other_shift[e];
#else
        for (int e = 0; e < EIGHT; e++) out[e] += v[e];
#endif
        unsigned positive = 0;
#pragma unroll
        for (int e = 0; e < EIGHT; e++) positive |= (out[e] > 0.0f ? 1u : 0u) << e;
        signs[mine.start + place] = (unsigned char)positive;
#endif
#pragma unroll
        for (int e = 0; e < EIGHT; e++) out[e] = out[e] > 0.0f ? out[e] : 0.0f;
        *(uint4*)(z + at) = pack(out);
    }
}

// The gradient of y from that of BatchNorm's output, g.
extern "C" __global__ void __launch_bounds__(256)
norm_gradient(const bf16_bits* __restrict__ g, const bf16_bits* __restrict__ y, const float* __restrict__ norm,
              const float* __restrict__ back, bf16_bits* __restrict__ out, const float* __restrict__ weights,
              const wide* __restrict__ t, int channels, int plane, int clients) {
    const int k = blockIdx.z;
    const Share mine = share_of(k, images_of(weights, t, k, clients), channels, plane);
    if (mine.first >= mine.end) return;
    const int c = mine.c;
    float scale[EIGHT], slope[EIGHT], offset[EIGHT];
    load(norm + (wide)k * 4 * channels + c, scale);
    load(back + (wide)k * 2 * channels + c, slope);
    load(back + (wide)k * 2 * channels + channels + c, offset);
#pragma unroll 4
    for (int n = 0; n < POSITIONS; n++) {
        const int place = mine.first + n * 256;
        if (place >= mine.end) break;
        const wide at = (mine.start + place) * EIGHT;
        float gradient[EIGHT], v[EIGHT];
        load(g + at, gradient);
        load(y + at, v);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] = scale[e] * gradient[e] + slope[e] * v[e] + offset[e];
        *(uint4*)(out + at) = pack(v);
    }
}
