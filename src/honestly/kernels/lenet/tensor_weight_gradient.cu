// parts[k, split, m, c, r S + s] = sum over p, q, b of u[m, p, q, b] x[c, p + r, q + s, b], where u is the gradient at
// the corner that won. The sum over 16 images is the tensor cores'; a unit of work is a pooled row of 16 images. A warp
// has 8 pairs, numbered c R + r; the block makes the halves of u together. Pair number C R is an image of ones: its
// gradient is the bias's.
#define TILES ((PAIRS + 8) / 8)
#define SHARES ((TILES + WARPS - 1) / WARPS)
#define GROUPS ((BATCH + 15) / 16)
#define ITEMS ((2 * POOLED_W + WARPS - 1) / WARPS)
extern "C" __global__ void __launch_bounds__(32 * WARPS, 4)
tensor_weight_gradient(const float* __restrict__ x, const float* __restrict__ g, const unsigned char* __restrict__ code,
                     float* __restrict__ parts, int splits, int batch) {
    __shared__ uint4 high[2][2 * POOLED_W][32], low[2][2 * POOLED_W][32];  // of u, as the tensor cores want them
    const int share = blockIdx.x % SHARES, split_number = blockIdx.x / SHARES % splits;
    const int k = blockIdx.x / (SHARES * splits);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = GROUPS * POOLED_H;
    const int first = (int)((wide)units * split_number / splits);
    const int last = (int)((wide)units * (split_number + 1) / splits);
    const int tile = share * WARPS + warp, number = tile * 8 + GROUP, pair = number < PAIRS ? number : 0;
    float2 up[ITEMS][2];  // an item is a pooled column of 2 of the lane's 4 images, for the lane's 2 channels
    unsigned won[ITEMS];
    auto fetch = [&](int unit) {
        const int i = unit % POOLED_H;
#pragma unroll
        for (int n = 0; n < ITEMS; n++) {
            const int item = warp + n * WARPS, b = unit / POOLED_H * 16 + 4 * PLACE + item % 2 * 2;
            won[n] = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int m = GROUP + half * 8;
                const bool inside = item < 2 * POOLED_W && b < BATCH && m < M;
                const wide at = inside ? AT(k, i, m, item / 2) * BATCH + b : 0;
                up[n][half] = *(const float2*)(g + at);
                won[n] |= (inside ? *(const unsigned short*)(code + at) : 0x0707u) << 16 * half;
            }
        }
    };
    auto store = [&] {
#pragma unroll
        for (int n = 0; n < ITEMS; n++) {
            const int item = warp + n * WARPS;
            if (item >= 2 * POOLED_W) break;
            unsigned h0, h1, l0, l1;
            split(up[n][0].x, up[n][0].y, h0, l0);
            split(up[n][1].x, up[n][1].y, h1, l1);
#pragma unroll
            for (int corner = 0; corner < 4; corner++) {
                unsigned n0, n1;
                lost(won[n], corner, n0, n1);
                const int q = item / 2 * 2 + corner % 2;
                ((uint2*)&high[corner / 2][q][lane])[item % 2] = {h0 & ~n0, h1 & ~n1};
                ((uint2*)&low[corner / 2][q][lane])[item % 2] = {l0 & ~n0, l1 & ~n1};
            }
        }
    };
    float sum[S][4];
#pragma unroll
    for (int s = 0; s < S; s++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[s][e] = 0.0f;
    fetch(first);
#pragma unroll 1
    for (int unit = first; unit < last; unit++) {
        __syncthreads();
        store();
        __syncthreads();
        if (unit + 1 < last) fetch(unit + 1);
        if (tile >= TILES) continue;
        const int i = unit % POOLED_H, b = unit / POOLED_H * 16 + 4 * PLACE;
#pragma unroll 1
        for (int row = 0; row < 2; row++) {
            const wide line = ((wide)k * H + 2 * i + row + pair % R) * C + pair / R;
            const float* from = x + line * W * BATCH + (b < BATCH ? b : 0);
            float product[S][4];
            unsigned u_high[2 * POOLED_W][4], u_low[2 * POOLED_W][4];
#pragma unroll
            for (int s = 0; s < S; s++)
#pragma unroll
                for (int e = 0; e < 4; e++) product[s][e] = 0.0f;
#pragma unroll
            for (int column = 0; column < 2 * POOLED_W + S - 1; column++) {
                if (column < 2 * POOLED_W) {
                    read(high[row][column][lane], u_high[column]);
                    read(low[row][column][lane], u_low[column]);
                }
                const float4 four = *(const float4*)(from + column * BATCH);
                unsigned b_high[2], b_low[2];
                split(four.x, four.y, b_high[0], b_low[0]);
                split(four.z, four.w, b_high[1], b_low[1]);
                if (number == PAIRS) { b_high[0] = b_high[1] = 0x3f803f80u; b_low[0] = b_low[1] = 0; }  // ones
#pragma unroll
                for (int part = 0; part < 3; part++)
#pragma unroll
                    for (int s = 0; s < S; s++) {
                        const int q = column - s;
                        if (q >= 0 && q < 2 * POOLED_W) multiply_part(part, product[s], u_high[q], u_low[q], b_high, b_low);
                    }
            }
#pragma unroll
            for (int s = 0; s < S; s++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[s][e] += product[s][e];
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int m = GROUP + e / 2 * 8, n = tile * 8 + 2 * PLACE + e % 2;
        if (m >= M || n > PAIRS) continue;
        float* to = parts + ((((wide)k * splits + split_number) * M + m) * C + (n < PAIRS ? n / R : 0)) * 32;
#pragma unroll
        for (int s = 0; s < S; s++)
            if (n < PAIRS) to[n % R * S + s] = sum[s][e];
            else if (s == 0) to[TAPS] = sum[s][e];
    }
}
