// The two helpers around decode_linear.cu: the start of a fused decode step, and an INT4 weight made dense for prefill.
// Compile-time: BF16. No CUDA headers.

typedef unsigned int u32;
typedef unsigned short u16;
struct __align__(16) u32x4 { u32 a, b, c, d; };

static __device__ __forceinline__ float half_to_float(u16 h) {
    float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f;
}
#if BF16
static __device__ __forceinline__ float to_float(u16 h) { return __uint_as_float((u32)h << 16); }
static __device__ __forceinline__ u16 from_float(float f) {
    u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
}
#else
static __device__ __forceinline__ float to_float(u16 h) { return half_to_float(h); }
static __device__ __forceinline__ u16 from_float(float f) {
    u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
}
#endif

struct EmbedArguments {
    const long long* tokens;  // [M]
    const u16* table;         // [vocabulary][N]
    const u16* gain;          // [N], of the first norm
    u16* residual;            // [M][N]
    u16* gained;              // [M][N] = residual * gain
    float* squares;           // [M][gridDim.x] partial sums of squares of the residual
    int N;
};

// grid (parts, M): each CTA takes a slice of one row.
extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ EmbedArguments p) {
    __shared__ float warp_sums[8];
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int row = blockIdx.y, slice = (p.N + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * slice, last = min(p.N, first + slice);
    const u16* from = p.table + (size_t)p.tokens[row] * p.N;
    float sum = 0.f;
    for (int n = first + threadIdx.x; n < last; n += 256) {
        const u16 raw = from[n];
        const float value = to_float(raw);
        p.residual[(size_t)row * p.N + n] = raw;
        p.gained[(size_t)row * p.N + n] = from_float(value * to_float(p.gain[n]));
        sum += value * value;
    }
#pragma unroll
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    sum = 0.f;
    for (int w = 0; w < 8; ++w) sum += warp_sums[w];
    p.squares[(size_t)row * gridDim.x + blockIdx.x] = sum;
}

struct DenseArguments {
    const u32x4* codes;      // [tiles][chunks][32], layout of decode_linear.py
    const u16* scales;       // [tiles][chunks][8][4]
    const u16* minimums;     // the same, or null: w = (q - 8) s, else q s + m
    u16* out;                // [N][K]
    float multiplier;
    int N, K, interleaved;   // interleaved: rows come 8 of gate, 8 of up; they leave as gate[N / 2], up[N / 2]
};

// grid (chunk groups of 8, tiles), 256 threads: a warp makes one chunk of one tile dense.
extern "C" __global__ void __launch_bounds__(256) make_dense(const __grid_constant__ DenseArguments p) {
    const int lane = threadIdx.x & 31, chunks = (p.K + 63) / 64;
    const int chunk = blockIdx.x * 8 + (threadIdx.x >> 5), tile = blockIdx.y;
    if (chunk >= chunks) return;
    const size_t at = (size_t)tile * chunks + chunk;
    const u32x4 q = p.codes[at * 32 + lane];
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
        const u32 bits = word == 0 ? q.a : word == 1 ? q.b : word == 2 ? q.c : q.d;
        const int half = word >> 1, lower = word & 1;
        const int n = p.interleaved ? tile * 8 + g + lower * (p.N / 2) : tile * 16 + g + lower * 8;
        const int k = chunk * 64 + half * 32 + t * 8;
        if (k >= p.K || (p.interleaved ? tile * 8 + g >= p.N / 2 : n >= p.N)) continue;
        const float s = half_to_float(p.scales[at * 32 + g * 4 + word]) * p.multiplier;
        const float m = p.minimums ? half_to_float(p.minimums[at * 32 + g * 4 + word]) * p.multiplier : -8.f * s;
        u32 packed[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float even = (float)(bits >> (4 * j) & 15) * s + m;
            const float odd = (float)(bits >> (4 * j + 16) & 15) * s + m;
            packed[j] = from_float(even) | (u32)from_float(odd) << 16;
        }
        *(u32x4*)(p.out + (size_t)n * p.K + k) = u32x4{packed[0], packed[1], packed[2], packed[3]};
    }
}
