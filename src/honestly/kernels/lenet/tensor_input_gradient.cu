// With t[(c, r), x, b] = sum over m and s of w[m, (c, r), s] u[m, p, x - s, b], the gradient of the input is at row y
// the sum over r of t for p = y - r. A warp has 8 images, some columns x, and 8 slots: a slot is two channels and one
// (y mod R). It walks down the rows p: every p adds to the sums with the filters turned on by one row, and finishes
// row y = p.
#define SLOTS ((C + 1) / 2 * R)
#define SHARES ((SLOTS + 7) / 8)
#define GROUPS ((BATCH + 7) / 8)
#define COLUMNS ((W + STRIPS - 1) / STRIPS)  // of a warp
#define FRAGMENTS (S * SLOTS * 4)

template <int from, int to>
__device__ __forceinline__ void inward(const uint4* filters, const float* __restrict__ g,
                                       const unsigned char* __restrict__ code, float* __restrict__ gx,
                                       int k, int slot, int b0, int lane, int batch) {
    constexpr int q0 = from - S + 1 > 0 ? from - S + 1 : 0, q1 = to < 2 * POOLED_W ? to : 2 * POOLED_W;
    constexpr int j0 = q0 / 2, j1 = (q1 + 1) / 2;
    float sum[to - from][4];
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
        for (int n = 0; n < to - from; n++) sum[n][e] = 0.0f;
    const bool used = slot < SLOTS;
    const int c = used ? slot / R * 2 : 0, image = b0 + GROUP < BATCH ? b0 + GROUP : BATCH - 1;
    int turn = slot % R;  // the filter's row that adds to the slot now
    float* out = gx + ((wide)k * H * C + c) * W * BATCH + b0 + 2 * PLACE;
    auto finish = [&](int y) {
        if (!used || b0 + 2 * PLACE >= BATCH) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (c + half >= C) break;
#pragma unroll
            for (int n = 0; n < to - from; n++)
                *(float2*)(out + ((y * C + half) * W + from + n) * BATCH) = {sum[n][2 * half], sum[n][2 * half + 1]};
        }
    };
#pragma unroll 1
    for (int i = 0; i < POOLED_H; i++) {
        unsigned high[j1][2], low[j1][2], won[j1];
#pragma unroll
        for (int j = j0; j < j1; j++) {
            float up[4];
            won[j] = 0;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int n = 4 * PLACE + e, m = n < M ? n : M - 1;  // beyond, the weights are 0
                const wide at = AT(k, i, m, j) * BATCH + image;
                up[e] = g[at];
                won[j] |= (unsigned)code[at] << 8 * e;
            }
            split(up[0], up[1], high[j][0], low[j][0]);
            split(up[2], up[3], high[j][1], low[j][1]);
        }
#pragma unroll 1
        for (int row = 0; row < 2; row++) {
            unsigned u_high[q1][2], u_low[q1][2];
#pragma unroll
            for (int q = q0; q < q1; q++) {
                unsigned n0, n1;
                lost(won[q / 2], 2 * row + q % 2, n0, n1);
                u_high[q][0] = high[q / 2][0] & ~n0; u_high[q][1] = high[q / 2][1] & ~n1;
                u_low[q][0] = low[q / 2][0] & ~n0; u_low[q][1] = low[q / 2][1] & ~n1;
            }
            const uint4* filter = filters + (c / 2 * R + turn) * 4 + PLACE;
#pragma unroll
            for (int s = 0; s < S; s++) {
                unsigned a_high[4], a_low[4];
                read(filter[s * SLOTS * 4], a_high);
                read(filter[s * SLOTS * 4 + FRAGMENTS], a_low);
#pragma unroll
                for (int part = 0; part < 3; part++)
#pragma unroll
                    for (int q = q0; q < q1; q++) {
                        if (q + s < from || q + s >= to) continue;
                        if (part == 0) multiply(sum[q + s - from], a_high, u_low[q]);
                        if (part == 1) multiply(sum[q + s - from], a_low, u_high[q]);
                        if (part == 2) multiply(sum[q + s - from], a_high, u_high[q]);
                    }
            }
            const bool finished = turn == 0;
            turn = finished ? R - 1 : turn - 1;
            if (finished) finish(2 * i + row);
#pragma unroll
            for (int n = 0; n < to - from; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[n][e] = finished ? 0.0f : sum[n][e];
        }
    }
    if (turn < R - 1) finish(2 * POOLED_H + turn);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
tensor_input_gradient(const float* __restrict__ g, const unsigned char* __restrict__ code, const float* __restrict__ w,
                    float* __restrict__ gx, int stride_w, int batch) {
    __shared__ uint4 filters[2 * FRAGMENTS];  // [high, low][s][channels c, c + 1 and row][place]
    __shared__ float weights[M * PAIRS * S];
    const int units = GROUPS * SHARES * STRIPS, blocks = (units + WARPS - 1) / WARPS, k = blockIdx.x / blocks;
    for (int n = threadIdx.x; n < M * PAIRS * S; n += 32 * WARPS) weights[n] = w[(wide)k * stride_w + n];
    __syncthreads();
    for (int n = threadIdx.x; n < FRAGMENTS; n += 32 * WARPS) {
        const int m = n % 4 * 4, r = n / 4 % R, c = n / 4 / R % ((C + 1) / 2) * 2, s = n / 4 / SLOTS;
        float v[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[half][e] = m + e < M && c + half < C ? weights[(((m + e) * C + c + half) * R + r) * S + s] : 0.0f;
        split(v[0], v[1], filters[n], filters[n + FRAGMENTS]);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, unit = blockIdx.x % blocks * WARPS + threadIdx.x / 32;
    if (unit >= units) return;
    const int strip = unit % STRIPS, slot = unit / STRIPS % SHARES * 8 + GROUP, b0 = unit / (STRIPS * SHARES) * 8;
    if (strip == 0) inward<0, COLUMNS>(filters, g, code, gx, k, slot, b0, lane, batch);
#if STRIPS > 1
    else inward<COLUMNS, W>(filters, g, code, gx, k, slot, b0, lane, batch);
#endif
}
