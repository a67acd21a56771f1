// The products of a convolution as tiles of an implicit matrix product: out[position, o] = sum over taps and channels i of
// seen[position + tap, i] filter[tap, i, o]. A block makes TILE positions x OUTS output channels, a warp 16 ROW_TILES of these
// positions. The sum goes in phases: 32 input channels and PHASE_TAPS taps; what a phase needs is fetched DEPTH phases ahead.
//
// forward:  `source` are activations, the sums of y and y^2 of every channel go to `sums`.
// BACKWARD: `source` is the gradient of the convolution's output, the result that of its input. A filter's taps run the other
//           way. With stride 2 (HALVED) the input falls into four classes of positions, (even, even) to (odd, odd), which see
//           1, 2, 2 and 4 taps; the 1 x 1 filter of a short cut (SHORTCUT) joins the first. The epilogue adds the gradient
//           that comes along an identity (ADD), cuts off what ReLU cut, and sums up what BatchNorm's gradient needs.
#define WIDE_TILES (OUTS / 8)  // of 8 columns
#define TAPS (EXTENT_W * EXTENT_W)
#define PHASES (TAPS / PHASE_TAPS)  // of 32 channels
#define SLICES (IN / 32)
#define SEEN_BYTES (SEEN * 64)
#define FILTER_BYTES (SLOT_TAPS * OUTS * 64)
#define PITCH (OUTS * 2 + 16)  // bytes of a row of results in shared memory: rows begin in different banks
#ifdef BACKWARD
#ifdef SHORTCUT_SUMS
#define SUMS 3
#else
#define SUMS 2
#endif
#else
#define SUMS 2
#endif

// How many taps a class sees.
__device__ __forceinline__ int taps_of(int row_class, int column_class) {
#ifdef HALVED
    return (1 + row_class) * (1 + column_class);
#else
    return TAPS;
#endif
}

// Which filter tap the n-th of a class is, and how far away it looks.
__device__ __forceinline__ void tap(int n, int row_class, int column_class, int& filter_tap, int& away) {
#ifdef HALVED
    const int columns = 1 + column_class, i = n / columns, j = n % columns;
    const int r = row_class ? 2 * i : 1, s = column_class ? 2 * j : 1;  // odd positions: taps 0 and 2, the first looks one further
    filter_tap = r * 3 + s;
    away = (row_class && i == 0 ? SEEN_W : 0) + (column_class && j == 0 ? 1 : 0);
#elif defined(BACKWARD)
    filter_tap = n;
    away = (EXTENT_W - 1 - n / EXTENT_W) * SEEN_W + EXTENT_W - 1 - n % EXTENT_W;
#else
    filter_tap = n;
    away = n / EXTENT_W * SEEN_W + n % EXTENT_W;
#endif
}

// 32 input channels of the taps first_tap, first_tap + 1, ...
__device__ __forceinline__ void load_filters(unsigned char* to, const bf16_bits* __restrict__ w, int taps, int first_tap,
                                             int all_taps, int first_in, int first_out, int row_class, int column_class) {
#ifdef BACKWARD  // the forward filters [i][tap][o], as they are: rows i, turned when they are read
    for (int n = threadIdx.x; n < taps * 32 * (OUTS / EIGHT); n += THREADS) {
        const int piece = n % (OUTS / EIGHT), i = n / (OUTS / EIGHT) % 32, number = n / (OUTS / EIGHT) / 32;
        int filter_tap = 0, away;
        if (all_taps > 1) tap(first_tap + number, row_class, column_class, filter_tap, away);
        const wide at = ((wide)(first_in + i) * all_taps + filter_tap) * OUT + first_out + piece * EIGHT;
        copy(to + piece_of<OUTS>(number * 32 + i, piece), w + at, true);
    }
#else
    for (int n = threadIdx.x; n < taps * OUTS * 4; n += THREADS) {
        const int piece = n % 4, o = n / 4 % OUTS, number = n / 4 / OUTS;
        const wide at = ((wide)(first_out + o) * all_taps + first_tap + number) * IN + first_in + piece * EIGHT;
        copy(to + piece_of<32>(number * OUTS + o, piece), w + at, true);
    }
#endif
}

