// Three kernels for K clients' columns, compiled at run time for one K, one element type and one group size.
//   TYPE_FLOAT | TYPE_HALF | TYPE_BFLOAT16
//   for `gram` also ROWS (rows of a group), THREADS, SINGLE (one group holds all), MIDDLE (what is subtracted)

#if defined(TYPE_FLOAT)
typedef float element;
__device__ __forceinline__ float widen(element x) { return x; }
#elif defined(TYPE_BFLOAT16)
typedef unsigned short element;
__device__ __forceinline__ float widen(element x) { return __uint_as_float(((unsigned int)x) << 16); }
#else
typedef unsigned short element;
__device__ __forceinline__ float widen(element x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
#endif

#ifdef ROWS
#ifdef SINGLE
#define PAIRS (ROWS * (ROWS + 1) / 2)
#define FIRST_ROW 0
#else
#define PAIRS (ROWS * ROWS)
#define FIRST_ROW (left * ROWS)
#endif
#define WARPS (THREADS / 32)

__device__ __forceinline__ float between(float a, float b, float c) {  // the median; NaN only if all three are
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}

#if defined(SINGLE) && defined(TYPE_FLOAT) && __CUDA_ARCH__ >= 800
// Values travel through a ring in shared memory, several columns ahead of their use: the registers are full of sums, and
// too few threads fit beside one another to hide the memory's latency. Every thread fetches what it alone will read.
#define HELD (ROWS + (MIDDLE == 1))
#define STAGES (MIDDLE == 1 ? 3 : 4)

__device__ __forceinline__ void fetch(unsigned int to, const float* from, int bytes) {  // 0 bytes: a zero
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void fetch_column(unsigned int to, const float* x, const float* middle, long long column,
                                             int n, int stride) {
    const int bytes = column < n ? 4 : 0;
    const float* from = x + (column < n ? column : 0);
    long long row = stride;
    asm volatile("" : "+l"(row));  // unknown to the compiler, which would keep 20 offsets at hand and spill the sums
#pragma unroll
    for (int i = 0; i < ROWS; i++, from += row) fetch(to + i * THREADS * 4, from, bytes);
#if MIDDLE == 1
    fetch(to + ROWS * THREADS * 4, middle + (column < n ? column : 0), bytes);
#endif
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#endif

// Every thread walks down its own columns, holds their ROWS centred values and all their products in registers, and adds
// the products up in float32 over at most `steps` columns; sums over threads are made in float64. Nothing of size n is
// written, and every value is read once per pair of groups (once in all for SINGLE).
// The centre (MIDDLE): 0 nothing, 1 the row `middle`, 2 the median of rows 0, ROWS / 2 and ROWS - 1 (SINGLE only).
extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
gram(const element* __restrict__ x, const element* __restrict__ middle, double* __restrict__ partial,
     int K, int n, int stride, int steps) {
#ifndef SINGLE
    int left = 0, right = blockIdx.y;  // the groups of rows that this block multiplies: right <= left
    while (right > left) { right -= left + 1; left += 1; }
#endif
    float sums[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) sums[p] = 0.0f;

    long long column = (long long)blockIdx.x * steps * THREADS + threadIdx.x;
#ifdef STAGES
    __shared__ float ring[STAGES][HELD][THREADS];
    const unsigned int mine = (unsigned int)__cvta_generic_to_shared(&ring[0][0][threadIdx.x]);
    const unsigned int stage = HELD * THREADS * 4;
    long long ahead = column;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++, ahead += THREADS) fetch_column(mine + s * stage, x, middle, ahead, n, stride);
    int next = STAGES - 1, now = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++, ahead += THREADS) {
        // The place of the column before this one, whose products are made.
        fetch_column(mine + next * stage, x, middle, ahead, n, stride);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        float a[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] = ring[now][i][threadIdx.x];
#if MIDDLE == 1
        const float centre = ring[now][ROWS][threadIdx.x];
#elif MIDDLE == 2
        const float centre = between(a[0], a[ROWS / 2], a[ROWS - 1]);
#else
        const float centre = 0.0f;
#endif
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] -= centre;
        next = now;
        now = now + 1 == STAGES ? 0 : now + 1;
#else
#pragma unroll 1
    for (int step = 0; step < steps && column < n; step++, column += THREADS) {
        float a[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = FIRST_ROW + i;
            a[i] = row < K ? widen(x[(long long)row * stride + column]) : 0.0f;
        }
#if MIDDLE == 2
        const float centre = between(a[0], a[ROWS / 2], a[ROWS - 1]);
#else
        const float centre = MIDDLE == 1 ? widen(middle[column]) : 0.0f;
#endif
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] = FIRST_ROW + i < K ? a[i] - centre : 0.0f;
#endif
#ifdef SINGLE
        int p = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) { sums[p] = fmaf(a[i], a[j], sums[p]); p++; }
#else
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            const int row = right * ROWS + j;
            const float b = row < K ? widen(x[(long long)row * stride + column]) - centre : 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS; i++) sums[i * ROWS + j] = fmaf(a[i], b, sums[i * ROWS + j]);
        }
