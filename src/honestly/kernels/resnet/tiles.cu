// What the kernels of residual networks share. Activations are bfloat16, channels last: [client][image][row][column][channel];
// so are the filters: [client][out][tap][in]. A client has `count` images in this step, at most IMAGES_A_CLIENT: nothing is
// read or written beyond them, so that BatchNorm never sees padding. Every sum has a fixed order.

#ifdef EMULATED
static unsigned char shared[232448] __attribute__((aligned(128)));
#else
extern __shared__ __align__(128) unsigned char shared[];
#endif

typedef unsigned short bf16_bits;
#define EIGHT 8  // channels that a thread moves at once: 16 bytes

// How many images a client has in step t: the weights of a mini-batch of n are 1/n, and 0 beyond it.
__device__ __forceinline__ int images_of(const float* __restrict__ weights, const wide* __restrict__ t, int k, int clients) {
    const float first = weights[((wide)*t * clients + k) * IMAGES_A_CLIENT];
    return first > 0.0f ? (int)(1.0f / first + 0.5f) : 0;
}

__device__ __forceinline__ void unpack(const uint4& packed, float (&v)[EIGHT]) {
    const unsigned four[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        v[2 * n] = __uint_as_float(four[n] << 16);
        v[2 * n + 1] = __uint_as_float(four[n] & 0xffff0000u);
    }
}
__device__ __forceinline__ uint4 pack(const float (&v)[EIGHT]) {
    return {to_bf16(v[1], v[0]), to_bf16(v[3], v[2]), to_bf16(v[5], v[4]), to_bf16(v[7], v[6])};
}
__device__ __forceinline__ void load(const bf16_bits* __restrict__ from, float (&v)[EIGHT]) {
    unpack(*(const uint4*)from, v);
}
__device__ __forceinline__ void load(const float* __restrict__ from, float (&v)[EIGHT]) {
    const float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
    v[0] = low.x; v[1] = low.y; v[2] = low.z; v[3] = low.w;
    v[4] = high.x; v[5] = high.y; v[6] = high.z; v[7] = high.w;
}
__device__ __forceinline__ void store(float* __restrict__ to, const float (&v)[EIGHT]) {
    *(float4*)to = {v[0], v[1], v[2], v[3]};
    *(float4*)(to + 4) = {v[4], v[5], v[6], v[7]};
}

// 16 bytes from global to shared memory, while other things are done; zeros where not `inside`. What a thread copied before
// `copies_end` is one group; `copies_wait` waits until at most so many groups of the thread are under way.
__device__ __forceinline__ void copy(unsigned char* to, const bf16_bits* __restrict__ from, bool inside) {
#ifdef EMULATED
    static const uint4 zeros = {0, 0, 0, 0};
    cp_async(to, inside ? (const void*)from : (const void*)&zeros, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
#endif
}
__device__ __forceinline__ void copies_end() {
#ifdef EMULATED
    cp_async_commit_group();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int GROUPS>
__device__ __forceinline__ void copies_wait() {
#ifdef EMULATED
    cp_async_wait_group(GROUPS);
#else
    asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
#endif
}

// Fragments out of shared memory: four 8 x 8 matrices, lane 8 n + i names row i of matrix n.
__device__ __forceinline__ void fragments(unsigned (&r)[4], const unsigned char* row) {
#ifdef EMULATED
    ldmatrix_x4(r, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)));
#endif
}
__device__ __forceinline__ void turned_fragments(unsigned (&r)[4], const unsigned char* row) {
#ifdef EMULATED
    ldmatrix_x4(r, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((unsigned)__cvta_generic_to_shared(row)));
#endif
}

// Where piece n (16 bytes) of a row lies: pieces change places from row to row, so that eight rows lie in different banks.
template <int NUMBERS>
__device__ __forceinline__ int piece_of(int row, int n) {
    static_assert(NUMBERS == 32 || NUMBERS == 64, "a row is 64 or 128 bytes");
    return NUMBERS == 32 ? row * 64 + (n ^ (row >> 1 & 3)) * 16 : row * 128 + (n ^ (row & 7)) * 16;
}

#ifdef TILED
// A tile: TILE positions of a plane of PLANE_H x PLANE_W (whole rows of one image, or whole images), and what a filter of
// EXTENT x EXTENT taps sees from them in a source of SOURCE_H x SOURCE_W, at every STRIDE-th place.
// (Filters of one tap read only the places that they need: LOAD_STEP.) Sides are powers of two, so the places of positions
// p and q add up if the two have no bit in common: what depends on the thread is computed once, the rest is constant.
#define TILE (16 * ROW_TILES * TILE_WARPS)
#define PLANE (PLANE_H * PLANE_W)
#define SEVERAL (PLANE < TILE ? TILE / PLANE : 1)            // images of a tile
#define TILE_H (PLANE < TILE ? PLANE_H : TILE / PLANE_W)
#define TILES_AN_IMAGE (PLANE < TILE ? 1 : PLANE / TILE)
#define SEEN_H ((TILE_H - 1) * STRIDE + EXTENT)
#define SEEN_W ((PLANE_W - 1) * STRIDE + EXTENT)
#define SEEN_ROWS (SEVERAL * SEEN_H)
#define SEEN_BYTES (SEEN_ROWS * SEEN_W * 64)

struct Place { int image, row, column; };
// Position p of a tile.
__device__ __forceinline__ Place place_of(int p) {
    return {p / (TILE_H * PLANE_W), p / PLANE_W % TILE_H, p % PLANE_W};
}

