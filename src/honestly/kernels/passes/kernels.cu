// Four kernels for K clients' columns, compiled at run time for one K and one element type:
//   TYPE_FLOAT | TYPE_HALF | TYPE_BFLOAT16, and
//   gram: ROWS (K), THREADS, MIDDLE (what is subtracted), TABLE      mix: CLIENTS (K), GROUP      mix_parts: CLIENTS, GROUP, TABLE      rank: RANKED (K), COMPARATORS, WANTED, COUNT or NEAREST

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
#define PAIRS (ROWS * (ROWS + 1) / 2)
#define WARPS (THREADS / 32)

__device__ __forceinline__ float between(float a, float b, float c) {  // the median; NaN only if all three are
    return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}

#if defined(TYPE_FLOAT) && __CUDA_ARCH__ >= 800
// Values travel through a ring in shared memory, several columns ahead of their use: the registers are full of sums, and
// too few threads fit beside one another to hide the memory's latency. Every thread fetches what it alone will read.
#define HELD (ROWS + (MIDDLE == 1))
#define STAGES 4

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
// the products up in float32 over the block's few hundred columns of a thread and the threads of a warp; from there on in
// float64. Nothing of size n is written, and every value is read once. A block's columns belong to one part (one layer's
// columns that lie side by side): `table` says for each block its first column, its end, its part, the part's first block
// and how many the part has. The block of a part that ends last adds up what the others of the part left in `partial`,
// always in the same order, and sets the part's `ended` back to 0.
// The centre (MIDDLE): 0 nothing, 1 the row `middle`, 2 the median of rows 0, ROWS / 2 and ROWS - 1.
extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
gram(const element* __restrict__ x, const element* __restrict__ middle, double* partial, double* result,
     unsigned int* ended, const int* __restrict__ table, int stride) {
    const int* own = table + blockIdx.x * TABLE;
    const int n = own[1];
    const int steps = (n - own[0] + THREADS - 1) / THREADS;
    float sums[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) sums[p] = 0.0f;

    long long column = own[0] + threadIdx.x;
#ifdef STAGES
    __shared__ float ring[STAGES][HELD][THREADS];
    const unsigned int mine = (unsigned int)__cvta_generic_to_shared(&ring[0][0][threadIdx.x]);
    const unsigned int stage = HELD * THREADS * 4;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++, column += THREADS) fetch_column(mine + s * stage, x, middle, column, n, stride);
    int next = STAGES - 1, now = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++, column += THREADS) {
        // The place of the column before this one, whose products are made.
        fetch_column(mine + next * stage, x, middle, column, n, stride);
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        float a[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] = ring[now][i][threadIdx.x];
#else
#pragma unroll 1
    for (int step = 0; step < steps && column < n; step++, column += THREADS) {
        float a[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] = widen(x[(long long)i * stride + column]);
#endif
#if MIDDLE == 2
        const float centre = between(a[0], a[ROWS / 2], a[ROWS - 1]);
#elif MIDDLE == 1 && defined(STAGES)
        const float centre = ring[now][ROWS][threadIdx.x];
#else
        const float centre = MIDDLE == 1 ? widen(middle[column]) : 0.0f;
#endif
#pragma unroll
        for (int i = 0; i < ROWS; i++) a[i] -= centre;
        int p = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) { sums[p] = fmaf(a[i], a[j], sums[p]); p++; }
#ifdef STAGES
        next = now;
        now = now + 1 == STAGES ? 0 : now + 1;
#endif
    }

    __shared__ float shared[WARPS][PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        float sum = sums[p];
#pragma unroll
        for (int lane = 16; lane > 0; lane >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, lane);
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][p] = sum;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < PAIRS; p += THREADS) {
        double sum = 0.0;
        for (int warp = 0; warp < WARPS; warp++) sum += shared[warp][p];
        partial[(long long)blockIdx.x * PAIRS + p] = sum;
    }
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    const int part = own[2], first = own[3], count = own[4];
    if (threadIdx.x == 0) last = atomicInc(ended + part, count - 1) == count - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int p = threadIdx.x; p < PAIRS; p += THREADS) {
        double sum = 0.0;
#pragma unroll 24
        for (int block = 0; block < count; block++) sum += __ldcg(partial + (long long)(first + block) * PAIRS + p);
        result[part * PAIRS + p] = sum;
    }
}
#endif

// Values above this, infinite or NaN raise the caller's flag. Nobody writes to it as long as all is well.
#define FINE(value) (fabsf(value) < 1e17f)

#ifdef CLIENTS
#define COLUMNS 4  // of a thread
struct Weights { float of[CLIENTS]; };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
#define READ_IN_PLACE __grid_constant__  // else every thread may make itself a copy
#else
#define READ_IN_PLACE
#endif

