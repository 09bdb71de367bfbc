// Linear layer for small batches, bound by reading weights: y[m, n] = sum_k W[n, k] * x[m, k], m < M <= 8 * MT.
//
// A CTA owns RT tiles of 16 output rows; its WARPS warps split K in chunks of 64 and add up through shared memory. Products
// run on the tensor cores (m16n8k16, the batch as the n side): a batch of 8 costs what a batch of 1 costs, and sums are
// float32. Weights stream through registers, STAGES chunks ahead; the first ones are requested *before* waiting for the
// previous kernel (programmatic dependent launch), which hides the ramp between layers.
//
// At 4.4 TB/s a multiprocessor has about 30 cycles for a tile's chunk, so instructions are what is scarce:
//  * a nibble becomes a 16-bit float by one LOP3, as 1024 + q or 1024 + 16 q (bf16: 128 + q), and stays that way; the sum of
//    the constant part over a group, the same for every row, is what the accumulator starts from (two more products with
//    a constant operand, shared by all RT tiles). The 16 of the second form is divided out of x.
//  * the k index inside a group of 32 is permuted alike on both sides: lane (g, t) of a warp, g = lane / 4, t = lane % 4,
//    takes k = 8 t .. 8 t + 7 of each group, so that its x fragment is one 16-byte load.
//
// Weights are int4 codes with one 16-bit scale per 32 (layout: see int4_layout.py). Compile-time: BF16; MT; XROWS (batch rows a
// tile of 8 can hold: 1, 2, 4, 8; 8 when MT > 1); RT; WARPS; STAGES (even); HAS_MIN (w = q s + m, else (q - 8) s); NORM (y = r * acc
// + bias, r = 1 / root mean square of the input row, else 1); FULL_K (K is a multiple of 64); INTERLEAVED (rows of gate and up
// in eights are put back in order).

#include "half.cuh"

struct __align__(16) u32x4 { u32 a, b, c, d; };
struct __align__(8) u32x2 { u32 a, b; };

static __device__ __forceinline__ u32x4 load_weights(const void* p) {  // read once: keep it out of L1
    u32x4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d) : "l"(p));
    return v;
}
[[maybe_unused]] static __device__ __forceinline__ u32x2 load_scales(const void* p) {
    u32x2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.a), "=r"(v.b) : "l"(p));
    return v;
}
static __device__ __forceinline__ u32x4 load_x(const void* p) {  // written by the kernel before: not through .nc
    u32x4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d) : "l"(p) : "memory");
    return v;
}
[[maybe_unused]] static __device__ __forceinline__ float load_f32(const float* p) {  // written by the kernel before: not through .nc
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void mma(
    float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, const float (&c)[4]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Eight codes of one word -> pairs (k = 0,1), (2,3), (4,5), (6,7) in the raw forms described above.
// What a raw pair is too much, negated: the form's constant, and the 8 of a symmetric code.
#if BF16
#define NEGATIVE_EVEN (HAS_MIN ? 0xC300C300u : 0xC308C308u)  // -128, -136
#define NEGATIVE_ODD NEGATIVE_EVEN
#define ONE 0x3F803F80u
#define SIXTEEN ONE
#else
#define NEGATIVE_EVEN (HAS_MIN ? 0xE400E400u : 0xE408E408u)  // -1024, -1032
#define NEGATIVE_ODD (HAS_MIN ? 0xE400E400u : 0xE480E480u)   // -1024, -1152, against x / 16
#define ONE 0x3C003C00u
#define SIXTEEN 0x4C004C00u
#endif
[[maybe_unused]] static __device__ __forceinline__ void unpack(u32 q, u32 (&w)[4]) {
#if BF16
#pragma unroll
    for (int j = 0; j < 4; ++j)
        asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xEA;" : "=r"(w[j]) : "r"(q >> (4 * j)));  // (a & b) | c
#else
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const u32 p = q >> (8 * j);
        asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xEA;" : "=r"(w[2 * j]) : "r"(p), "r"(0x64006400u));
        asm("lop3.b32 %0, %1, 0x00f000f0, %2, 0xEA;" : "=r"(w[2 * j + 1]) : "r"(p), "r"(0x64006400u));
    }
#endif
}
[[maybe_unused]] static __device__ __forceinline__ u32 divide_by_sixteen(u32 pair) {
#if BF16
    return pair;
#else
    u32 out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(0x2C002C00u));
    return out;
#endif
}

struct Arguments {
    const void* weight;      // u32x4 [tiles][chunks][32]
    const void* scales;      // u32x2 [tiles][chunks][8]
    const void* minimums;    // the same, or null
    const u16* x;            // [M][K]
    u16* y;                  // [M][N]
    const u16* bias;         // [N] or null
    const float* squares_in; // NORM: partial sums of squares of the input rows, [M][squares_count]
    int squares_count;
    float eps;
    float multiplier;        // of the whole weight: a power of two that keeps the 16-bit scales in range
    int M, N, K;
};