// acc += the products of one phase.
__device__ __forceinline__ void add_products(float (&acc)[ROW_TILES][WIDE_TILES][4], const unsigned char* seen,
                                             const unsigned char* filters, const int (&from)[ROW_TILES], int taps,
                                             int first_tap, bool one_tap, int row_class, int column_class, int lane) {
#pragma unroll 1
    for (int number = 0; number < taps; number++) {
        int filter_tap, away = 0;
        if (!one_tap) tap(first_tap + number, row_class, column_class, filter_tap, away);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
                fragments(a[m], seen + piece_of<32>(from[m] + away, half * 2 + lane / 16));
#pragma unroll
            for (int n = 0; n < WIDE_TILES; n += 2) {
                unsigned b[4];
#ifdef BACKWARD
                turned_fragments(b, filters + piece_of<OUTS>(number * 32 + half * 16 + (lane / 8 & 1) * 8 + lane % 8, n + lane / 16));
#else
                fragments(b, filters + piece_of<32>(number * OUTS + n * 8 + lane / 16 * 8 + lane % 8, half * 2 + (lane / 8 & 1)));
#endif
                const unsigned first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++) {
                    multiply(acc[m][n], a[m], first);
                    multiply(acc[m][n + 1], a[m], second);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
convolve(const bf16_bits* __restrict__ source, const bf16_bits* __restrict__ filter, bf16_bits* __restrict__ out,
         float* __restrict__ sums, const float* __restrict__ weights, const wide* __restrict__ t,
         const bf16_bits* __restrict__ shortcut_source, const bf16_bits* __restrict__ shortcut_filter,
         const bf16_bits* __restrict__ add, const bf16_bits* __restrict__ mask, const bf16_bits* __restrict__ y,
         const float* __restrict__ norm, const bf16_bits* __restrict__ shortcut_y,
         const float* __restrict__ shortcut_norm, int filter_stride, int clients) {
    // blocks that see the same lie side by side
    const int k = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int category = blockIdx.x % CLASSES, first_out = blockIdx.x / CLASSES % (OUT / OUTS) * OUTS;
    const int tile = blockIdx.x / (CLASSES * (OUT / OUTS)), tiles = gridDim.x / (CLASSES * (OUT / OUTS));
    const int row_class = category / 2, column_class = category % 2;  // 0 unless HALVED
    const int first_image = tile / TILES_AN_IMAGE * SEVERAL, first_row = tile % TILES_AN_IMAGE * TILE_H;
    const int count = images_of(weights, t, k, clients);
    if (first_image >= count) return;

    unsigned char* const seen = shared;                               // SEEN_SLOTS of them
    unsigned char* const filters = shared + SEEN_SLOTS * SEEN_BYTES;  // DEPTH + 1
    const wide images = (wide)k * IMAGES_A_CLIENT, start = images * SOURCE_H * SOURCE_W * IN;
    const int taps = taps_of(row_class, column_class);
    const auto fetch = [&](int phase) {
        const int slice = phase / PHASES;
        unsigned char* const seen_to = seen + slice % SEEN_SLOTS * SEEN_BYTES;
        unsigned char* const filters_to = filters + phase % (DEPTH + 1) * FILTER_BYTES;
#ifdef SHORTCUT
        if (slice >= SLICES) {
            load_seen(seen_to, shortcut_source + start + (slice - SLICES) * 32, IN, first_image, first_row, count);
            load_filters(filters_to, shortcut_filter + (wide)k * filter_stride, 1, 0, 1, (slice - SLICES) * 32, first_out, 0, 0);
            return;
        }
#endif
        if (phase % PHASES == 0) load_seen(seen_to, source + start + slice * 32, IN, first_image, first_row, count);
        load_filters(filters_to, filter + (wide)k * filter_stride, taps / PHASES, phase % PHASES * PHASE_TAPS, TAPS,
                     slice * 32, first_out, row_class, column_class);
    };

    int from[ROW_TILES];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) from[m] = seen_from((warp * ROW_TILES + m) * 16 + lane % 16);
    float acc[ROW_TILES][WIDE_TILES][4];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WIDE_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][n][e] = 0.0f;

    int phases = SLICES * PHASES;
#ifdef SHORTCUT
    if (category == 0) phases += SLICES;
#endif
#pragma unroll
    for (int phase = 0; phase < DEPTH; phase++) {
        if (phase < phases) fetch(phase);
        copies_end();
    }
#pragma unroll 1
    for (int phase = 0; phase < phases; phase++) {
        copies_wait<DEPTH - 1>();
        __syncthreads();  // everybody's copies have arrived, and the slot of the phase before is free
        if (phase + DEPTH < phases) fetch(phase + DEPTH);
        copies_end();
        const int slice = phase / PHASES;
        const bool one_tap = TAPS == 1 || slice >= SLICES;
        add_products(acc, seen + slice % SEEN_SLOTS * SEEN_BYTES, filters + phase % (DEPTH + 1) * FILTER_BYTES, from,
                     one_tap ? 1 : taps / PHASES, phase % PHASES * PHASE_TAPS, one_tap, row_class, column_class, lane);
    }

    __syncthreads();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WIDE_TILES; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = (warp * ROW_TILES + m) * 16 + GROUP + 8 * e;
                *(unsigned*)(shared + row * PITCH + n * 16 + PLACE * 4) = to_bf16(acc[m][n][2 * e + 1], acc[m][n][2 * e]);
            }
    __syncthreads();

    // The epilogue: a thread has eight channels, of every few positions.
    const int octet = threadIdx.x % (OUTS / EIGHT), channel = first_out + octet * EIGHT;
    float total[SUMS][EIGHT];
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
        for (int e = 0; e < EIGHT; e++) total[s][e] = 0.0f;
#ifdef BACKWARD
    const float* const of_client = norm + (wide)k * 4 * OUT + channel;  // scale, shift, mean, 1 / deviation: [4][OUT]
    float mean[EIGHT];
    load(of_client + 2 * OUT, mean);
#ifndef MASK
    float scale[EIGHT], shift[EIGHT];
    load(of_client, scale);
    load(of_client + OUT, shift);
#endif
#ifdef SHORTCUT_SUMS
    float shortcut_mean[EIGHT];
    load(shortcut_norm + (wide)k * 4 * OUT + 2 * OUT + channel, shortcut_mean);
#endif
#endif
    for (int p = threadIdx.x / (OUTS / EIGHT); p < TILE; p += THREADS / (OUTS / EIGHT)) {
        const Place place = place_of(p);
        const int b = first_image + place.image;
        if (b >= count) continue;
        float v[EIGHT];
        const uint4 packed = *(const uint4*)(shared + p * PITCH + octet * 16);
        unpack(packed, v);
#ifdef HALVED
        const int h = 2 * (first_row + place.row) + row_class, w = 2 * place.column + column_class;
        const wide at = (((images + b) * (2 * PLANE_H) + h) * (2 * PLANE_W) + w) * OUT + channel;
#else
        const wide at = (((images + b) * PLANE_H + first_row + place.row) * PLANE_W + place.column) * OUT + channel;
#endif
#ifdef BACKWARD
        float value[EIGHT];
#ifdef ADD
        load(add + at, value);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] += value[e];
#endif
#ifdef MASK
        load(mask + at, value);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] = value[e] > 0.0f ? v[e] : 0.0f;
        load(y + at, value);
