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
#define FILTER_BYTES (SLOT_TAPS * OUTS * 64)
#define PITCH (OUTS * 2 + 16)  // bytes of a row of results in shared memory: rows begin in different banks
#if defined(BACKWARD) && defined(SHORTCUT_SUMS)
#define SUMS 3
#else
#define SUMS 2
#endif
#ifdef HALVED
#define TAP_LOOP _Pragma("unroll 1")
#define SPACING 2  // of the result's places
#else
#define TAP_LOOP _Pragma("unroll")
#define SPACING 1
#endif

// The n-th tap of a phase: which of the filter's it is, and how far down and to the right it looks.
struct Tap { int filter, down, right; };
__device__ __forceinline__ Tap tap(int phase, int n, int row_class, int column_class) {
#ifdef HALVED  // odd positions: taps 0 and 2, the first looks one further
    const int i = n / (1 + column_class), j = n % (1 + column_class);
    return {(row_class ? 2 * i : 1) * 3 + (column_class ? 2 * j : 1), row_class && i == 0, column_class && j == 0};
#else
    const int row = phase * PHASE_TAPS / EXTENT_W, number = phase * PHASE_TAPS + n;
#ifdef BACKWARD
    return {number, EXTENT_W - 1 - row, EXTENT_W - 1 - n};
#else
    return {number, row, n};
#endif
#endif
}

// 32 input channels of a phase's taps.
__device__ __forceinline__ void load_filters(unsigned char* to, const bf16_bits* __restrict__ w, int phase, int taps,
                                             int all_taps, int first_in, int first_out, int row_class, int column_class) {
#ifdef BACKWARD  // the forward filters [i][tap][o], as they are: rows i, turned when they are read
    static_assert(THREADS == 4 * OUTS, "the threads load one tap at a time");
    const int i = threadIdx.x / (OUTS / EIGHT), piece = threadIdx.x % (OUTS / EIGHT);
    const bf16_bits* const from = w + (wide)(first_in + i) * (all_taps * OUT) + first_out + piece * EIGHT;
    unsigned char* const place = to + piece_of<OUTS>(i, piece);
    TAP_LOOP
    for (int n = 0; n < taps; n++)
        copy(place + n * OUTS * 64, from + (all_taps > 1 ? tap(phase, n, row_class, column_class).filter * OUT : 0), true);
#else
    constexpr int at_once = THREADS / 4;  // output channels
    static_assert(OUTS % at_once == 0, "the threads load some channels of one tap at a time");
    const int o = threadIdx.x / 4, piece = threadIdx.x % 4;
    const bf16_bits* const from = w + (wide)(first_out + o) * (TAPS * IN) + phase * PHASE_TAPS * IN + first_in + piece * EIGHT;
    unsigned char* const place = to + piece_of<32>(o, piece);
#pragma unroll
    for (int n = 0; n < PHASE_TAPS; n++)
#pragma unroll
        for (int further = 0; further < OUTS; further += at_once)
            copy(place + (n * OUTS + further) * 64, from + n * IN + further * TAPS * IN, true);
#endif
}

