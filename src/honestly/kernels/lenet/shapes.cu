// What the kernels for convolutions share: the source of every one of them begins with this file.

typedef long long wide;

#ifdef CONVOLUTION
// A convolution (C channels of H x W -> M, filters R x S, no padding), 2 x 2 pooling, bias and ReLU as one operation.
// `code` remembers which of the four corners won (0 .. 3, in reading order), or 4 where ReLU gave 0.
#define DEAD 4
#define TAPS (R * S)
#define POOLED_H ((H - R + 1) / 2)
#define POOLED_W ((W - S + 1) / 2)
#ifdef FLAT  // the next layer is fully connected: channels first, as PyTorch flattens
#define AT(k, i, m, j) ((((wide)(k) * M + (m)) * POOLED_H + (i)) * POOLED_W + (j))
#else
#define AT(k, i, m, j) ((((wide)(k) * POOLED_H + (i)) * M + (m)) * POOLED_W + (j))
#endif
#endif
