// The convolutions of `kernels.cu` on the tensor cores (compute capability 8.0 and above), to float32 accuracy: every
// number is split in two TF32 halves, and a product is high x high + high x low + low x high. The pairs (c, r) of input
// channel and filter row, numbered c R + r, are one axis of the products, the filter columns s slide along the image.
// Sums that grow long are kept outside the tensor cores, which truncate where float32 rounds. Fixed order everywhere.

#define WARPS 4
#define PAIRS (C * R)
#define GROUPS ((BATCH + 7) / 8)  // a warp takes 8 images
#define GROUP (lane / 4)          // the lane's place in a fragment, in PTX's words groupID and threadID_in_group
#define PLACE (lane % 4)

// v = high + low to 22 bits. The tensor cores read the upper 19 bits of a number, hence the addition of half a unit.
__device__ __forceinline__ void split(float v, float& high, float& low) {
    high = __uint_as_float((__float_as_uint(v) + 0x1000u) & 0xffffe000u);
    low = __uint_as_float(__float_as_uint(v - high) + 0x1000u);
}

// sum (16 x 8) += a (16 x 8) b (8 x 8).
__device__ __forceinline__ void multiply(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
#ifdef EMULATED
    mma_m16n8k8_tf32(sum, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
}

// product += a b, all of it that float32 would keep.
__device__ __forceinline__ void multiply_split(float (&product)[4], const float (&a_high)[4], const float (&a_low)[4],
                                               const float (&b_high)[2], const float (&b_low)[2]) {
    multiply(product, a_low, b_high);
    multiply(product, a_high, b_low);
    multiply(product, a_high, b_high);
}
__device__ __forceinline__ void add(float (&sum)[4], const float (&product)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] += product[e];
}

