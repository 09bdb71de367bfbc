// The products of wgmma_linear.cu in 16 bits.
#define FRAGMENTS 4  // of 16 k, in a chunk

// Eight codes -> the A fragment of one k16 step: rows g (a0, a2) and g + 8 (a1, a3).
//
// A nibble alone in the low bits of a 16-bit float is a subnormal: q 2^-24 in fp16, q 2^-133 in bf16, and 16 times that where
// it lies four bits higher. (There its highest bit is the lowest of bf16's exponent, and an exponent of 1 has the subnormals'
// scale.) One fused multiply-add with the scale, which the host stored times the inverse, and the minimum: one rounding.
static __device__ __forceinline__ void dequantise(u32 q, const u32 (&s)[2], const u32 (&m)[2], u32 (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = fused((q >> (j / 2 * 8)) & (j & 1 ? 0x00f000f0u : 0x000f000fu), s[j & 1], m[j & 1]);
}

// One half of a pair in both halves, said so that it becomes a modifier of the instruction that reads it.
static __device__ __forceinline__ u32 twice(u32 pair, int high) {
    u32 v;
    if (high) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(v) : "r"(pair));
    else asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(v) : "r"(pair));
    return v;
}

// One chunk: from shared memory to a committed group of four products.
static __device__ __forceinline__ void multiply_chunk(
    float (&d)[NT / 2], u32 (&a)[FRAGMENTS][4], u32 x, u32 weight, int chunk, int thread) {
    const u32 block = weight + chunk * BLOCK_BYTES;
    u32 q[4], s[2], m[2];
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q[0]), "=r"(q[1]), "=r"(q[2]), "=r"(q[3]) : "r"(block + thread * 16));
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(s[0]), "=r"(s[1]) : "r"(block + 2048 + (thread >> 2) * 8));
#if HAS_MIN
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(m[0]), "=r"(m[1]) : "r"(block + 2304 + (thread >> 2) * 8));
#endif
#if !HAS_MIN  // -8 times the scale: what the nibble 8 stands for
    m[0] = product(s[0], 0x80088008u), m[1] = product(s[1], 0x80808080u);
#endif
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // a group of 32 k: row g, row g + 8
        const u32 scale[2] = {twice(s[0], half), twice(s[1], half)}, minimum[2] = {twice(m[0], half), twice(m[1], half)};
        dequantise(q[2 * half], scale, minimum, a[2 * half]);
        dequantise(q[2 * half + 1], scale, minimum, a[2 * half + 1]);
    }
    // K-major tile under the 128-byte swizzle: 8 rows are 1024 bytes; 16 k further on is 32 bytes.
    const u64 descriptor = (u64)(((x + chunk * X_CHUNK_BYTES) & 0x3FFFF) >> 4) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma(d, a[k][0], a[k][1], a[k][2], a[k][3], descriptor + 2 * k);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
