// The products of wgmma_linear.cu in e4m3: x comes in it, weights are made so in registers. Rounded to 8 bits, at twice the rate.
//
// A fragment of 32 k takes four k of a row from each lane t of a quad, 4 t .. 4 t + 3, where a word of codes holds the k 2 t, 2 t + 1,
// 2 t + 8, 2 t + 9 of its 16: so x lies in that order inside each 16 (rows.cu, E4M3_ORDER).
#define FRAGMENTS 2                           // of 32 k, in a chunk
#define WEIGHT_FACTOR (HAS_MIN ? 4096.f : 16384.f)  // brings the largest weight (2^-4, symmetric 2^-6) to 256
#define FACTOR_PAIR (HAS_MIN ? 0x6C006C00u : 0x74007400u)  // the same, a pair in fp16

static __device__ __forceinline__ u32 fused_fp16(u32 a, u32 b, u32 c) {
    u32 v; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c)); return v;
}
static __device__ __forceinline__ u32 product_fp16(u32 a, u32 b) {
    u32 v; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b)); return v;
}
static __device__ __forceinline__ u32 four_e4m3(u32 first, u32 second) {  // two pairs of fp16; saturates, NaN stays
    u32 v;
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f16x2 l, %1; cvt.rn.satfinite.e4m3x2.f16x2 h, %2; mov.b32 %0, {l, h};}"
        : "=r"(v) : "r"(first), "r"(second));
    return v;
}
// A pair as stored for nibbles read as subnormals: of bf16 (2^-133, 2^-129) for those of fp16 (2^-24, 2^-20).
static __device__ __forceinline__ u32 stored_fp16(u32 pair) {
#if BF16
    const float l = __uint_as_float(pair << 16) * 0x1p-109f, h = __uint_as_float(pair & 0xffff0000u) * 0x1p-109f;
    u32 v; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(h), "f"(l)); return v;
#else
    return pair;
#endif
}
[[maybe_unused]] static __device__ __forceinline__ u32 minimum_fp16(u32 pair) {
#if BF16
    u32 v; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(__uint_as_float(pair & 0xffff0000u)), "f"(__uint_as_float(pair << 16))); return v;
#else
    return pair;
#endif
}
static __device__ __forceinline__ u32 twice(u32 pair, int high) {
    u32 v;
    if (high) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(v) : "r"(pair));
    else asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(v) : "r"(pair));
    return v;
}

// One chunk: from shared memory to a committed group of two products.
static __device__ __forceinline__ void multiply_chunk(
    float (&d)[NT / 2], u32 (&a)[FRAGMENTS][4], u32 x, u32 weight, int chunk, int thread) {
    const u32 block = weight + chunk * BLOCK_BYTES;
    u32 q[4], s[2], m[2];
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q[0]), "=r"(q[1]), "=r"(q[2]), "=r"(q[3]) : "r"(block + thread * 16));
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(s[0]), "=r"(s[1]) : "r"(block + 2048 + (thread >> 2) * 8));
    s[0] = stored_fp16(s[0]), s[1] = stored_fp16(s[1]);
#if HAS_MIN
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(block + 2304 + (thread >> 2) * 8));
    m[0] = minimum_fp16(m[0]), m[1] = minimum_fp16(m[1]);
#else
    m[0] = product_fp16(s[0], 0x80088008u), m[1] = product_fp16(s[1], 0x80808080u);
#endif
#pragma unroll
    for (int word = 0; word < 4; ++word) {  // 16 k: half a fragment
        const u32 scale[2] = {twice(s[0], word >> 1), twice(s[1], word >> 1)};
        const u32 minimum[2] = {twice(m[0], word >> 1), twice(m[1], word >> 1)};
        u32 pair[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            pair[j] = product_fp16(fused_fp16((q[word] >> (j / 2 * 8)) & (j & 1 ? 0x00f000f0u : 0x000f000fu), scale[j & 1], minimum[j & 1]), FACTOR_PAIR);
#pragma unroll
        for (int high = 0; high < 2; ++high) a[word >> 1][(word & 1) * 2 + high] = four_e4m3(pair[high], pair[2 + high]);
    }
    // K-major tile under the 128-byte swizzle: 8 rows are 1024 bytes, a row two chunks; 32 k further on is 32 bytes.
    const u64 descriptor = (u64)(((x + chunk / 2 * 2 * X_CHUNK_BYTES) & 0x3FFFF) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 2; ++k) wgmma(d, a[k][0], a[k][1], a[k][2], a[k][3], descriptor + chunk % 2 * 4 + 2 * k);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
