// Helpers around the linears: the start of a fused decode step, and INT4 weights made dense or e4m3 for prefill.
// Compile-time: BF16 (of activations), FP8 (make_dense_blocks writes e4m3).

#include "half.cuh"

struct __align__(16) u32x4 { u32 a, b, c, d; };

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

struct BlockArguments {
    const unsigned char* blocks;  // [tiles of 64 rows][chunks][BLOCK_BYTES], layout of wgmma_layout.py
    const float* row_factor;      // [tiles * 64]
    void* out;                    // [N][K], 16-bit or e4m3 (then without row_factor, times fp8_factor)
    float fp8_factor;
    int N, K, chunks, block_bytes, interleaved;
};

// grid (chunks of 64 k, tiles), 128 threads: a CTA makes one block dense, through shared memory so that rows are written whole.
extern "C" __global__ void __launch_bounds__(128) make_dense_blocks(const __grid_constant__ BlockArguments p) {
    const int pitch = FP8 ? 80 : 144, thread = threadIdx.x, w = thread >> 5, g = thread >> 2 & 7, t = thread & 3;
    __shared__ __align__(16) unsigned char tile[64 * (FP8 ? 80 : 144)];
    const unsigned char* block = p.blocks + ((size_t)blockIdx.y * p.chunks + blockIdx.x) * p.block_bytes;
    const u32x4 codes = *(const u32x4*)(block + thread * 16);
    const u32 word[4] = {codes.a, codes.b, codes.c, codes.d};
    const u16* scales = (const u16*)(block + 2048) + (thread >> 2) * 4;
#pragma unroll
    for (int high = 0; high < 2; ++high) {
        const int row = w * 16 + high * 8 + g;
        const float factor = FP8 ? p.fp8_factor : p.row_factor[blockIdx.y * 64 + row];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u16 raw = scales[high * 2 + (i >> 1)];
            const float s = BF16 ? to_float(raw) * 0x1p-64f * (high ? 0x1p-65f : 0x1p-69f) : fp16_to_float(raw) * (high ? 0x1p-20f : 0x1p-24f);
            const float m = p.block_bytes > 2304 ? to_float(scales[128 + high * 2 + (i >> 1)]) : -8.f * s;
#pragma unroll
            for (int far = 0; far < 2; ++far) {
                const u32 bits = word[i] >> (4 * (far * 2 + high));
                const float even = ((float)(bits & 15) * s + m) * factor, odd = ((float)(bits >> 16 & 15) * s + m) * factor;
                const int k = i * 16 + far * 8 + t * 2;
#if FP8
                u16 pair;
                asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(odd), "f"(even));
                *(u16*)(tile + row * pitch + k) = pair;
#else
                *(u32*)(tile + row * pitch + k * 2) = from_float(even) | (u32)from_float(odd) << 16;
#endif
            }
        }
    }
    __syncthreads();
    const int pieces = FP8 ? 4 : 8, size = FP8 ? 1 : 2;  // of 16 bytes in a row of the block
    for (int i = thread; i < 64 * pieces; i += 128) {
        const int row = i / pieces, piece = i % pieces, in_order = blockIdx.y * 64 + row;
        const int half = (in_order >> 4) * 8 + (row & 7);
        const int n = p.interleaved ? half + (row >> 3 & 1) * (p.N / 2) : in_order;
        if (in_order >= p.N) continue;
        const u32x4 v = *(const u32x4*)(tile + row * pitch + piece * 16);
        *(u32x4*)((unsigned char*)p.out + ((size_t)n * p.K + blockIdx.x * 64) * size + piece * 16) = v;
    }
}
