// One CTA a row, the row in registers: [residual add +] RMS norm, SiLU(gate) * up, and e4m3 with a scale per row. x may be
// the bare sums of an FP8 product (SCALED): then its value is x * row_scale * column_scale, applied in float32 on the way in.
// Compile-time: BF16 (else fp16), N (columns of the result), THREADS, CHUNKS = ceil(N / 8 / THREADS), BLOCKS (CTAs a
// multiprocessor the registers must allow), SCALED, X_BF16 (of x, where it may differ from the rest); of `norm_rows`: ADD,
// QUANTIZE; of `quantize_rows`: SILU; of `scale_rows`: BIAS, ROWS. N is a multiple of 8 and every row starts on a 16-byte
// boundary. No CUDA headers.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
struct __align__(16) u32x4 { u32 v[4]; };
struct __align__(8) u32x2 { u32 v[2]; };

#define WARPS (THREADS / 32)
#ifndef E4M3_ORDER  // the result in the order wgmma_e4m3.cuh reads it (`e4m3_order`); N is a multiple of 16 then
#define E4M3_ORDER 0
#endif
#define FP8_MAX 448.f

template <bool BFLOAT> static __device__ __forceinline__ float low_of(u32 pair) {
    if (BFLOAT) return __uint_as_float(pair << 16);
    float f; asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(f) : "r"(pair)); return f;
}
template <bool BFLOAT> static __device__ __forceinline__ float high_of(u32 pair) {
    if (BFLOAT) return __uint_as_float(pair & 0xffff0000u);
    float f; asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(pair)); return f;
}
static __device__ __forceinline__ float low(u32 pair) { return low_of<BF16>(pair); }
static __device__ __forceinline__ float high(u32 pair) { return high_of<BF16>(pair); }
static __device__ __forceinline__ u32 pack(float a, float b) {
    u32 pair;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
#endif
    return pair;
}

// Saturates; NaN stays NaN.
static __device__ __forceinline__ u32 pack_e4m3(float a, float b, float c, float d) {
    u16 first, second;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(first) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(second) : "f"(d), "f"(c));
    return first | (u32)second << 16;
}

// Sum or largest value of the CTA, in every thread. `scratch` must not be in use by an earlier call.
template <bool LARGEST> static __device__ __forceinline__ float reduce(float value, float* scratch) {
#pragma unroll
    for (int d = 16; d; d >>= 1) {
        const float other = __shfl_xor_sync(~0u, value, d);
        value = LARGEST ? fmaxf(value, other) : value + other;
    }
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
    __syncthreads();
    value = scratch[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) value = LARGEST ? fmaxf(value, scratch[w]) : value + scratch[w];
    return value;
}

// The row, rounded to 16 bits as the unfused operators round it, to e4m3 with scale = absmax / 448; 1 for zeros, and where
// the scale would be subnormal, which --use_fast_math makes 0.
static __device__ __forceinline__ void store_quantized(const u32x4* row, u8* out, float* scale_out, float* scratch) {
    float largest = 0.f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fmaxf(fabsf(low(row[c].v[i])), fabsf(high(row[c].v[i]))));
    largest = reduce<true>(largest, scratch);
    const float scale = largest > 448.f * 1.1754944e-38f ? largest / FP8_MAX : 1.f, inverse = 1.f / scale;
    if (threadIdx.x == 0) *scale_out = scale;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int at = (c * THREADS + threadIdx.x) * 8;
        if (!E4M3_ORDER && at >= N) break;
        u32x2 codes;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            codes.v[i] = pack_e4m3(low(row[c].v[2 * i]) * inverse, high(row[c].v[2 * i]) * inverse,
                                   low(row[c].v[2 * i + 1]) * inverse, high(row[c].v[2 * i + 1]) * inverse);
#if E4M3_ORDER  // two lanes hold 16 values; pairs of one and of the other in turn, the first half in the even lane
        const bool odd = threadIdx.x & 1;
        const u32 other = __shfl_xor_sync(~0u, odd ? codes.v[0] : codes.v[1], 1);
        const u32 first = odd ? other : codes.v[0], second = odd ? codes.v[1] : other;
        codes.v[0] = __byte_perm(first, second, 0x5410), codes.v[1] = __byte_perm(first, second, 0x7632);
#endif
        if (at < N) *(u32x2*)(out + at) = codes;
    }
}

struct Arguments {
    const u16* x;         // [M][x_stride]; for SILU gate[N] and up[N]
    const u16* residual;  // [M][residual_stride]
    const u16* gain;      // [N]; for `scale_rows` the bias
    void* out;            // [M][N] e4m3, or of x's type
    u16* summed;          // [M][N] x + residual
    float* scale;         // [M]
    const float* row_scale;     // [M], of x
    const float* column_scale;  // [columns of x]
    float eps;
    int x_stride, residual_stride, rows;
};

struct Eight { float v[8]; };

// Scales of eight columns; ones where x is not sums. Loaded before the first store: the compiler moves no load over one.
static __device__ __forceinline__ Eight load_scales(const float* at) {
    Eight scales;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32x4 four = SCALED ? ((const u32x4*)at)[i] : u32x4{};
#pragma unroll
        for (int j = 0; j < 4; ++j) scales.v[4 * i + j] = SCALED ? __uint_as_float(four.v[j]) : 1.f;
    }
    return scales;
}

