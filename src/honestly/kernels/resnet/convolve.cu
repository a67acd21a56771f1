// The products of a convolution as tiles of an implicit matrix product: out[position, o] = sum over taps and channels i of
// seen[position + tap, i] filter[tap, i, o]. A block makes TILE positions x OUTS output channels, a warp 16 ROW_TILES of these
// positions. The sum goes in phases: 32 input channels and PHASE_TAPS taps; what a phase needs is fetched DEPTH phases ahead.
//
// forward:  `source` are activations, or what becomes of them by BatchNorm and ReLU (NORMALISED); the sums of y and y^2 of every
//           channel go to `sums`.
// BACKWARD: `source` is the gradient of the convolution's output, the result that of its input. A filter's taps run the other
//           way. With stride 2 (HALVED) the input falls into four classes of positions, (even, even) to (odd, odd), which see
//           1, 2, 2 and 4 taps; the 1 x 1 filter of a short cut (SHORTCUT) joins the first. The epilogue adds the gradient
//           that comes along an identity (ADD), cuts off what ReLU cut (SIGNS says what, or y), and sums up what BatchNorm's
//           gradient needs.
#define SLICES (IN / 32)
#define PITCH (OUTS * 2 + 16)  // bytes of a row of results in shared memory: rows begin in different banks
#if defined(BACKWARD) && defined(SHORTCUT_SUMS)
#define SUMS 3
#else
#define SUMS 2
#endif
#ifdef HALVED
#define SPACING 2  // of the result's places
#else
#define SPACING 1
#endif

// Where position p of a tile stands in the result, from that of position 0.
__device__ __forceinline__ int result_at(int p) {
    const Place at = place_of(p);
    return ((at.image * (SPACING * PLANE_H) + at.row * SPACING) * (SPACING * PLANE_W) + at.column * SPACING) * OUT;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
convolve(const bf16_bits* __restrict__ source, const bf16_bits* __restrict__ filter, bf16_bits* __restrict__ out,
         float* __restrict__ sums, const float* __restrict__ weights, const wide* __restrict__ t,
         const bf16_bits* __restrict__ shortcut_source, const bf16_bits* __restrict__ shortcut_filter,
         const bf16_bits* __restrict__ add, const unsigned char* __restrict__ signs, const bf16_bits* __restrict__ y,
         const float* __restrict__ norm, const bf16_bits* __restrict__ shortcut_y,
         const float* __restrict__ shortcut_norm, int filter_stride, int clients) {
    // blocks that see the same lie side by side
    const int k = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int category = blockIdx.x % CLASSES, first_out = blockIdx.x / CLASSES % (OUT / OUTS) * OUTS;
    const int tile = blockIdx.x / (CLASSES * (OUT / OUTS)), tiles = gridDim.x / (CLASSES * (OUT / OUTS));
    const int row_class = category / 2, column_class = category % 2;  // 0 unless HALVED
    const int first_image = tile / TILES_AN_IMAGE * SEVERAL, first_row = tile % TILES_AN_IMAGE * TILE_H;
#ifdef HALVED
    const int taps = (1 + row_class) * (1 + column_class);
#else
    constexpr int taps = SLOT_TAPS;
#endif
    unsigned char* const seen = shared;                               // SEEN_SLOTS of them
    unsigned char* const filters = shared + SEEN_SLOTS * SEEN_BYTES;  // DEPTH + 1
    const auto fetch_filters = [&](int phase) {
        unsigned char* const to = filters + phase % (DEPTH + 1) * FILTER_BYTES;
        const int slice = phase / PHASES;
#ifdef SHORTCUT
        if (slice >= SLICES) {
            load_filters(to, shortcut_filter + (wide)k * filter_stride, 0, 1, 1, (slice - SLICES) * 32, first_out, 0, 0);
            return;
        }
#endif
        load_filters(to, filter + (wide)k * filter_stride, phase % PHASES, taps, TAPS, slice * 32, first_out, row_class,
                     column_class);
    };
    int phases = SLICES * PHASES;
#ifdef SHORTCUT
    if (category == 0) phases += SLICES;
#endif
#pragma unroll
    for (int phase = 0; phase < DEPTH; phase++)  // while others still find out how many images there are, which takes long
        if (phase < phases) fetch_filters(phase);
#pragma unroll
    for (int slot = 0; slot < SEEN_SLOTS; slot++) clear_seen(seen + slot * SEEN_BYTES);
    const int count = images_of(weights, t, k, clients);
    __syncthreads();
    if (first_image >= count) {
        copies_end();
        copies_wait<0>();
        return;
    }
    const wide images = (wide)k * IMAGES_A_CLIENT, start = images * SOURCE_H * SOURCE_W * IN;
    const auto fetch_seen = [&](int phase) {
        const int slice = phase / PHASES;
        unsigned char* const to = seen + slice % SEEN_SLOTS * SEEN_BYTES;
#ifdef SHORTCUT
        if (slice >= SLICES) {
            load_seen(to, shortcut_source + start + (slice - SLICES) * 32, IN, first_image, first_row, count);
            return;
        }
#endif
        if (phase % PHASES == 0) load_seen(to, source + start + slice * 32, IN, first_image, first_row, count);
    };

    // The warp's fragments lie one below another; `mine` is the thread's position of the first.
    constexpr int stacks = TILE_H / ROW_TILES;
    static_assert(TILE_WARPS == ACROSS * stacks * (SEVERAL / FRAGMENT_IMAGES), "the warps' fragments are the tile");
    const auto fragment_place = [&](int n) -> Place {
        return {warp / (ACROSS * stacks) * FRAGMENT_IMAGES + n / FRAGMENT_W, warp / ACROSS % stacks * ROW_TILES,
                warp % ACROSS * FRAGMENT_W + n % FRAGMENT_W};
    };
    const Place mine = fragment_place(lane % 16);
    const auto looks_at = [&](int right) {  // where the places lie that a column of taps sees
        return seen_at(mine.image, mine.row * STRIDE, mine.column * STRIDE + right, lane / 16);
    };
    float acc[ROW_TILES][WIDE_TILES][4];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < WIDE_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][n][e] = 0.0f;

#pragma unroll
    for (int phase = 0; phase < DEPTH; phase++) {
        if (phase < phases) fetch_seen(phase);
        copies_end();
    }
#pragma unroll 1
    for (int phase = 0; phase < phases; phase++) {
        copies_wait<DEPTH - 1>();
#ifdef NORMALISED
        if (phase % PHASES == 0)
            normalise_seen(seen + phase / PHASES % SEEN_SLOTS * SEEN_BYTES, norm + (wide)k * 4 * IN + phase / PHASES * 32, IN,
                           first_image, first_row, count);
#endif
        __syncthreads();  // everybody's copies have arrived, and the slot of the phase before is free
        if (phase + DEPTH < phases) {
            fetch_seen(phase + DEPTH);
            fetch_filters(phase + DEPTH);
        }
        copies_end();
        const int slice = phase / PHASES;
        const unsigned char* const seen_now = seen + slice % SEEN_SLOTS * SEEN_BYTES;
        const unsigned char* const filters_now = filters + phase % (DEPTH + 1) * FILTER_BYTES;
#ifdef HALVED
        if (slice >= SLICES) {
            add_products<1>(acc, seen_now, looks_at(0), filters_now, 0, lane);
            continue;
        }
#pragma unroll 1
        for (int j = 0; j <= column_class; j++) {
            const int from = looks_at(column_class && j == 0), apart = (1 + column_class) * OUTS * 64;
            const unsigned char* const column = filters_now + j * OUTS * 64;
            if (row_class) add_products<2>(acc, seen_now, from, column, apart, lane);
            else add_products<1>(acc, seen_now, from, column, apart, lane);
        }
#else
#ifdef BACKWARD
        const int right = EXTENT_W - 1 - phase % PHASES;
#else
        const int right = phase % PHASES;
#endif
        add_products<EXTENT_W>(acc, seen_now, looks_at(right), filters_now, OUTS * 64, lane);
#endif
    }

    __syncthreads();
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const Place place = fragment_place(GROUP + 8 * e);
        unsigned char* const to = shared + ((place.image * TILE_H + place.row) * PLANE_W + place.column) * PITCH + PLACE * 4;
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < WIDE_TILES; n++)
                *(unsigned*)(to + m * PLANE_W * PITCH + n * 16) = to_bf16(acc[m][n][2 * e + 1], acc[m][n][2 * e]);
    }
    __syncthreads();

    // The epilogue: a thread has eight channels, of every `step`-th position.
    constexpr int step = THREADS / (OUTS / EIGHT);
    const int octet = threadIdx.x % (OUTS / EIGHT), channel = first_out + octet * EIGHT;
    const int position = threadIdx.x / (OUTS / EIGHT), first_b = first_image + place_of(position).image;
    const wide first = (((images + first_image) * (SPACING * PLANE_H) + first_row * SPACING + row_class) * (SPACING * PLANE_W)
                        + column_class) * OUT + channel + result_at(position);
    float total[SUMS][EIGHT];
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
        for (int e = 0; e < EIGHT; e++) total[s][e] = 0.0f;
