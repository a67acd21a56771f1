// Runs CUDA kernels on a CPU, for tests: the threads of a block are fibres that take turns at every barrier and shuffle.
#undef _FORTIFY_SOURCE  // it takes a jump to another stack for an error
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>
#define EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
struct dim3 { unsigned x, y, z; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uchar2 { unsigned char x, y; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
static dim3 threadIdx, blockIdx, gridDim;
static unsigned __float_as_uint(float v) { unsigned bits; memcpy(&bits, &v, 4); return bits; }
static float __uint_as_float(unsigned bits) { float v; memcpy(&v, &bits, 4); return v; }

struct Fibre { ucontext_t context; jmp_buf place; std::vector<char> stack; bool begun, done; };
static std::vector<Fibre*> fibres;
static ucontext_t home;
static jmp_buf scheduler;
static void turn() {
    if (!_setjmp(fibres[threadIdx.x]->place)) _longjmp(scheduler, 1);
}

// A barrier of some threads: the last to come opens it. Threads that have ended are waited for no longer.
struct Barrier {
    int members, waiting, opened;
    void check() { if (waiting && waiting == members) { waiting = 0; opened++; } }
    void wait() {
        const int now = opened;
        waiting++;
        check();
        while (opened == now) turn();
    }
};
static Barrier block, warps[32];
static void __syncthreads() { block.wait(); }
static void __syncwarp() { warps[threadIdx.x / 32].wait(); }
static float __shfl_xor_sync(unsigned, float value, int other) {
    static float lanes[1024];
    const unsigned me = threadIdx.x;
    lanes[me] = value;
    __syncwarp();
    const float got = lanes[me ^ other];
    __syncwarp();
    return got;
}

// Copies that arrive as late as they may: when they are waited for.
struct Copy { void* to; const void* from; int bytes, group; };
static std::vector<Copy> copies[1024];
static int groups[1024];
static void cp_async(void* to, const void* from, int bytes) {
    if ((uintptr_t)to % bytes || (uintptr_t)from % bytes) abort();
    copies[threadIdx.x].push_back({to, from, bytes, groups[threadIdx.x]});
}
static void cp_async_commit_group() { groups[threadIdx.x]++; }
static void cp_async_wait_group(int open) {
    std::vector<Copy>& mine = copies[threadIdx.x];
    size_t done = 0;
    for (; done < mine.size() && mine[done].group < groups[threadIdx.x] - open; done++)
        memcpy(mine[done].to, mine[done].from, mine[done].bytes);
    mine.erase(mine.begin(), mine.begin() + done);
}

// The tensor cores: d (16 x 8) += a (16 x 16) b (16 x 8), fragments as in the PTX manual, two bfloat16 a register. They cut
// a sum off where float32 would round.
static unsigned bf16(float v) {
    const unsigned bits = __float_as_uint(v);
    return v != v ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;  // to the nearest, ties to even
}
static unsigned cvt_bf16x2(float upper, float lower) { return bf16(upper) << 16 | bf16(lower); }
static unsigned prmt(unsigned a, unsigned b, unsigned selector) {
    const uint64_t from = (uint64_t)b << 32 | a;
    unsigned d = 0;
    for (int n = 0; n < 4; n++) {
        const unsigned chosen = selector >> 4 * n & 15u, byte = (unsigned)(from >> 8 * (chosen & 7u)) & 255u;
        d |= (chosen < 8u ? byte : byte >> 7 ? 255u : 0u) << 8 * n;  // 8 and above: the byte's top bit, eight times
    }
    return d;
}
static void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static float left[2][32][16][16], right[2][32][16][8];
    static unsigned char turns[1024];
    const unsigned me = threadIdx.x, warp = me / 32, group = me % 32 / 4, place = me % 4, now = turns[me] ^= 1;
    for (int h = 0; h < 2; h++) {
        for (int e = 0; e < 4; e++)
            left[now][warp][group + e % 2 * 8][2 * place + e / 2 * 8 + h] = __uint_as_float(a[e] >> 16 * h << 16);
        for (int e = 0; e < 2; e++) right[now][warp][2 * place + 8 * e + h][group] = __uint_as_float(b[e] >> 16 * h << 16);
    }
    __syncwarp();
    for (int e = 0; e < 4; e++) {
        double sum = d[e];
        for (int n = 0; n < 16; n++)
            sum += (double)left[now][warp][group + e / 2 * 8][n] * right[now][warp][n][2 * place + e % 2];
        const float near = (float)sum;
        d[e] = std::fabs((double)near) > std::fabs(sum) ? std::nextafter(near, 0.0f) : near;
    }
}

// Four 8 x 8 matrices of 16-bit numbers: lane 8 n + i names row i of matrix n; turned, a lane gets a column's numbers.
static void ldmatrix_x4(unsigned (&r)[4], const void* row, bool turned) {
    static const unsigned short* rows[2][1024];
    static unsigned char turns[1024];
    const unsigned me = threadIdx.x, first = me / 32 * 32, group = me % 32 / 4, place = me % 4, now = turns[me] ^= 1;
    if ((uintptr_t)row % 16) abort();
    rows[now][me] = (const unsigned short*)row;
    __syncwarp();
    for (int n = 0; n < 4; n++) {
        unsigned two[2];
        for (int h = 0; h < 2; h++)
            two[h] = turned ? rows[now][first + 8 * n + 2 * place + h][group] : rows[now][first + 8 * n + group][2 * place + h];
        r[n] = two[1] << 16 | two[0];
    }
}

template <class Kernel> static void run(const int* grid, int threads, Kernel kernel) {
    static void (*entry)();
    static Kernel* body;
    static unsigned current;
    static unsigned n;
    body = &kernel;
    entry = [] {
        const unsigned me = current;
        (*body)();
        fibres[me]->done = true;
        for (Barrier* b : {&block, &warps[me / 32]}) { b->members--; b->check(); }
        _longjmp(scheduler, 1);
    };
    while ((int)fibres.size() < threads) fibres.push_back(new Fibre{{}, {}, std::vector<char>(1 << 16), false, true});
    for (int z = 0; z < grid[2]; z++) for (int y = 0; y < grid[1]; y++) for (int x = 0; x < grid[0]; x++) {
        blockIdx = {(unsigned)x, (unsigned)y, (unsigned)z};
        gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
        block = {threads, 0, 0};
        for (int w = 0; w < 32; w++) warps[w] = {32, 0, 0};
        for (n = 0; (int)n < threads; n++) {
            Fibre& f = *fibres[n];
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data();
            f.context.uc_stack.ss_size = f.stack.size();
            f.context.uc_link = &home;
            f.begun = f.done = false;
            makecontext(&f.context, entry, 0);
        }
        static bool left;
        for (left = true; left;) {
            left = false;
            for (n = 0; (int)n < threads; n++) {
                if (fibres[n]->done) continue;
                threadIdx.x = current = n;
                if (!_setjmp(scheduler)) {  // (jumps cost far less than swapcontext, which asks the kernel every time)
                    if (fibres[n]->begun) _longjmp(fibres[n]->place, 1);
                    fibres[n]->begun = true;
                    setcontext(&fibres[n]->context);
                }
                left = left || !fibres[n]->done;
            }
        }
    }
}