#else
        load(y + at, value);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] = scale[e] * value[e] + shift[e] > 0.0f ? v[e] : 0.0f;
#endif
        const uint4 rounded = pack(v);
        *(uint4*)(out + at) = rounded;
        unpack(rounded, v);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
            total[0][e] += v[e];
            total[1][e] += v[e] * (value[e] - mean[e]);
        }
#ifdef SHORTCUT_SUMS
        load(shortcut_y + at, value);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) total[2][e] += v[e] * (value[e] - shortcut_mean[e]);
#endif
#else
        *(uint4*)(out + at) = packed;
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
            total[0][e] += v[e];
            total[1][e] += v[e] * v[e];
        }
#endif
    }
    float* const by_warp = (float*)(shared + TILE * PITCH);  // [warp][sum][channel]
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
#pragma unroll
            for (int other = OUTS / EIGHT; other < 32; other *= 2) total[s][e] += __shfl_xor_sync(~0u, total[s][e], other);
            if (lane < OUTS / EIGHT) by_warp[(warp * SUMS + s) * OUTS + octet * EIGHT + e] = total[s][e];
        }
    __syncthreads();
    for (int n = threadIdx.x; n < SUMS * OUTS; n += THREADS) {
        float sum = 0.0f;
        for (int other = 0; other < THREADS / 32; other++) sum += by_warp[other * SUMS * OUTS + n];
        sums[((((wide)k * tiles + tile) * CLASSES + category) * SUMS + n / OUTS) * OUT + first_out + n % OUTS] = sum;
    }
}