struct Fragment {  // one chunk of 64 k of one tile, this lane's part
    u32x4 q;
    u32x2 s;
#if HAS_MIN
    u32x2 m;
#endif
};

// Where this lane reads its part of one tile; a chunk further on is a constant distance.
struct Source {
    const u32x4* q;
    const u32x2* s;
    const u32x2* m;

    __device__ __forceinline__ Source(const Arguments& p, int tile, int first_chunk, int chunks, int lane) {
        const size_t at = (size_t)min(tile, (p.N + 15) / 16 - 1) * chunks + first_chunk;
        q = (const u32x4*)p.weight + at * 32 + lane;
        s = (const u32x2*)p.scales + at * 8 + (lane >> 2);
        m = (const u32x2*)p.minimums + at * 8 + (lane >> 2);
    }
    __device__ __forceinline__ void fetch(Fragment& f, int steps_on, int columns_left) const {
        f.q = load_weights(q + steps_on * WARPS * 32);
        f.s = load_scales(s + steps_on * WARPS * 8);
#if HAS_MIN
        f.m = load_scales(m + steps_on * WARPS * 8);
#endif
    }
    __device__ __forceinline__ void advance() {
        q += STAGES * WARPS * 32;
        s += STAGES * WARPS * 8;
#if HAS_MIN
        m += STAGES * WARPS * 8;
#endif
    }
};

// Where this lane reads x. Rows past M repeat the last one: what they add is never stored.
struct InputSource {
    const u16* row[MT];

    __device__ __forceinline__ InputSource(const Arguments& p, int warp, int lane) {
#pragma unroll
        for (int t = 0; t < MT; ++t)
            row[t] = p.x + (size_t)min(t * 8 + (lane >> 2), p.M - 1) * p.K + warp * 64 + (lane & 3) * 8;
    }
    __device__ __forceinline__ void fetch(u32x4 (&x)[MT][2], int steps_on, int columns_left) const {
#pragma unroll
        for (int t = 0; t < MT; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (FULL_K || half * 32 < columns_left)
                    x[t][half] = load_x(row[t] + steps_on * WARPS * 64 + half * 32);
                else
                    x[t][half] = u32x4{0, 0, 0, 0};
            }
    }
    __device__ __forceinline__ void advance() {
#pragma unroll
        for (int t = 0; t < MT; ++t) row[t] += STAGES * WARPS * 64;
    }
};

static __device__ __forceinline__ void multiply(const Fragment (&f)[RT], u32x4 (&x)[MT][2], float (&acc)[RT][MT][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float zero[4] = {0.f, 0.f, 0.f, 0.f};
        float start[MT][4];
#if HAS_MIN
        float sum[MT][4];
#endif
#pragma unroll
        for (int t = 0; t < MT; ++t) {
            u32x4& b = x[t][half];
            b.b = divide_by_sixteen(b.b);
            b.d = divide_by_sixteen(b.d);
            mma(start[t], NEGATIVE_EVEN, NEGATIVE_EVEN, NEGATIVE_ODD, NEGATIVE_ODD, b.a, b.b, zero);
            mma(start[t], NEGATIVE_EVEN, NEGATIVE_EVEN, NEGATIVE_ODD, NEGATIVE_ODD, b.c, b.d, start[t]);
#if HAS_MIN
            mma(sum[t], ONE, ONE, SIXTEEN, SIXTEEN, b.a, b.b, zero);
            mma(sum[t], ONE, ONE, SIXTEEN, SIXTEEN, b.c, b.d, sum[t]);
#endif
        }
#pragma unroll
        for (int r = 0; r < RT; ++r) {
            u32 low[4], high[4];  // rows g and g + 8: four pairs of k each
            unpack(half ? f[r].q.c : f[r].q.a, low);
            unpack(half ? f[r].q.d : f[r].q.b, high);
            const u32 s = half ? f[r].s.b : f[r].s.a;
            const float s_low = fp16_to_float((u16)s), s_high = fp16_to_float((u16)(s >> 16));
#if HAS_MIN
            const u32 m = half ? f[r].m.b : f[r].m.a;
            const float m_low = fp16_to_float((u16)m), m_high = fp16_to_float((u16)(m >> 16));
#endif
#pragma unroll
            for (int t = 0; t < MT; ++t) {
                const u32x4& b = x[t][half];
                float part[4];
                mma(part, low[0], high[0], low[1], high[1], b.a, b.b, start[t]);
                mma(part, low[2], high[2], low[3], high[3], b.c, b.d, part);
#pragma unroll
                for (int i = 0; i < 4; i += (XROWS == 1 ? 2 : 1)) {  // one row only: the odd columns are empty
                    acc[r][t][i] += (i < 2 ? s_low : s_high) * part[i];
#if HAS_MIN
                    acc[r][t][i] += (i < 2 ? m_low : m_high) * sum[t][i];
#endif
                }
            }
        }
    }
}

