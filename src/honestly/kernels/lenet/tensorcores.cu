// The convolutions of `kernels.cu` on the tensor cores: every number is split in two bfloat16 halves (16 to 17 bits),
// a product is high x high + high x low + low x high, summed in float32. The pairs (c, r) of input channel and filter row
// are one axis of the products, the filter columns s slide along the image. Up to 16 output channels. Every sum has a
// fixed order; long ones leave the tensor cores now and then, which truncate where float32 rounds.

#define PAIRS (C * R)
#define GROUP (lane / 4)  // the lane's place in a fragment, in PTX's words groupID and threadID_in_group
#define PLACE (lane % 4)  // (of 16 terms a lane has four; which ones is free, if it has the same of both factors)

// Two numbers as bfloat16, rounded: `upper` in the upper half.
__device__ __forceinline__ unsigned to_bf16(float upper, float lower) {
#ifdef EMULATED
    return cvt_bf16x2(upper, lower);
#else
    unsigned two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(upper), "f"(lower));
    return two;
#endif
}

// (v0, v1) = high + low.
__device__ __forceinline__ void split(float v0, float v1, unsigned& high, unsigned& low) {
    high = to_bf16(v1, v0);
    low = to_bf16(v1 - __uint_as_float(high & 0xffff0000u), v0 - __uint_as_float(high << 16));
}

// The same for 2 x 4 numbers of a left factor: those of two rows.
__device__ __forceinline__ void split(const float (&upper)[4], const float (&lower)[4], uint4& high, uint4& low) {
    split(upper[0], upper[1], high.x, low.x);
    split(lower[0], lower[1], high.y, low.y);
    split(upper[2], upper[3], high.z, low.z);
    split(lower[2], lower[3], high.w, low.w);
}

__device__ __forceinline__ void read(const uint4& from, unsigned (&a)[4]) {
    const uint4 four = from;
    a[0] = four.x; a[1] = four.y; a[2] = four.z; a[3] = four.w;
}

// Four bytes of a, chosen by the selector's digits; 8 + n is the top bit of byte n, eight times.
__device__ __forceinline__ unsigned permute(unsigned a, unsigned selector) {
#ifdef EMULATED
    return prmt(a, 0, selector);
#else
    unsigned d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0), "r"(selector));
    return d;
#endif
}

// Of four numbers whose winning corners are the bytes of `won`: all bits are set in a half where `corner` did not win.
__device__ __forceinline__ void lost(unsigned won, int corner, unsigned& first, unsigned& second) {
    const unsigned other = (won ^ corner * 0x01010101u) + 0x7f7f7f7fu;  // the byte's top bit: another corner
    first = permute(other, 0x9988u);
    second = permute(other, 0xbbaau);
}

// sum (16 x 8) += a (16 x 16) b (16 x 8).
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef EMULATED
    mma_m16n8k16_bf16(sum, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// One of the three parts of a product, the smallest first.
__device__ __forceinline__ void multiply_part(int part, float (&sum)[4], const unsigned (&a_high)[4],
                                              const unsigned (&a_low)[4], const unsigned (&b_high)[2],
                                              const unsigned (&b_low)[2]) {
    if (part == 0) multiply(sum, a_high, b_low);
    if (part == 1) multiply(sum, a_low, b_high);
    if (part == 2) multiply(sum, a_high, b_high);
}