// acc += the products of one phase; `mine` is the place that the thread's first position sees.
__device__ __forceinline__ void add_products(float (&acc)[ROW_TILES][WIDE_TILES][4], const unsigned char* seen,
                                             const unsigned char* filters, const Place& mine, int phase, int taps,
                                             bool one_tap, int row_class, int column_class, int lane) {
    // rows of the filters that the thread names: of both halves of 32 channels, and, backward, of every pair of columns
#ifdef BACKWARD
    const unsigned char* columns[WIDE_TILES / 2];
#pragma unroll
    for (int n = 0; n < WIDE_TILES; n += 2)
        columns[n / 2] = filters + piece_of<OUTS>((lane / 8 & 1) * 8 + lane % 8, n + lane / 16);
#else
    const unsigned char* halves[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        halves[half] = filters + piece_of<32>(lane / 16 * 8 + lane % 8, half * 2 + (lane / 8 & 1));
#endif
    TAP_LOOP
    for (int number = 0; number < taps; number++) {
        const Tap at = one_tap ? Tap{0, 0, 0} : tap(phase, number, row_class, column_class);
        const int from = seen_at(mine.image, mine.row + at.down, mine.column + at.right, lane / 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned a[ROW_TILES][4];
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) fragments(a[m], seen + (from ^ half * 32) + seen_further(m * 16));
#pragma unroll
            for (int n = 0; n < WIDE_TILES; n += 2) {
                unsigned b[4];
#ifdef BACKWARD
                turned_fragments(b, columns[n / 2] + (number * 32 + half * 16) * (OUTS * 2));
#else
                fragments(b, halves[half] + (number * OUTS + n * 8) * 64);
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

// Where position p of a tile stands in the result, from that of position 0.
__device__ __forceinline__ int result_at(int p) {
    const Place at = place_of(p);
    return ((at.image * (SPACING * PLANE_H) + at.row * SPACING) * (SPACING * PLANE_W) + at.column * SPACING) * OUT;
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
#ifdef HALVED
    const int taps = (1 + row_class) * (1 + column_class);
#else
    constexpr int taps = PHASE_TAPS;
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
        load_filters(to, filter + (wide)k * filter_stride, phase % PHASES, taps, TAPS, slice * 32, first_out, row_class, column_class);
    };
    int phases = SLICES * PHASES;
#ifdef SHORTCUT
    if (category == 0) phases += SLICES;
#endif
#pragma unroll
    for (int phase = 0; phase < DEPTH; phase++)  // before it is known how many images there are, which takes long to find out
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

    Place mine = place_of(warp * ROW_TILES * 16 + lane % 16);
    mine.row *= STRIDE;
    mine.column *= STRIDE;
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
        __syncthreads();  // everybody's copies have arrived, and the slot of the phase before is free
        if (phase + DEPTH < phases) {
            fetch_seen(phase + DEPTH);
            fetch_filters(phase + DEPTH);
        }
        copies_end();
        const int slice = phase / PHASES;
        const unsigned char *const seen_now = seen + slice % SEEN_SLOTS * SEEN_BYTES;
        const unsigned char *const filters_now = filters + phase % (DEPTH + 1) * FILTER_BYTES;
#ifdef SHORTCUT
        if (slice >= SLICES) {
            add_products(acc, seen_now, filters_now, mine, 0, 1, true, 0, 0, lane);
            continue;
        }
#endif
        add_products(acc, seen_now, filters_now, mine, phase % PHASES, taps, false, row_class, column_class, lane);
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

    // The epilogue: a thread has eight channels, of every `step`-th position.
    constexpr int step = THREADS / (OUTS / EIGHT);
    const int octet = threadIdx.x % (OUTS / EIGHT), channel = first_out + octet * EIGHT, mine_of_tile = threadIdx.x / (OUTS / EIGHT);
    const int first_b = first_image + place_of(mine_of_tile).image;
    const wide first = (((images + first_image) * (SPACING * PLANE_H) + first_row * SPACING + row_class) * (SPACING * PLANE_W)
                        + column_class) * OUT + channel + result_at(mine_of_tile);
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
#pragma unroll
    for (int further = 0; further < TILE; further += step) {
        if (SEVERAL > 1 && first_b + place_of(further).image >= count) break;
        const wide at = first + result_at(further);
        float v[EIGHT];
        const uint4 packed = *(const uint4*)(shared + mine_of_tile * PITCH + further * PITCH + octet * 16);
        unpack(packed, v);
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
    float* const by_position = (float*)(shared + TILE * PITCH);  // [sum][position % step][channel]
#pragma unroll
    for (int s = 0; s < SUMS; s++) store(by_position + (s * step + mine_of_tile) * OUTS + octet * EIGHT, total[s]);
    __syncthreads();
    const int s = threadIdx.x / OUTS, o = threadIdx.x % OUTS;
    if (s >= SUMS) return;
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < step; p++) sum += by_position[(s * step + p) * OUTS + o];
    sums[((((wide)k * tiles + tile) * CLASSES + category) * SUMS + s) * OUT + first_out + o] = sum;
}