// Write `weights @ x` of a thread's columns, SIZE neighbours from `first` on, then those 256 SIZE further; false if a sum is
// not fine. Single columns may lie beyond the end n; groups never do.
template <int SIZE>
__device__ __forceinline__ bool add_up(const element* __restrict__ x, const Weights& weights, float* __restrict__ out,
                                       long long first, long long n, int stride) {
    struct alignas(SIZE * sizeof(element)) Values { element of[SIZE]; };  // one load
    struct alignas(SIZE * sizeof(float)) Sums { float of[SIZE]; } sums[COLUMNS / SIZE];
#pragma unroll
    for (int c = 0; c < COLUMNS / SIZE; c++)
#pragma unroll
        for (int v = 0; v < SIZE; v++) sums[c].of[v] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < CLIENTS; k++) {
        const float weight = weights.of[k];
#pragma unroll
        for (int c = 0; c < COLUMNS / SIZE; c++) {
            const long long column = first + c * 256 * SIZE;
            if (SIZE == 1 && column >= n) continue;
            const Values values = *(const Values*)(x + (long long)k * stride + column);
#pragma unroll
            for (int v = 0; v < SIZE; v++) sums[c].of[v] = fmaf(weight, widen(values.of[v]), sums[c].of[v]);
        }
    }
    bool fine = true;
#pragma unroll
    for (int c = 0; c < COLUMNS / SIZE; c++) {
        const long long column = first + c * 256 * SIZE;
        if (SIZE > 1 || column < n) *(Sums*)(out + column) = sums[c];
#pragma unroll
        for (int v = 0; v < SIZE; v++) fine = fine && FINE(sums[c].of[v]);
    }
    return fine;
}

// The same for a block of 256 threads: its columns from `start` on. GROUP neighbours are read at once where rows begin at
// multiples of GROUP values, which is faster.
__device__ __forceinline__ bool add_up_block(const element* __restrict__ x, const Weights& weights, float* __restrict__ out,
                                             long long start, long long n, int stride) {
    if (GROUP > 1 && start % GROUP == 0 && start + 256 * COLUMNS <= n)
        return add_up<GROUP>(x, weights, out, start + threadIdx.x * GROUP, n, stride);
    return add_up<1>(x, weights, out, start + threadIdx.x, n, stride);
}

// weights @ x
extern "C" __global__ void __launch_bounds__(256)
mix(const element* __restrict__ x, const READ_IN_PLACE Weights weights, float* __restrict__ out, int* flag, int n,
    int stride) {
    if (!add_up_block(x, weights, out, (long long)blockIdx.x * 256 * COLUMNS, n, stride)) *flag = 1;
}
#endif

#if defined(CLIENTS) && defined(TABLE)
// weights[part] @ x, where `table` gives each block its columns and their part
extern "C" __global__ void __launch_bounds__(256)
mix_parts(const element* __restrict__ x, const Weights* __restrict__ weights, float* __restrict__ out, int* flag,
          const int* __restrict__ table, int stride) {
    const int* own = table + blockIdx.x * TABLE;
    if (!add_up_block(x, weights[own[2]], out, own[0], own[1], stride)) *flag = 1;
}
#endif

// Compare each column's values in registers; then write the WANTED rows as they are, or with COUNT their mean, or with
// NEAREST the mean of so many of them, sorted, that are nearest to their median (rules/_lib/windows.py).
#ifdef COMPARATORS
struct Chosen { int row[RANKED]; };  // which rows of x are compared
#define SMALLER(i, j) { const float low = fminf(v[i], v[j]); v[j] = fmaxf(v[i], v[j]); v[i] = low; }
extern "C" __global__ void __launch_bounds__(256)
rank(const element* __restrict__ x, const Chosen chosen, float* __restrict__ out, int* flag, int n, int stride) {
    const long long column = (long long)blockIdx.x * 256 + threadIdx.x;
    if (column >= n) return;
    bool fine = true;
    float v[RANKED];
#pragma unroll
    for (int k = 0; k < RANKED; k++) {
        v[k] = widen(x[(long long)chosen.row[k] * stride + column]);
        fine = fine && FINE(v[k]);
    }
    if (!fine) *flag = 1;
    COMPARATORS
    const int wanted[] = {WANTED};
#ifdef COUNT
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < COUNT; k++) sum += v[wanted[k]];
    out[column] = sum / COUNT;
#elif defined(NEAREST)
    const float low = v[wanted[(RANKED - 1) / 2]], high = v[wanted[RANKED / 2]];
    const float median = RANKED % 2 ? low : 0.5f * low + 0.5f * high;
    float sum = 0.0f;
    int start = 0;
#pragma unroll
    for (int i = 0; i < RANKED - NEAREST; i++) {
        start = v[wanted[i + NEAREST]] - median < median - v[wanted[i]] ? i + 1 : start;
    }
#pragma unroll
    for (int i = 0; i < RANKED; i++) sum += start <= i && i < start + NEAREST ? v[wanted[i]] : 0.0f;
    out[column] = sum / NEAREST;
#else
#pragma unroll
    for (int k = 0; k < sizeof(wanted) / sizeof(int); k++) out[(long long)k * n + column] = v[wanted[k]];
#endif
}
#endif