// Copies `bytes` (4 or 16) to shared memory while the thread goes on; `arrived<n>` waits for all but the last n groups.
template <int bytes> __device__ __forceinline__ void copy(void* to, const void* from) {
#ifdef EMULATED
    cp_async(to, from, bytes);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "n"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void end_of_group() {
#ifdef EMULATED
    cp_async_commit_group();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int n> __device__ __forceinline__ void arrived() {
#ifdef EMULATED
    cp_async_wait_group(n);
#else
    asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
#endif
}

// The weights of a left factor, split, where `high[lane]` and `low[lane]` are a lane's.
__device__ __forceinline__ void read(const float4* __restrict__ from, float (&a)[4]) {
    const float4 four = *from;
    a[0] = four.x; a[1] = four.y; a[2] = four.z; a[3] = four.w;
}
__device__ __forceinline__ void write(float4* high, float4* low, float a, float b, float c, float d) {
    float4 h, l;
    split(a, h.x, l.x); split(b, h.y, l.y); split(c, h.z, l.z); split(d, h.w, l.w);
    *high = h; *low = l;
}

#ifdef TENSOR_FORWARD
// out[m, p, q, b] = sum over s and (c, r) of w[m, (c, r), s] x[c, p + r, q + s, b]: a warp has 16 channels, 8 images and
// STRIP pooled columns of a pooled row, that is two rows of the convolution.
#define STEPS ((PAIRS + 7) / 8)
#define STRIPS ((POOLED_W + STRIP - 1) / STRIP)
#define COLUMNS (2 * STRIP + S - 1)
extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
tensor_forward(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
               float* __restrict__ y, unsigned char* __restrict__ code, int stride_w, int stride_bias, int batch) {
    __shared__ float4 filters[STEPS * S * 32];
    __shared__ float4 stages[WARPS][2][COLUMNS][8][2];  // 8 pairs of 8 images, on their way
    const int units = GROUPS * POOLED_H * STRIPS, blocks = (units + WARPS - 1) / WARPS;
    const int k = blockIdx.x / blocks, m0 = blockIdx.y * 16, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int unit = blockIdx.x % blocks * WARPS + warp;
    const int j0 = unit % STRIPS * STRIP, i = unit / STRIPS % POOLED_H, b0 = unit / (STRIPS * POOLED_H) * 8;
    const float* image = x + (wide)k * H * C * W * BATCH + (b0 + lane % 2 * 4 < BATCH ? b0 + lane % 2 * 4 : 0);
    // The part that this lane brings: four images of every other column of a pair.
    const auto fetch = [&](int step, int row) {
        const int n = step * 8 + lane / 4, pair = n < PAIRS ? n : PAIRS - 1;  // beyond, the weights are 0
        const float* from = image + ((2 * i + row + pair % R) * C + pair / R) * W * BATCH;
#pragma unroll
        for (int two = 0; two < COLUMNS; two += 2) {
            const int column = two + lane / 2 % 2, at = 2 * j0 + column;
            if (COLUMNS % 2 == 0 || column < COLUMNS)
                copy<16>(&stages[warp][row][column][lane / 4][lane % 2],
                         from + (STRIPS * STRIP == POOLED_W || at < W ? at : W - 1) * BATCH);
        }
        end_of_group();
    };
    fetch(0, 0);
    for (int n = threadIdx.x; n < STEPS * S * 32; n += 32 * WARPS) {
        const int m = m0 + n % 32 / 4, pair = n / 32 / S * 8 + n % 4, s = n / 32 % S;
        const float* from = w + (wide)k * stride_w + (m * PAIRS + pair) * S + s;
        const bool upper = m < M, lower = m + 8 < M, left = pair < PAIRS, right = pair + 4 < PAIRS;
        filters[n] = {upper && left ? from[0] : 0.0f, lower && left ? from[8 * PAIRS * S] : 0.0f,
                      upper && right ? from[4 * S] : 0.0f, lower && right ? from[(8 * PAIRS + 4) * S] : 0.0f};
    }
    __syncthreads();
    float sum[2][2 * STRIP][4];
#pragma unroll
    for (int q = 0; q < 2 * STRIP; q++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[0][q][e] = sum[1][q][e] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        float a_high[S][4], a_low[S][4];
#pragma unroll
        for (int s = 0; s < S; s++) {
            const float4 four = filters[(step * S + s) * 32 + lane];
            split(four.x, a_high[s][0], a_low[s][0]);
            split(four.y, a_high[s][1], a_low[s][1]);
            split(four.z, a_high[s][2], a_low[s][2]);
            split(four.w, a_high[s][3], a_low[s][3]);
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            arrived<0>();
            __syncwarp();  // everybody's part is here, and nobody reads the other stage any more
            if (row == 0 || step + 1 < STEPS) fetch(step + row, 1 - row);
            float b_high[COLUMNS][2], b_low[COLUMNS][2];
#pragma unroll
            for (int column = 0; column < COLUMNS; column++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float value = ((const float*)stages[warp][row][column][PLACE + 4 * e])[GROUP];
                    split(value, b_high[column][e], b_low[column][e]);
                }
#pragma unroll
            for (int j = 0; j < STRIP; j++) {
                float large[2][4] = {}, small[2][4] = {};
#pragma unroll
                for (int s = 0; s < S; s++)
#pragma unroll
                    for (int d = 0; d < 2; d++) {
                        multiply(large[d], a_high[s], b_high[2 * j + d + s]);
                        multiply(small[d], a_low[s], b_high[2 * j + d + s]);
                        multiply(small[d], a_high[s], b_low[2 * j + d + s]);
                    }
#pragma unroll
                for (int d = 0; d < 2; d++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[row][2 * j + d][e] += large[d][e] + small[d][e];
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int m = m0 + GROUP + 8 * half, b = b0 + 2 * PLACE;
        if (unit >= units || m >= M || b >= BATCH) continue;
#pragma unroll
        for (int j = 0; j < STRIP; j++) {
            if (STRIPS * STRIP != POOLED_W && j0 + j >= POOLED_W) break;
            float best[2];
            int winner[2];
#pragma unroll
            for (int d = 0; d < 2; d++) {
                const int e = 2 * half + d;
                float top = sum[0][2 * j][e];
                int won = 0;
                if (sum[0][2 * j + 1][e] > top) { top = sum[0][2 * j + 1][e]; won = 1; }
                if (sum[1][2 * j][e] > top) { top = sum[1][2 * j][e]; won = 2; }
                if (sum[1][2 * j + 1][e] > top) { top = sum[1][2 * j + 1][e]; won = 3; }
#ifdef BIAS
                top += bias[(wide)k * stride_bias + m];
#endif
#ifdef RELU
                if (top <= 0.0f) { top = 0.0f; won = DEAD; }
#endif
                best[d] = top;
                winner[d] = won;
            }
            const wide at = AT(k, i, m, j0 + j) * BATCH + b;
            *(float2*)(y + at) = {best[0], best[1]};
            *(uchar2*)(code + at) = {(unsigned char)winner[0], (unsigned char)winner[1]};
        }
    }
}
#endif

#ifdef TENSOR_WEIGHT_GRADIENT
// parts[k, split, m, c, r S + s] = sum over p, q, b of u[m, p, q, b] x[c, p + r, q + s, b], where u is the gradient at the
// corner that won. The sum over images is the tensor cores' (a lane's two are neighbours: their order is free), a
// unit of work is one row p of 8 images. Pair number C R is an image of ones: its filter's gradient is the bias's.
#define TILES ((PAIRS + 8) / 8)
#define SHARES ((TILES + SHARE - 1) / SHARE)  // a block has SHARE tiles of 8 pairs
#define MTILES ((M + 15) / 16)
#define COLUMNS (2 * POOLED_W + S - 1)
#define STAGES ((COLUMNS + 1) / 2)
#define AHEAD 2

struct Stage {  // two columns of the input and the gradient of a pooled column, on their way
    float x[2][SHARE * 8][8], g[16][8];
    unsigned char code[16][8];
};
union Shared {
    Stage stages[WARPS][AHEAD + 1];
    float4 sums[WARPS][SHARE * S * 32];
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
tensor_weight_gradient(const float* __restrict__ x, const float* __restrict__ g, const unsigned char* __restrict__ code,
                       float* __restrict__ parts, int splits, int batch) {
    __shared__ Shared shared;
    const int m0 = blockIdx.x % MTILES * 16, n0 = blockIdx.x / MTILES % SHARES * SHARE;
    const int split_number = blockIdx.x / (MTILES * SHARES) % splits, k = blockIdx.x / (MTILES * SHARES * splits);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = GROUPS * 2 * POOLED_H;
    const int first = (int)((wide)units * split_number / splits) + warp;
    const int last = (int)((wide)units * (split_number + 1) / splits);
    Stage* const stages = shared.stages[warp];
    for (int n = lane; n < (AHEAD + 1) * 2 * SHARE * 64; n += 32) {
        const int pair = n0 * 8 + n / 8 % (SHARE * 8);
        float& to = stages[n / (128 * SHARE)].x[n / (64 * SHARE) % 2][n / 8 % (SHARE * 8)][n % 8];
        if (pair >= PAIRS) to = pair == PAIRS ? 1.0f : 0.0f;
    }
    // The part of a stage that this lane brings: four images of some rows.
    const float *images[(SHARE + 1) / 2], *up_from;
    const unsigned char* won_from;
    const auto aim = [&](int unit) {
        const int p = unit % (2 * POOLED_H), b = unit / (2 * POOLED_H) * 8 + lane % 2 * 4, image = b < BATCH ? b : 0;
#pragma unroll
        for (int n = 0; n < (SHARE + 1) / 2; n++) {
            const int number = n0 * 8 + n * 16 + lane / 2, pair = number < PAIRS ? number : 0;
            images[n] = x + (((wide)k * H + p + pair % R) * C + pair / R) * W * BATCH + image;
        }
        const wide at = AT(k, p / 2, m0 + lane / 2 < M ? m0 + lane / 2 : 0, 0) * BATCH + image;
        up_from = g + at;
        won_from = code + at;
    };
    const auto fetch = [&](int j, Stage& stage) {
#pragma unroll
        for (int n = 0; n < (SHARE + 1) / 2; n++)
            if ((SHARE % 2 == 0 || n * 16 + lane / 2 < SHARE * 8) && n0 * 8 + n * 16 + lane / 2 < PAIRS)
#pragma unroll
                for (int d = 0; d < 2; d++)
                    if (2 * j + d < COLUMNS)
                        copy<16>(&stage.x[d][n * 16 + lane / 2][lane % 2 * 4], images[n] + (2 * j + d) * BATCH);
        if (j < POOLED_W) {
            copy<16>(&stage.g[lane / 2][lane % 2 * 4], up_from + j * BATCH);
            copy<4>(&stage.code[lane / 2][lane % 2 * 4], won_from + j * BATCH);
        }
        end_of_group();
    };
    float sum[SHARE][S][4];
#pragma unroll
    for (int n = 0; n < SHARE; n++)
#pragma unroll
        for (int s = 0; s < S; s++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][s][e] = 0.0f;
    aim(first < units ? first : 0);
#pragma unroll
    for (int j = 0; j < AHEAD; j++) fetch(j, stages[j]);
    int slot = 0;
#pragma unroll 1
    for (int unit = first; unit < last; unit += WARPS) {
        const bool inside = unit / (2 * POOLED_H) * 8 + 2 * PLACE < BATCH;
        const int corner = inside ? unit % 2 * 2 : DEAD + 1;  // 2 POOLED_H is even: so is p where the unit is
        float u_high[COLUMNS + 1][4], u_low[COLUMNS + 1][4];
#pragma unroll
        for (int j = 0; j < STAGES; j++) {
            arrived<AHEAD - 1>();
            __syncwarp();  // everybody's part is here, and nobody reads what comes next to the slot before this one
            if (j + AHEAD == STAGES) aim(unit + WARPS < units ? unit + WARPS : 0);  // (after the last unit, anything)
            fetch((j + AHEAD) % STAGES, stages[slot ? slot - 1 : AHEAD]);
            const Stage& stage = stages[slot];
            slot = slot < AHEAD ? slot + 1 : 0;
            if (j < POOLED_W)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float2 up = *(const float2*)&stage.g[GROUP + 8 * e][2 * PLACE];
                    const uchar2 won = *(const uchar2*)&stage.code[GROUP + 8 * e][2 * PLACE];
                    float high[2], low[2];
                    split(up.x, high[0], low[0]);
                    split(up.y, high[1], low[1]);
#pragma unroll
                    for (int d = 0; d < 2; d++) {
                        u_high[2 * j + d][e] = won.x == corner + d ? high[0] : 0.0f;
                        u_low[2 * j + d][e] = won.x == corner + d ? low[0] : 0.0f;
                        u_high[2 * j + d][e + 2] = won.y == corner + d ? high[1] : 0.0f;
                        u_low[2 * j + d][e + 2] = won.y == corner + d ? low[1] : 0.0f;
                    }
                }
#pragma unroll
            for (int n = 0; n < SHARE; n++) {
                float b_high[2][2], b_low[2][2];
#pragma unroll
                for (int d = 0; d < 2; d++) {
                    const float2 two = *(const float2*)&stage.x[d][n * 8 + GROUP][2 * PLACE];
                    split(two.x, b_high[d][0], b_low[d][0]);
                    split(two.y, b_high[d][1], b_low[d][1]);
                }
#pragma unroll
                for (int s = 0; s < S; s++) {
                    if (s > 2 * j + 1 || s <= 2 * (j - POOLED_W)) continue;  // outside the image
                    float product[4] = {};
#pragma unroll
                    for (int d = 0; d < 2; d++) {
                        const int q = 2 * j + d - s;
                        if (q >= 0 && q < 2 * POOLED_W) multiply_split(product, u_high[q], u_low[q], b_high[d], b_low[d]);
                    }
                    add(sum[n][s], product);
                }
            }
        }
    }
    arrived<0>();
    __syncthreads();  // from here on the same memory is for the sums
#pragma unroll
    for (int n = 0; n < SHARE; n++)
#pragma unroll
        for (int s = 0; s < S; s++)
            shared.sums[warp][(n * S + s) * 32 + lane] = {sum[n][s][0], sum[n][s][1], sum[n][s][2], sum[n][s][3]};
    __syncthreads();
    for (int n = threadIdx.x; n < SHARE * S * 128; n += 32 * WARPS) {
        const int e = n % 4, at = n / 4 % 32, s = n / 128 % S;
        const int m = m0 + at / 4 + e / 2 * 8, pair = (n0 + n / (128 * S)) * 8 + at % 4 * 2 + e % 2;
        if (m >= M || pair > PAIRS || (pair == PAIRS && s)) continue;
        float total = 0.0f;
        for (int v = 0; v < WARPS; v++) total += ((const float*)shared.sums[v])[n];
        const int c = pair < PAIRS ? pair / R : 0, tap = pair < PAIRS ? pair % R * S + s : TAPS;
        parts[((((wide)k * splits + split_number) * M + m) * C + c) * 32 + tap] = total;
    }
}
#endif

#ifdef TENSOR_INPUT_GRADIENT
// With t[(c, r), x, b] = sum over m and s of w[m, (c, r), s] u[m, p, x - s, b], the gradient of the input is at row y
// the sum over r of t for p = y - r. A warp has 8 images and 16 / R channels and walks down the rows p; the R rows to
// which later ones will add are in shared memory.
#define DEPTH (16 / R)             // channels of a warp
#define USED (DEPTH * R)           // of 16 pairs
#define SHARES ((C + DEPTH - 1) / DEPTH)
#define STEPS ((M + 7) / 8)
extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
tensor_input_gradient(const float* __restrict__ g, const unsigned char* __restrict__ code, const float* __restrict__ w,
                      float* __restrict__ gx, int stride_w, int batch) {
    __shared__ float4 high[STEPS * S * 32], low[STEPS * S * 32];
    __shared__ float2 rows[WARPS][W][USED][4];
    const int blocks = (GROUPS + WARPS - 1) / WARPS;
    const int k = blockIdx.x / (SHARES * blocks), c0 = blockIdx.x / blocks % SHARES * DEPTH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int n = threadIdx.x; n < STEPS * S * 32; n += 32 * WARPS) {
        float four[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int pair = n % 32 / 4 + e % 2 * 8, m = n / 32 / S * 8 + n % 4 + e / 2 * 4;
            const bool inside = pair < USED && c0 + pair / R < C && m < M;
            four[e] = inside ? w[(wide)k * stride_w + ((wide)m * PAIRS + c0 * R + pair) * S + n / 32 % S] : 0.0f;
        }
        write(high + n, low + n, four[0], four[1], four[2], four[3]);
    }
    __syncthreads();
    const int b0 = (blockIdx.x % blocks * WARPS + warp) * 8;
    if (b0 >= BATCH) return;
    const int image = b0 + GROUP < BATCH ? b0 + GROUP : BATCH - 1;
#pragma unroll 1
    for (int y = 0; y < H; y++) {
        if (y < 2 * POOLED_H) {
            float sum[W][4];
#pragma unroll
            for (int column = 0; column < W; column++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[column][e] = 0.0f;
#pragma unroll 1
            for (int step = 0; step < STEPS; step++) {
                float u_high[2 * POOLED_W][2], u_low[2 * POOLED_W][2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = step * 8 + PLACE + 4 * e, m = n < M ? n : M - 1;  // beyond, the weights are 0
                    const wide at = AT(k, y / 2, m, 0) * BATCH + image;
#pragma unroll
                    for (int j = 0; j < POOLED_W; j++) {
                        const int won = code[at + j * BATCH];
                        float up_high, up_low;
                        split(g[at + j * BATCH], up_high, up_low);
#pragma unroll
                        for (int d = 0; d < 2; d++) {
                            u_high[2 * j + d][e] = won == y % 2 * 2 + d ? up_high : 0.0f;
                            u_low[2 * j + d][e] = won == y % 2 * 2 + d ? up_low : 0.0f;
                        }
                    }
                }
#pragma unroll
                for (int s = 0; s < S; s += 2) {  // two filter columns at a time
                    float a_high[2][4], a_low[2][4];
#pragma unroll
                    for (int d = 0; d < 2 && s + d < S; d++) {
                        read(high + (step * S + s + d) * 32 + lane, a_high[d]);
                        read(low + (step * S + s + d) * 32 + lane, a_low[d]);
                    }
#pragma unroll
                    for (int column = s; column <= s + 2 * POOLED_W && column < W; column++) {
                        float product[4] = {};
#pragma unroll
                        for (int d = 0; d < 2 && s + d < S; d++) {
                            const int q = column - s - d;
                            if (q >= 0 && q < 2 * POOLED_W) multiply_split(product, a_high[d], a_low[d], u_high[q], u_low[q]);
                        }
                        add(sum[column], product);
                    }
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pair = GROUP + 8 * half, r = pair % R;
                if (pair >= USED) continue;
                const bool first = y == 0 || r == R - 1;
#pragma unroll
                for (int column = 0; column < W; column++) {
                    float2& cell = rows[warp][column][pair - r + (y + r) % R][PLACE];
                    float2 two = cell;
                    if (first) two = {0.0f, 0.0f};
                    cell = {two.x + sum[column][2 * half], two.y + sum[column][2 * half + 1]};
                }
            }
            __syncwarp();
        }
        for (int n = lane; n < DEPTH * W * 4; n += 32) {  // row y is finished
            const int c = n / (4 * W), column = n / 4 % W, b = b0 + n % 4 * 2;
            if (c0 + c >= C || b >= BATCH) continue;
            float* to = gx + ((((wide)k * H + y) * C + c0 + c) * W + column) * BATCH + b;
            *(float2*)to = rows[warp][column][c * R + y % R][n % 4];
        }
        __syncwarp();
    }
}
#endif
