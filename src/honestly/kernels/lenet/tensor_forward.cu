// out[m, p, q, b] = sum over s and (c, r) of w[m, (c, r), s] x[c, p + r, q + s, b]: a block has 8 images in shared memory,
// a warp pooled rows, that is two rows p each. The pairs are numbered r C + c here: those of row p are then the lines
// p C, p C + 1, ... of what is in shared memory.
#define STEPS ((PAIRS + 15) / 16)
#define GROUPS ((BATCH + 7) / 8)
#define LINES (H * C)
#define FILTERS (M * PAIRS * S)
#define PLACES (LINES * W * 8 > FILTERS ? LINES * W * 8 : FILTERS)
// Two lines of four have their columns swapped in pairs, so that the lanes of a warp read from different banks.
#define SWAP(line) (W % 2 ? 0 : (line) / 2 & 1)

// 16 bytes from global to shared memory, while other things are done; `copied` waits for the thread's own.
__device__ __forceinline__ void copy(float4* to, const float* __restrict__ from) {
#ifdef EMULATED
    cp_async(to, from, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#endif
}
__device__ __forceinline__ void copied() {
#ifdef EMULATED
    cp_async_commit_group();
    cp_async_wait_group(0);
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(32 * ROWS, 3)
tensor_forward(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
               float* __restrict__ y, unsigned char* __restrict__ code, int stride_w, int stride_bias, int batch) {
    __shared__ uint4 high[STEPS * S * 32], low[STEPS * S * 32];  // the filters' halves, as the tensor cores want them
    __shared__ float4 fours[(PLACES + 3) / 4];                   // the filters, then the images: [line][column][image]
    float* const image = (float*)fours;
    const int k = blockIdx.x / GROUPS, b0 = blockIdx.x % GROUPS * 8, lane = threadIdx.x % 32;
    for (int n = threadIdx.x; n < FILTERS; n += 32 * ROWS) image[n] = w[(wide)k * stride_w + n];
    __syncthreads();
    for (int n = threadIdx.x; n < STEPS * S * 32; n += 32 * ROWS) {
        const int m0 = n % 32 / 4, first = n / 32 / S * 16 + n % 4, s = n / 32 % S;
        float v[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int m = m0 + 8 * half, pair = first + 4 * e;
                v[half][e] = m < M && pair < PAIRS ? image[((m * C + pair % C) * R + pair / C) * S + s] : 0.0f;
            }
        split(v[0], v[1], high[n], low[n]);
    }
    __syncthreads();
    for (int n = threadIdx.x; n < LINES * W * 2; n += 32 * ROWS) {
        const int place = n / 2, line = place / W, column = place % W ^ SWAP(line), b = b0 + n % 2 * 4;
        copy(fours + (line * W + column) * 2 + n % 2, x + ((wide)k * LINES * W + place) * BATCH + (b < BATCH ? b : 0));
    }
    copied();
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < POOLED_H; i += ROWS) {
        float best[POOLED_W][4];
        unsigned rights = 0, lowers = 0;  // a bit each: which column and row of the four corners won
#pragma unroll 1
        for (int row = 0; row < 2; row++) {
            float sum[2 * POOLED_W][4];
#pragma unroll
            for (int q = 0; q < 2 * POOLED_W; q++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[q][e] = 0.0f;
#pragma unroll 1
            for (int step = 0; step < STEPS; step++) {
                unsigned a_high[S][4], a_low[S][4];
#pragma unroll
                for (int s = 0; s < S; s++) {
                    read(high[(step * S + s) * 32 + lane], a_high[s]);
                    read(low[(step * S + s) * 32 + lane], a_low[s]);
                }
                const float* from[4][2];  // even columns, odd columns
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int n = (2 * i + row) * C + step * 16 + PLACE + 4 * e;
                    const int line = n < LINES ? n : LINES - 1;  // beyond PAIRS, the filters are 0
                    from[e][0] = image + (line * W + SWAP(line)) * 8 + GROUP;
                    from[e][1] = image + (line * W - SWAP(line)) * 8 + GROUP;
                }
#pragma unroll
                for (int column = 0; column < 2 * POOLED_W + S - 1; column++) {
                    unsigned b_high[2], b_low[2];
                    split(from[0][column % 2][column * 8], from[1][column % 2][column * 8], b_high[0], b_low[0]);
                    split(from[2][column % 2][column * 8], from[3][column % 2][column * 8], b_high[1], b_low[1]);
#pragma unroll
                    for (int part = 0; part < 3; part++)
#pragma unroll
                        for (int s = 0; s < S; s++) {
                            const int q = column - s;
                            if (q >= 0 && q < 2 * POOLED_W) multiply_part(part, sum[q], a_high[s], a_low[s], b_high, b_low);
                        }
                }
            }
#pragma unroll
            for (int j = 0; j < POOLED_W; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const bool right = sum[2 * j + 1][e] > sum[2 * j][e];
                    const float top = right ? sum[2 * j + 1][e] : sum[2 * j][e];
                    const unsigned bit = 1u << (4 * j + e);
                    if (row == 0 || top > best[j][e]) {
                        best[j][e] = top;
                        rights = right ? rights | bit : rights & ~bit;
                        if (row) lowers |= bit;
                    }
                }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int m = GROUP + 8 * half, b = b0 + 2 * PLACE;
            if (m >= M || b >= BATCH) continue;
#ifdef BIAS
            const float shift = bias[(wide)k * stride_bias + m];
#else
            const float shift = 0.0f;
#endif
#pragma unroll
            for (int j = 0; j < POOLED_W; j++) {
                float top[2];
                unsigned char won[2];
#pragma unroll
                for (int d = 0; d < 2; d++) {
                    top[d] = best[j][2 * half + d] + shift;
                    const int bit = 4 * j + 2 * half + d;
                    won[d] = (unsigned char)((lowers >> bit & 1u) * 2 + (rights >> bit & 1u));
#ifdef RELU
                    if (top[d] <= 0.0f) { top[d] = 0.0f; won[d] = DEAD; }
#endif
                }
                const wide at = AT(k, i, m, j) * BATCH + b;
                *(float2*)(y + at) = {top[0], top[1]};
                *(uchar2*)(code + at) = {won[0], won[1]};
            }
        }
    }
}
