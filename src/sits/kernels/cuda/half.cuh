// 16-bit floats of either kind, BF16 or fp16 (compile-time: BF16), one and two at a time. No CUDA headers: NVRTC needs no
// include path then.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;

#if BF16
#define HALF "bf16"
#define HALF_PAIR "bf16x2"
#else
#define HALF "f16"
#define HALF_PAIR "f16x2"
#endif

[[maybe_unused]] static __device__ __forceinline__ float fp16_to_float(u16 h) {
    float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f;
}
[[maybe_unused]] static __device__ __forceinline__ float to_float(u16 h) {
#if BF16
    return __uint_as_float((u32)h << 16);
#else
    return fp16_to_float(h);
#endif
}
[[maybe_unused]] static __device__ __forceinline__ u16 from_float(float f) {
    u16 h; asm("cvt.rn." HALF ".f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
}
[[maybe_unused]] static __device__ __forceinline__ u32 pack(float low, float high) {
    u32 v; asm("cvt.rn." HALF_PAIR ".f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low)); return v;
}
[[maybe_unused]] static __device__ __forceinline__ float low(u32 pair) { return to_float((u16)pair); }
[[maybe_unused]] static __device__ __forceinline__ float high(u32 pair) { return to_float((u16)(pair >> 16)); }
