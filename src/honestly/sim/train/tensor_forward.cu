// out[m, p, q, b] = sum over s and (c, r) of w[m, (c, r), s] x[c, p + r, q + s, b]: a warp has 16 channels, 8 images and a
// pooled row, that is two rows of the convolution.
#define STEPS ((PAIRS + 15) / 16)
#define GROUPS ((BATCH + 7) / 8)
extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
tensor_forward(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
             float* __restrict__ y, unsigned char* __restrict__ code, int stride_w, int stride_bias, int batch) {
    __shared__ uint4 high[STEPS * S * 32], low[STEPS * S * 32];
    __shared__ float filters[16 * PAIRS * S];
    const int units = GROUPS * POOLED_H, blocks = (units + WARPS - 1) / WARPS;
    const int k = blockIdx.x / blocks, m0 = blockIdx.y * 16, lane = threadIdx.x % 32;
    for (int n = threadIdx.x; n < 16 * PAIRS * S; n += 32 * WARPS)
        filters[n] = m0 * PAIRS * S + n < M * PAIRS * S ? w[(wide)k * stride_w + m0 * PAIRS * S + n] : 0.0f;
    __syncthreads();
    for (int n = threadIdx.x; n < STEPS * S * 32; n += 32 * WARPS) {
        const int m = n % 32 / 4, pair = n / 32 / S * 16 + n % 4 * 4, s = n / 32 % S;
        float v[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[half][e] = pair + e < PAIRS ? filters[((m + 8 * half) * PAIRS + pair + e) * S + s] : 0.0f;
        split(v[0][0], v[0][1], high[n].x, low[n].x);
        split(v[1][0], v[1][1], high[n].y, low[n].y);
        split(v[0][2], v[0][3], high[n].z, low[n].z);
        split(v[1][2], v[1][3], high[n].w, low[n].w);
    }
    __syncthreads();
    const int unit = blockIdx.x % blocks * WARPS + threadIdx.x / 32;
    if (unit >= units) return;
    const int i = unit % POOLED_H, b0 = unit / POOLED_H * 8;
    const float* image = x + (wide)k * H * C * W * BATCH + (b0 + GROUP < BATCH ? b0 + GROUP : BATCH - 1);
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
                const uint4 h = high[(step * S + s) * 32 + lane], l = low[(step * S + s) * 32 + lane];
                a_high[s][0] = h.x; a_high[s][1] = h.y; a_high[s][2] = h.z; a_high[s][3] = h.w;
                a_low[s][0] = l.x; a_low[s][1] = l.y; a_low[s][2] = l.z; a_low[s][3] = l.w;
            }
            const float* from[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int n = step * 16 + PLACE * 4 + e, pair = n < PAIRS ? n : PAIRS - 1;  // beyond, the weights are 0
                from[e] = image + ((2 * i + row + pair % R) * C + pair / R) * W * BATCH;
            }
#pragma unroll
            for (int column = 0; column < 2 * POOLED_W + S - 1; column++) {
                unsigned b_high[2], b_low[2];
                split(from[0][column * BATCH], from[1][column * BATCH], b_high[0], b_low[0]);
                split(from[2][column * BATCH], from[3][column * BATCH], b_high[1], b_low[1]);
#pragma unroll
                for (int part = 0; part < 3; part++)
#pragma unroll
                    for (int s = 0; s < S; s++) {
                        const int q = column - s;
                        if (q < 0 || q >= 2 * POOLED_W) continue;
                        if (part == 0) multiply(sum[q], a_high[s], b_low);
                        if (part == 1) multiply(sum[q], a_low[s], b_high);
                        if (part == 2) multiply(sum[q], a_high[s], b_high);
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
        const int m = m0 + GROUP + 8 * half, b = b0 + 2 * PLACE;
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
