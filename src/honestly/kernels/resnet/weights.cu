// The gradient of a convolution's filters: out[o, tap, i] = sum over positions of gradient[position, o] seen[position + tap, i].
// A block has OUTS output channels, 32 input channels, all taps and every SPLITS-th tile of a client's images; a warp has
// 32 of the former and 8 of the latter.
#define TAPS (EXTENT * EXTENT)
#define SLOT (SEEN_BYTES + TILE * OUTS * 2)  // bytes of shared memory of a tile; the next one is fetched meanwhile

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
weight_gradient(const bf16_bits* __restrict__ source, const bf16_bits* __restrict__ gradient, float* __restrict__ parts,
                const float* __restrict__ weights, const wide* __restrict__ t, int part_stride, int clients) {
    const int k = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32, splits = gridDim.x;
    const int first_in = blockIdx.y % (IN / 32) * 32, first_out = blockIdx.y / (IN / 32) * OUTS;
    const int count = images_of(weights, t, k, clients);
    const int tiles = SEVERAL > 1 ? (count + SEVERAL - 1) / SEVERAL : count * TILES_AN_IMAGE;
    const wide images = (wide)k * IMAGES_A_CLIENT;
    const int outs = warp / 4 * 32, octet = warp % 4;
    float acc[2][TAPS][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][tap][e] = 0.0f;

    // What the thread loads of a tile's gradient: eight channels of every `step`-th position.
    constexpr int step = THREADS / (OUTS / EIGHT);
    const int position = threadIdx.x / (OUTS / EIGHT), piece = threadIdx.x % (OUTS / EIGHT);
    const bf16_bits* const gradient_from = gradient + (images * PLANE + position) * OUT + first_out + piece * EIGHT;
    const bf16_bits* const seen_from = source + images * SOURCE_H * SOURCE_W * IN + first_in;
    const auto fetch = [&](int tile, int slot) {
        const int first_image = tile / TILES_AN_IMAGE * SEVERAL, first_row = tile % TILES_AN_IMAGE * TILE_H;
        unsigned char* const seen = shared + slot * SLOT;
        unsigned char* const to = seen + SEEN_BYTES + piece_of<OUTS>(position, piece);
        load_seen(seen, seen_from, IN, first_image, first_row, count);
        const wide first = (wide)(first_image * PLANE + first_row * PLANE_W) * OUT;
        const int image = first_image + place_of(position).image;
#pragma unroll
        for (int further = 0; further < TILE; further += step) {
            const bool inside = SEVERAL == 1 || image + place_of(further).image < count;
            copy(to + further * OUTS * 2, gradient_from + (inside ? first + further * OUT : 0), inside);
        }
    };

    // The rows that the thread names: of the gradient, and of what each pair of taps sees (half of the lanes name each).
    int gradient_row[2], seen_row[(TAPS + 1) / 2];
#pragma unroll
    for (int m = 0; m < 2; m++)
        gradient_row[m] = SEEN_BYTES + piece_of<OUTS>(lane / 16 * 8 + lane % 8, outs / 8 + m * 2 + (lane / 8 & 1));
    const Place mine = place_of(lane % 16);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap += 2) {
        const int own = lane < 16 || tap + 1 == TAPS ? tap : tap + 1;
        seen_row[tap / 2] = seen_at(mine.image, mine.row * STRIDE + own / EXTENT, mine.column * STRIDE + own % EXTENT, octet);
    }

#pragma unroll
    for (int slot = 0; slot < 2; slot++) clear_seen(shared + slot * SLOT);
    __syncthreads();
    if ((int)blockIdx.x < tiles) fetch(blockIdx.x, 0);
    copies_end();
    int slot = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += splits) {
        copies_wait<0>();
        __syncthreads();  // everybody's copies have arrived, and the other slot is free
        if (tile + splits < tiles) fetch(tile + splits, 1 - slot);
        copies_end();
        const unsigned char* const now = shared + slot * SLOT;
        slot = 1 - slot;
#pragma unroll
        for (int p = 0; p < TILE; p += 16) {
            unsigned a[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++) turned_fragments(a[m], now + gradient_row[m] + p * OUTS * 2);
#pragma unroll
            for (int tap = 0; tap < TAPS; tap += 2) {
                unsigned b[4];
                turned_fragments(b, now + seen_row[tap / 2] + seen_further(p));
                const unsigned first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply(acc[m][tap], a[m], first);
                    if (tap + 1 < TAPS) multiply(acc[m][tap + 1 < TAPS ? tap + 1 : tap], a[m], second);
                }
            }
        }
    }
    float* const part = parts + ((wide)k * splits + blockIdx.x) * part_stride;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int o = first_out + outs + m * 16 + GROUP + 8 * e, i = first_in + octet * 8 + PLACE * 2;
                *(float2*)(part + ((wide)o * TAPS + tap) * IN + i) = {acc[m][tap][2 * e], acc[m][tap][2 * e + 1]};
            }
}