// Adds up the warps' partial sums of the CTA's tiles and finishes them; warp t takes batch rows 8 t .. 8 t + 7.
static __device__ __forceinline__ void finish(
    const Arguments& p, const float (*partial)[RT * MT * 4][32], const float* row_scale, int group, int warp, int lane) {
    const int g = lane >> 2, t4 = lane & 3;
#pragma unroll
    for (int t = 0; t < MT; ++t) {
        if (t % WARPS != warp) continue;
#pragma unroll
        for (int r = 0; r < RT; ++r) {
            float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int v = 0; v < WARPS; ++v)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[i] += partial[v][(r * MT + t) * 4 + i][lane];
            const int row = (group * RT + r) * 16 + g;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int m = t * 8 + t4 * 2 + j;
                if (m >= p.M) continue;
                const float factor = NORM ? row_scale[m] * p.multiplier : p.multiplier;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int n = INTERLEAVED ? (row - g) / 2 + g + half * (p.N / 2) : row + half * 8;
                    if (INTERLEAVED ? row >= p.N : n >= p.N) continue;
                    float value = sum[2 * half + j] * factor;
                    if (p.bias) value += to_float(p.bias[n]);
                    p.y[(size_t)m * p.N + n] = from_float(value);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS) decode_linear(const __grid_constant__ Arguments p) {
    __shared__ float partial[WARPS][RT * MT * 4][32];
    __shared__ float row_scale[8 * MT];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int chunks = (p.K + 63) / 64;
    const int group = blockIdx.x;
    const int steps = (chunks - warp + WARPS - 1) / WARPS;  // of this warp: chunks warp, warp + WARPS, ...

    // The next kernel may start now: its own wait keeps it off our results, and its weights arrive while we finish.
    asm volatile("griddepcontrol.launch_dependents;");
    Fragment ring[STAGES][RT];
    const int first_column = warp * 64 + (lane & 3) * 8;
    Source source[RT] = {
        Source(p, group * RT, warp, chunks, lane),
#if RT > 1
        Source(p, group * RT + 1, warp, chunks, lane),
#endif
#if RT > 2
        Source(p, group * RT + 2, warp, chunks, lane),
        Source(p, group * RT + 3, warp, chunks, lane),
#endif
    };
#pragma unroll
    for (int s = 0; s < STAGES; ++s)
        if (s < steps)
#pragma unroll
            for (int r = 0; r < RT; ++r) source[r].fetch(ring[s][r], s, p.K - first_column - s * WARPS * 64);

    asm volatile("griddepcontrol.wait;" ::: "memory");
    u32x4 x[2][MT][2];
    InputSource input(p, warp, lane);
    if (steps > 0) input.fetch(x[0], 0, p.K - first_column);
#if NORM
    for (int m = warp; m < p.M; m += WARPS) {
        float sum = 0.f;
        for (int i = lane; i < p.squares_count; i += 32) sum += load_f32(p.squares_in + (size_t)m * p.squares_count + i);
#pragma unroll
        for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
        if (lane == 0) row_scale[m] = rsqrtf(sum / p.K + p.eps);
    }
#endif
    float acc[RT][MT][4];
#pragma unroll
    for (int r = 0; r < RT; ++r)
#pragma unroll
        for (int t = 0; t < MT; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[r][t][i] = 0.f;
    for (int base = 0; base < steps; base += STAGES) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            if (base + s >= steps) break;
            if (base + s + 1 < steps)
                input.fetch(x[(s + 1) & 1], s + 1, p.K - first_column - (base + s + 1) * WARPS * 64);
            multiply(ring[s], x[s & 1], acc);
            if (base + s + STAGES < steps)
#pragma unroll
                for (int r = 0; r < RT; ++r)
                    source[r].fetch(ring[s][r], s + STAGES, p.K - first_column - (base + s + STAGES) * WARPS * 64);
        }
#pragma unroll
        for (int r = 0; r < RT; ++r) source[r].advance();
        input.advance();
    }
#pragma unroll
    for (int r = 0; r < RT; ++r)
#pragma unroll
        for (int t = 0; t < MT; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) partial[warp][(r * MT + t) * 4 + i][lane] = acc[r][t][i];
    __syncthreads();
    finish(p, partial, row_scale, group, warp, lane);
}
