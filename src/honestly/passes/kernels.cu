// Three kernels for K clients' columns, compiled at run time for one K, one element type and one group size.
//   TYPE_FLOAT | TYPE_HALF | TYPE_BFLOAT16; for `gram` also ROWS (rows of a group), THREADS, SINGLE (one group holds all)

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
#else
#define PAIRS (ROWS * ROWS)
#endif
#define WARPS (THREADS / 32)

// Every thread walks down its own columns, holds their ROWS centred values and all their products in registers, and adds
// the products up in float32 over at most `steps` columns; sums over threads are made in float64. Nothing of size n is
// written, and every value is read once per pair of groups (once in all for SINGLE).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
gram(const element* __restrict__ x, const element* __restrict__ middle, double* __restrict__ partial,
     int K, int n, int stride, int steps, int centred) {
    int left = 0;  // the groups of rows that this block multiplies: right <= left
#ifndef SINGLE
    int right = blockIdx.y;
    while (right > left) { right -= left + 1; left += 1; }
#endif
    float sums[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) sums[p] = 0.0f;

    long long column = (long long)blockIdx.x * steps * THREADS + threadIdx.x;
#pragma unroll 1
    for (int step = 0; step < steps && column < n; step++, column += THREADS) {
        const float centre = centred ? widen(middle[column]) : 0.0f;
        float a[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = left * ROWS + i;
#ifdef SINGLE
            a[i] = widen(x[(long long)row * stride + column]) - centre;
        }
        int p = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) { sums[p] = fmaf(a[i], a[j], sums[p]); p++; }
#else
            a[i] = row < K ? widen(x[(long long)row * stride + column]) - centre : 0.0f;
        }
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

// weights @ x, and the largest absolute value: as the bits of a non-negative float, which order like integers.
#define COLUMNS 4
extern "C" __global__ void __launch_bounds__(256)
mix(const element* __restrict__ x, const float* __restrict__ weights, float* __restrict__ out, int* __restrict__ largest,
    int K, int n, int stride) {
    const long long first = (long long)blockIdx.x * 256 * COLUMNS + threadIdx.x;
    float value[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) value[c] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < K; k++) {
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
    if (threadIdx.x % 32 == 0) atomicMax(largest, __float_as_int(size));
}

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