// Eight values of x in float32, scaled in the order of ``exact_product``.
static __device__ __forceinline__ Eight widen(u32x4 raw, float row_scale, Eight column_scales) {
    Eight wide;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float value = i & 1 ? high_of<X_BF16>(raw.v[i / 2]) : low_of<X_BF16>(raw.v[i / 2]);
        wide.v[i] = SCALED ? value * row_scale * column_scales.v[i] : value;
    }
    return wide;
}

#ifdef ADD
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) norm_rows(const __grid_constant__ Arguments p) {
    __shared__ float scratch[2][WARPS];
    const size_t row = blockIdx.x;
    asm volatile("griddepcontrol.launch_dependents;");
    u32x4 value[CHUNKS], gain[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int at = (c * THREADS + threadIdx.x) * 8;
        gain[c] = at < N ? *(const u32x4*)(p.gain + at) : u32x4{};
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const u16* x = p.x + row * p.x_stride;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int at = (c * THREADS + threadIdx.x) * 8;
        value[c] = at < N ? *(const u32x4*)(x + at) : u32x4{};
    }
    float square = 0.f;
#if ADD
    const float row_scale = SCALED ? p.row_scale[row] : 1.f;
    const u16* residual = p.residual + row * p.residual_stride;
    u32x4 other[CHUNKS];
    Eight scales[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int at = (c * THREADS + threadIdx.x) * 8;
        other[c] = at < N ? *(const u32x4*)(residual + at) : u32x4{};
        scales[c] = at < N ? load_scales(p.column_scale + at) : Eight{};
    }
#endif
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#if ADD
        const int at = (c * THREADS + threadIdx.x) * 8;
        const Eight wide = widen(value[c], row_scale, scales[c]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            value[c].v[i] = pack(wide.v[2 * i] + low(other[c].v[i]), wide.v[2 * i + 1] + high(other[c].v[i]));
        if (at < N) *(u32x4*)(p.summed + row * N + at) = value[c];
#endif
#pragma unroll
        for (int i = 0; i < 4; ++i) square += low(value[c].v[i]) * low(value[c].v[i]) + high(value[c].v[i]) * high(value[c].v[i]);
    }
    square = reduce<false>(square, scratch[0]);
    const float factor = rsqrtf(square / N + p.eps);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 normed = pack(low(value[c].v[i]) * factor, high(value[c].v[i]) * factor);
            value[c].v[i] = pack(low(normed) * low(gain[c].v[i]), high(normed) * high(gain[c].v[i]));
        }
#if QUANTIZE
    store_quantized(value, (u8*)p.out + row * N, p.scale + row, scratch[1]);
#else
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int at = (c * THREADS + threadIdx.x) * 8;
        if (at < N) *(u32x4*)((u16*)p.out + row * N + at) = value[c];
    }
#endif
}
#endif

#ifdef SILU
static __device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) quantize_rows(const __grid_constant__ Arguments p) {
    __shared__ float scratch[WARPS];
    const size_t row = blockIdx.x;
    const u16* x = p.x + row * p.x_stride;
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    u32x4 value[CHUNKS];
#if SILU
    const float row_scale = SCALED ? p.row_scale[row] : 1.f;
#endif
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int at = (c * THREADS + threadIdx.x) * 8;
        value[c] = at < N ? *(const u32x4*)(x + at) : u32x4{};
#if SILU
        if (at >= N) continue;  // the value is zeros, x + N + at outside the row
        const Eight gate = widen(value[c], row_scale, load_scales(p.column_scale + at));
        const Eight up = widen(*(const u32x4*)(x + N + at), row_scale, load_scales(p.column_scale + N + at));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 activated = pack(silu(gate.v[2 * i]), silu(gate.v[2 * i + 1]));
            value[c].v[i] = pack(low(activated) * up.v[2 * i], high(activated) * up.v[2 * i + 1]);
        }
#endif
    }
    store_quantized(value, (u8*)p.out + row * N, p.scale + row, scratch);
}
#endif

#ifdef BIAS
// x scaled (+ bias), rounded once. grid (column blocks, row groups): a thread takes 8 columns of ROWS rows, so that their
// scales are read once. `out` may be x: a thread reads all that it writes first.
extern "C" __global__ void __launch_bounds__(THREADS) scale_rows(const __grid_constant__ Arguments p) {
    const int at = (blockIdx.x * THREADS + threadIdx.x) * 8, first = blockIdx.y * ROWS;
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (at >= N) return;
    u32x4 value[ROWS];
    float row_scale[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int row = min(first + r, p.rows - 1);
        value[r] = *(const u32x4*)(p.x + (size_t)row * p.x_stride + at);
        row_scale[r] = p.row_scale[row];
    }
#if BIAS
    const u32x4 bias = *(const u32x4*)(p.gain + at);
#else
    const u32x4 bias = {};
#endif
    const Eight scales = load_scales(p.column_scale + at);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (first + r >= p.rows) break;
        const Eight wide = widen(value[r], row_scale[r], scales);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            value[r].v[i] = pack(wide.v[2 * i] + low(bias.v[i]), wide.v[2 * i + 1] + high(bias.v[i]));
        *(u32x4*)((u16*)p.out + (size_t)(first + r) * N + at) = value[r];
    }
}
#endif