// A row of places in shared memory, 64 bytes each; with STRIDE 2 first the even columns, then the odd ones.
__device__ __forceinline__ int slot_of(int column) {
    return STRIDE == 1 ? column : column % 2 * ((SEEN_W + 1) / 2) + column / 2;
}
// A fragment, the 16 rows of a product, is 16 positions of the same row of an image: 16 columns, or fewer of several images.
// So a tap further down reads the fragment of another position, and each is read once for all of them.
#define FRAGMENT_W (PLANE_W < 16 ? PLANE_W : 16)
#define FRAGMENT_IMAGES (16 / FRAGMENT_W)
#define ACROSS (PLANE_W / FRAGMENT_W)  // fragments of a row

// Where a piece of a place lies. Pieces change places so that those of half a fragment lie in different banks.
__device__ __forceinline__ int seen_at(int image, int row, int column, int piece) {
    const int slot = slot_of(column), turn = slot / 2 ^ (FRAGMENT_W < 8 ? image * 2 : 0);
    return ((image * SEEN_H + row) * SEEN_W + slot) * 64 + (piece ^ (turn & 3)) * 16;
}

// The rows and columns that a tile loads; what it sees beside them are zeros. Tiles of whole images see nothing else above and
// below; of a part of an image there are other rows, and `copy` gives the zeros beyond its edges.
#define WHOLE (PLANE <= TILE)
#define COLUMNS (SOURCE_W / LOAD_STEP)
#define ROWS (WHOLE ? SOURCE_H / LOAD_STEP : SEEN_H)  // of an image

// The pieces that a thread loads of what a tile sees, the same channels of one column of some rows: `use` gets where each lies in
// a slot, the row of the source that it comes from, counted from that of the first, and whether there is such a row.
struct Pieces { int piece, column, number, above, image; };
__device__ __forceinline__ Pieces pieces_of(int first_row) {
    static_assert(THREADS % (4 * COLUMNS) == 0, "a row is loaded by some of the threads");
    const int piece = threadIdx.x % 4u, column = threadIdx.x / 4u % COLUMNS, number = threadIdx.x / (4u * COLUMNS);
    return {piece, column, number, WHOLE ? 0 : first_row * STRIDE - PADDING, WHOLE ? number / ROWS : 0};
}
template <class Use>
__device__ __forceinline__ void for_each(const Pieces& mine, int first_image, int count, const Use& use) {
    constexpr int at_once = THREADS / (4 * COLUMNS);
    const int row = WHOLE ? mine.number % ROWS + PADDING : mine.number;
#pragma unroll
    for (int n = 0; n < SEVERAL * ROWS; n += at_once) {  // (rows of images follow one another)
        if (SEVERAL * ROWS % at_once && mine.number + n >= SEVERAL * ROWS) break;
        const int h = mine.above + mine.number + n, more_images = WHOLE ? n / ROWS : 0, more_rows = WHOLE ? n % ROWS : n;
        const bool inside = WHOLE ? SEVERAL == 1 || first_image + mine.image + more_images < count : h >= 0 && h < SOURCE_H;
        use(seen_at(mine.image + more_images, row + more_rows, mine.column + PADDING, mine.piece), n, inside);
    }
}

// 32 channels of what a tile sees, into a slot that was cleared.
__device__ __forceinline__ void load_seen(unsigned char* to, const bf16_bits* __restrict__ source, int channels,
                                          int first_image, int first_row, int count) {
    constexpr int further_down = LOAD_STEP * SOURCE_W;
    const Pieces mine = pieces_of(first_row);
    const bf16_bits* const from = source + ((wide)first_image * SOURCE_H * SOURCE_W + (mine.above + mine.number) * further_down
                                            + mine.column * LOAD_STEP) * channels + mine.piece * EIGHT;
    for_each(mine, first_image, count, [&](int at, int n, bool inside) {
        copy(to + at, from + n * further_down * channels, inside);
    });
}
// BatchNorm and ReLU of the numbers that the thread loaded itself, which need no barrier; zeros beside the source stay zeros.
// `norm`: scale, then shift of all channels, from the first of the 32 on.
__device__ __forceinline__ void normalise_seen(unsigned char* slot, const float* __restrict__ norm, int channels,
                                               int first_image, int first_row, int count) {
    const Pieces mine = pieces_of(first_row);
    float scale[EIGHT], shift[EIGHT];
    load(norm + mine.piece * EIGHT, scale);
    load(norm + channels + mine.piece * EIGHT, shift);
    for_each(mine, first_image, count, [&](int at, int, bool inside) {
        if (!inside) return;
        float v[EIGHT];
        unpack(*(const uint4*)(slot + at), v);
#pragma unroll
        for (int e = 0; e < EIGHT; e++) {
            v[e] = scale[e] * v[e] + shift[e];
            v[e] = v[e] > 0.0f ? v[e] : 0.0f;
        }
        *(uint4*)(slot + at) = pack(v);
    });
}
// Zeros wherever nothing is loaded (of whole images: everywhere).
__device__ __forceinline__ void clear_seen(unsigned char* slot) {
    constexpr int beside = SEEN_W - COLUMNS, pieces = WHOLE ? SEEN_BYTES / 16 : SEEN_ROWS * beside * 4;
#pragma unroll
    for (int first = 0; first < pieces; first += THREADS) {
        const unsigned n = first + threadIdx.x;
        if (n >= pieces) break;
        const int which = n / 4 % (beside + !beside), column = which < PADDING ? which : COLUMNS + which;
        const int at = WHOLE ? n * 16 : (n / 4 / (beside + !beside) * SEEN_W + slot_of(column)) * 64 + n % 4 * 16;
        *(uint4*)(slot + at) = {0, 0, 0, 0};
    }
}
#endif
