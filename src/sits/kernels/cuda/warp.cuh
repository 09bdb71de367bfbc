// What a warp of the attention kernels asks of the machine, one instruction each. No CUDA headers: NVRTC needs no include path then.
#pragma once
#include "half.cuh"

typedef long long i64;
struct __align__(16) u32x4 { u32 w[4]; };

#define INFINITY __int_as_float(0x7f800000)
#define SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

static __device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ float power_of_two(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// d += a b for the upper 8 rows of a 16 x 16 by 16 x 8 product; the lower 8 are empty.
static __device__ __forceinline__ void mma(float (&d)[2], u32 a0, u32 a2, u32 b0, u32 b1) {
    [[maybe_unused]] float rest0, rest1;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 {%0,%1,%2,%3}, {%4,%8,%5,%8}, {%6,%7}, {%0,%1,%9,%9};"
                 : "+f"(d[0]), "+f"(d[1]), "=f"(rest0), "=f"(rest1)
                 : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0), "f"(0.f));
}
// The low (odd = 0) or high halves of two words side by side.
static __device__ __forceinline__ u32 side_by_side(u32 a, u32 b, int odd) {
    u32 v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(odd ? 0x7632 : 0x5410));
    return v;
}
static __device__ __forceinline__ u32x4 load_shared(u32 at) {
    u32x4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "r"(at) : "memory");
    return v;
}
[[maybe_unused]] static __device__ __forceinline__ uint2 load_shared_pair(u32 at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
[[maybe_unused]] static __device__ __forceinline__ u32 load_shared_word(u32 at) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
static __device__ __forceinline__ u32x4 load_words(const void* p) {  // written by the kernel before: not through .nc
    u32x4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p) : "memory");
    return v;
}
static __device__ __forceinline__ float4 load_l2(const float4* p) {  // written by another multiprocessor: not from L1
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
static __device__ __forceinline__ float load_l2(const float* p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
// 16 bytes into shared memory, or 16 zeros without reading.
static __device__ __forceinline__ void copy_async(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copy_async_word(u32 to, const void* from, bool there) {  // 4 bytes
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
static __device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> static __device__ __forceinline__ void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
static __device__ __forceinline__ void wait_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
static __device__ __forceinline__ void release_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

#if KIND
// Four stored 8-bit values (KIND 1: int8, 2: e4m3) as two pairs of 16-bit floats, exactly.
static __device__ __forceinline__ void widen(u32 x, u32& first, u32& second) {
#if KIND == 1 && !BF16  // a byte joined with 0x64 is the fp16 number 1024 + byte
    asm("{.reg .b32 t, l, h, o; xor.b32 t, %2, 0x80808080; mov.b32 o, 0x64806480; prmt.b32 l, t, 0x64646464, 0x4140;"
        " prmt.b32 h, t, 0x64646464, 0x4342; sub.f16x2 %0, l, o; sub.f16x2 %1, h, o;}" : "=r"(first), "=r"(second) : "r"(x));
#elif KIND == 1  // 0x4b0000uu is the float number 2^23 + uu
    float f[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        u32 bits;
        asm("prmt.b32 %0, %1, 0x4b000000, %2;" : "=r"(bits) : "r"(x ^ 0x80808080u), "r"(0x7440 + n));
        f[n] = __uint_as_float(bits) - 8388736.f;
    }
    first = pack(f[0], f[1]), second = pack(f[2], f[3]);
#else
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(first), "=r"(second) : "r"(x));
#if BF16
    first = pack(fp16_to_float((u16)first), fp16_to_float((u16)(first >> 16)));
    second = pack(fp16_to_float((u16)second), fp16_to_float((u16)(second >> 16)));
#endif
#endif
}
static __device__ __forceinline__ float largest_or_nan(float a, float b) {  // fmaxf would take the other one of a NaN
    float v; asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b)); return v;
}
static __device__ __forceinline__ u16 to_fp16(float f) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
// The stored form of a value within the kind's range, and what reading gives back.
static __device__ __forceinline__ u32 narrow(float x, float& back) {
#if KIND == 1
    back = rintf(x);
    return (u32)(int)back & 255;
#else
    u16 pair;
    u32 wide;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(x));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(pair));
    back = fp16_to_float((u16)wide);
    return pair & 255;
#endif
}
#endif