#endif
    }

    __shared__ double shared[WARPS][PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        double sum = sums[p];
#pragma unroll
        for (int lane = 16; lane > 0; lane >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, lane);
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][p] = sum;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < PAIRS; p += THREADS) {
        double sum = 0.0;
        for (int warp = 0; warp < WARPS; warp++) sum += shared[warp][p];
        partial[((long long)blockIdx.x * gridDim.y + blockIdx.y) * PAIRS + p] = sum;
    }
}
#endif

// weights @ x, and the largest absolute value: as the bits of a non-negative float, which order like integers. It is
// gathered behind the K weights, where the caller put a zero.
#ifdef CLIENTS
#define COLUMNS 4
extern "C" __global__ void __launch_bounds__(256)
mix(const element* __restrict__ x, float* weights, float* __restrict__ out, int n, int stride) {
    const long long first = (long long)blockIdx.x * 256 * COLUMNS + threadIdx.x;
    float value[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) value[c] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < CLIENTS; k++) {
        const float weight = weights[k];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const long long column = first + c * 256;
            if (column < n) value[c] = fmaf(weight, widen(x[(long long)k * stride + column]), value[c]);
        }
    }
    float size = 0.0f;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const long long column = first + c * 256;
        if (column < n) {
            out[column] = value[c];
            // NaN must not be lost in the maximum: it becomes infinity.
            size = fmaxf(size, value[c] == value[c] ? fabsf(value[c]) : __int_as_float(0x7f800000));
        }
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1) size = fmaxf(size, __shfl_down_sync(0xffffffffu, size, lane));
    if (threadIdx.x % 32 == 0) atomicMax((int*)(weights + CLIENTS), __float_as_int(size));
}
#endif

// Sort each column in registers and write the rows of ranks FIRST .. LAST - 1; COMPARATORS is the sorting network.
#ifdef COMPARATORS
#define SMALLER(i, j) { const float low = fminf(v[i], v[j]); v[j] = fmaxf(v[i], v[j]); v[i] = low; }
extern "C" __global__ void __launch_bounds__(256)
rank(const element* __restrict__ x, float* __restrict__ out, int* __restrict__ largest, int n, int stride) {
    const long long column = (long long)blockIdx.x * 256 + threadIdx.x;
    float size = 0.0f;
    if (column < n) {
        float v[RANKED];
#pragma unroll
        for (int k = 0; k < RANKED; k++) {
            v[k] = widen(x[(long long)k * stride + column]);
            size = fmaxf(size, v[k] == v[k] ? fabsf(v[k]) : __int_as_float(0x7f800000));
        }
        COMPARATORS
#pragma unroll
        for (int k = FIRST; k < LAST; k++) out[(long long)(k - FIRST) * n + column] = v[k];
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1) size = fmaxf(size, __shfl_down_sync(0xffffffffu, size, lane));
    if (threadIdx.x % 32 == 0) atomicMax(largest, __float_as_int(size));
}
#endif
