// The inner part of `convolve.cu`: filters in shared memory, and products of fragments. A phase of the sum has 32 input channels
// and a column of taps: each fragment of what is seen is read once for all of them.
#define WIDE_TILES (OUTS / 8)  // of 8 columns
#define TAPS (EXTENT_W * EXTENT_W)
#define PHASES (TAPS / PHASE_TAPS)  // of 32 channels
#define FILTER_BYTES (SLOT_TAPS * OUTS * 64)

// Which tap of a filter the n-th of a phase is: a phase has a column of taps, in a class (HALVED) all that there are.
__device__ __forceinline__ int tap(int phase, int n, int row_class, int column_class) {
#ifdef HALVED  // odd positions see taps 0 and 2
    const int i = n / (1 + column_class), j = n % (1 + column_class);
    return (row_class ? 2 * i : 1) * 3 + (column_class ? 2 * j : 1);
#else
    return n * EXTENT_W + phase;
#endif
}

// 32 input channels of a phase's taps.
__device__ __forceinline__ void load_filters(unsigned char* to, const bf16_bits* __restrict__ w, int phase, int taps,
                                             int all_taps, int first_in, int first_out, int row_class, int column_class) {
#ifdef BACKWARD  // the forward filters [i][tap][o], as they are: rows i, turned when they are read
    constexpr int all = 32, pieces = OUTS / EIGHT, pitch = OUTS * 2;
    const int row = threadIdx.x / pieces, piece = threadIdx.x % pieces, apart = all_taps * OUT, between = OUT;
    const bf16_bits* const from = w + (wide)(first_in + row) * apart + first_out + piece * EIGHT;
    unsigned char* const place = to + piece_of<OUTS>(row, piece);
#else
    constexpr int all = OUTS, pieces = 4, pitch = 64;
    const int row = threadIdx.x / pieces, piece = threadIdx.x % pieces, apart = all_taps * IN, between = IN;
    const bf16_bits* const from = w + (wide)(first_out + row) * apart + first_in + piece * EIGHT;
    unsigned char* const place = to + piece_of<32>(row, piece);
#endif
    constexpr int at_once = THREADS / pieces;  // rows
    static_assert(all % at_once == 0 && at_once % 8 == 0, "the threads load some rows of a tap at a time");
#pragma unroll
    for (int n = 0; n < SLOT_TAPS; n++) {
        if (n >= taps) break;
        const int number = all_taps > 1 ? tap(phase, n, row_class, column_class) : 0;
#pragma unroll
        for (int further = 0; further < all; further += at_once)
            copy(place + (n * all + further) * pitch, from + number * between + further * apart, true);
    }
}

// acc += the products of a column of TALL taps and 32 channels. The thread's part of the first fragment lies at `from`, the
// taps of the filters lie `apart`; backward the lowest comes first.
template <int TALL>
__device__ __forceinline__ void add_products(float (&acc)[ROW_TILES][WIDE_TILES][4], const unsigned char* seen, int from,
                                             const unsigned char* filters, int apart, int lane) {
    constexpr int rows = (ROW_TILES - 1) * STRIDE + TALL;
    constexpr bool edges = PADDING && WHOLE && ROW_TILES == PLANE_H;  // the first and the last row are zeros
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned b[TALL][WIDE_TILES / 2][4];
#pragma unroll
        for (int down = 0; down < TALL; down++)
#pragma unroll
            for (int n = 0; n < WIDE_TILES / 2; n++) {
#ifdef BACKWARD
                turned_fragments(b[down][n], filters + (TALL - 1 - down) * apart + half * 16 * OUTS * 2
                                                 + piece_of<OUTS>((lane / 8 & 1) * 8 + lane % 8, 2 * n + lane / 16));
#else
                fragments(b[down][n], filters + down * apart + n * 16 * 64
                                          + piece_of<32>(lane / 16 * 8 + lane % 8, half * 2 + (lane / 8 & 1)));
#endif
            }
#pragma unroll
        for (int row = 0; row < rows; row++) {
            if (edges && (row == 0 || (STRIDE == 1 && row == rows - 1))) continue;
            unsigned a[4];
            fragments(a, seen + (from ^ half * 32) + row * SEEN_W * 64);
#pragma unroll
            for (int down = 0; down < TALL; down++) {
                const int m = (row - down) / STRIDE;
                if (row < down || (row - down) % STRIDE || m >= ROW_TILES) continue;
#pragma unroll
                for (int n = 0; n < WIDE_TILES; n++) {
                    const unsigned column[2] = {b[down][n / 2][n % 2 * 2], b[down][n / 2][n % 2 * 2 + 1]};
                    multiply(acc[m][n], a, column);
                }
            }
        }
    }
}
