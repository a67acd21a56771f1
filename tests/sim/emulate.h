// Runs CUDA kernels on a CPU, for tests: the threads of a block are fibres that take turns at every barrier and shuffle.
#include <cmath>
#include <cstdint>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
struct dim3 { unsigned x, y, z; };
struct float4 { float x, y, z, w; };
static dim3 threadIdx, blockIdx;

struct Fibre { ucontext_t context; std::vector<char> stack; bool done; };
static std::vector<Fibre*> fibres;
static ucontext_t scheduler;
static float lanes[1024];
static void turn() { swapcontext(&fibres[threadIdx.x]->context, &scheduler); }
static void __syncthreads() { turn(); }
static float __shfl_xor_sync(unsigned, float value, int other) {
    const unsigned me = threadIdx.x;
    lanes[me] = value;
    turn();
    const float got = lanes[me ^ other];
    turn();
    return got;
}

template <class Kernel> static void run(const int* grid, int threads, Kernel kernel) {
    static void (*entry)();
    static Kernel* body;
    static unsigned current;
    body = &kernel;
    entry = [] { const unsigned me = current; (*body)(); fibres[me]->done = true; };
    while ((int)fibres.size() < threads) fibres.push_back(new Fibre{{}, std::vector<char>(1 << 16), true});
    for (int z = 0; z < grid[2]; z++) for (int y = 0; y < grid[1]; y++) for (int x = 0; x < grid[0]; x++) {
        blockIdx = {(unsigned)x, (unsigned)y, (unsigned)z};
        for (int n = 0; n < threads; n++) {
            Fibre& f = *fibres[n];
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data();
            f.context.uc_stack.ss_size = f.stack.size();
            f.context.uc_link = &scheduler;
            f.done = false;
            makecontext(&f.context, entry, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (int n = 0; n < threads; n++) {
                if (fibres[n]->done) continue;
                threadIdx.x = current = n;
                swapcontext(&scheduler, &fibres[n]->context);
                left = left || !fibres[n]->done;
            }
        }
    }
}
