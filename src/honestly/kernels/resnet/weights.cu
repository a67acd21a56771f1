// The gradient of a convolution's filters: out[o, tap, i] = sum over positions of gradient[position, o] seen[position + tap, i].
// A block has OUTS output channels, 32 input channels, all taps and every SPLITS-th tile of a client's images; a warp has
// 32 of the former and 8 of the latter.
#define TAPS (EXTENT * EXTENT)
#define SLOT (SEEN_BYTES + TILE * OUTS * 2)  // bytes of shared memory of a tile; the next one is fetched meanwhile

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_A_PROCESSOR)
weight_gradient(const bf16_bits* __restrict__ source, const float* __restrict__ norm, const bf16_bits* __restrict__ gradient,
                float* __restrict__ parts, const float* __restrict__ weights, const wide* __restrict__ t, int part_stride,
                int clients) {
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

    // What the thread loads of a tile's gradient: eight channels of every `step`-th position. In shared memory the positions of
    // a fragment lie side by side.
    constexpr int step = THREADS / (OUTS / EIGHT);
    const auto row_of = [](int p) {
        const Place at = place_of(p);
        return ((at.image / FRAGMENT_IMAGES * TILE_H + at.row) * ACROSS + at.column / FRAGMENT_W) * 16
               + at.image % FRAGMENT_IMAGES * FRAGMENT_W + at.column % FRAGMENT_W;
    };
    const int position = threadIdx.x / (OUTS / EIGHT), piece = threadIdx.x % (OUTS / EIGHT);
    const bf16_bits* const gradient_from = gradient + (images * PLANE + position) * OUT + first_out + piece * EIGHT;
    const bf16_bits* const seen_from = source + images * SOURCE_H * SOURCE_W * IN + first_in;
    const auto fetch = [&](int tile, int slot) {
        const int first_image = tile / TILES_AN_IMAGE * SEVERAL, first_row = tile % TILES_AN_IMAGE * TILE_H;
        unsigned char* const seen = shared + slot * SLOT;
        unsigned char* const to = seen + SEEN_BYTES + piece_of<OUTS>(row_of(position), piece);
        load_seen(seen, seen_from, IN, first_image, first_row, count);
        const bf16_bits* const from = gradient_from + (wide)(first_image * PLANE + first_row * PLANE_W) * OUT;
        const int image = first_image + place_of(position).image;
#pragma unroll
        for (int further = 0; further < TILE; further += step)
            copy(to + row_of(further) * OUTS * 2, from + further * OUT, SEVERAL == 1 || image + place_of(further).image < count);
    };

    // The rows that the thread names: of the gradient, and of what is seen, which is read in pairs of columns (of the taps of a
    // row, then of the row below): half of the lanes name each.
    int gradient_row[2], seen_row[EXTENT];
#pragma unroll
    for (int m = 0; m < 2; m++)
        gradient_row[m] = SEEN_BYTES + piece_of<OUTS>(lane / 16 * 8 + lane % 8, outs / 8 + m * 2 + (lane / 8 & 1));
#pragma unroll
    for (int pair = 0; pair < EXTENT; pair++) {
        const int n = lane % 16, column = 2 * pair + lane / 16;
        seen_row[pair] = seen_at(n / FRAGMENT_W, column / EXTENT, n % FRAGMENT_W * STRIDE + column % EXTENT, octet);
    }

#pragma unroll
    for (int slot = 0; slot < 2; slot++) clear_seen(shared + slot * SLOT);
    __syncthreads();
    if ((int)blockIdx.x < tiles) fetch(blockIdx.x, 0);
    copies_end();
    constexpr bool edges = PADDING && WHOLE;  // the first and, but for STRIDE 2, the last row are zeros
    int slot = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += splits) {
        copies_wait<0>();
#ifdef NORMALISED
        normalise_seen(shared + slot * SLOT, norm + (wide)k * 4 * IN + first_in, IN, tile / TILES_AN_IMAGE * SEVERAL,
                       tile % TILES_AN_IMAGE * TILE_H, count);
#endif
        __syncthreads();  // everybody's copies have arrived, and the other slot is free
        if (tile + splits < tiles) fetch(tile + splits, 1 - slot);
        copies_end();
        const unsigned char* const now = shared + slot * SLOT;
        slot = 1 - slot;
#pragma unroll
        for (int stack = 0; stack < ACROSS * (SEVERAL / FRAGMENT_IMAGES); stack++) {  // fragments one below another
            const int image = stack / ACROSS * FRAGMENT_IMAGES, across = stack % ACROSS;
            const unsigned char* const seen = now + (image * SEEN_H * SEEN_W + across * FRAGMENT_W) * 64;
            unsigned b[(SEEN_H * EXTENT + 1) / 2][4];
#pragma unroll
            for (int row = 0; row < TILE_H; row++) {
                const int before = row ? (((row - 1) * STRIDE + EXTENT) * EXTENT + 1) / 2 : 0;  // pairs that are there
#pragma unroll
                for (int pair = 0; pair < (SEEN_H * EXTENT + 1) / 2; pair++)
                    if (pair >= before && 2 * pair < (row * STRIDE + EXTENT) * EXTENT)
                        turned_fragments(b[pair], seen + seen_row[pair % EXTENT] + pair / EXTENT * 2 * SEEN_W * 64);
                unsigned a[2][4];
#pragma unroll
                for (int m = 0; m < 2; m++)
                    turned_fragments(a[m], now + gradient_row[m] + ((image / FRAGMENT_IMAGES * TILE_H + row) * ACROSS + across) * 16 * OUTS * 2);
#pragma unroll
                for (int tap = 0; tap < TAPS; tap++) {
                    const int below = row * STRIDE + tap / EXTENT, column = below * EXTENT + tap % EXTENT;
                    if (edges && (below == 0 || (STRIDE == 1 && below == SEEN_H - 1))) continue;
                    const unsigned two[2] = {b[column / 2][column % 2 * 2], b[column / 2][column % 2 * 2 + 1]};
#pragma unroll
                    for (int m = 0; m < 2; m++) multiply(acc[m][tap], a[m], two);
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