#ifdef BACKWARD
    const float* const of_client = norm + (wide)k * 4 * OUT + channel;  // scale, shift, mean, 1 / deviation: [4][OUT]
    float mean[EIGHT];
    load(of_client + 2 * OUT, mean);
#ifndef SIGNS
    float scale[EIGHT], shift[EIGHT];
    load(of_client, scale);
    load(of_client + OUT, shift);
#endif
#ifdef SHORTCUT_SUMS
    float shortcut_mean[EIGHT];
    load(shortcut_norm + (wide)k * 4 * OUT + 2 * OUT + channel, shortcut_mean);
#endif
#endif
#pragma unroll
    for (int further = 0; further < TILE; further += step) {
        if (SEVERAL > 1 && first_b + place_of(further).image >= count) break;
        const wide at = first + result_at(further);
        float v[EIGHT];
        const uint4 packed = *(const uint4*)(shared + position * PITCH + further * PITCH + octet * 16);
        unpack(packed, v);
#ifdef BACKWARD
        float value[EIGHT];
#ifdef ADD
        load(add + at, value);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] += value[e];
#endif
#ifdef SIGNS
        const unsigned positive = signs[at / EIGHT];
#pragma unroll
        for (int e = 0; e < EIGHT; e++) v[e] = positive >> e & 1u ? v[e] : 0.0f;
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
    float* const by_position = (float*)(shared + TILE * PITCH);  // [sum][position % step][channel]
#pragma unroll
    for (int s = 0; s < SUMS; s++) store(by_position + (s * step + position) * OUTS + octet * EIGHT, total[s]);
    __syncthreads();
#pragma unroll
    for (int first = 0; first < SUMS * OUTS; first += THREADS) {
        const int n = first + threadIdx.x;
        if (n >= SUMS * OUTS) break;
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < step; p++) sum += by_position[(n / OUTS * step + p) * OUTS + n % OUTS];
        sums[((((wide)k * tiles + tile) * CLASSES + category) * SUMS + n / OUTS) * OUT + first_out + n % OUTS] = sum;
    }
}
