"""8-bit KV values to 16 bits, four at a time in registers.

The hardware's own conversion of an int8 runs at a quarter of the rate of other instructions. The assembly needs three
ordinary ones for two values: a byte joined with 0x64 is the fp16 number 1024 + byte.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.triton.launch import INTERPRETED

# Only NVIDIA's instruction set; elsewhere the plain conversion.
ASSEMBLY = tl.constexpr(not INTERPRETED and torch.version.hip is None)

_INT8_TO_FP16 = tl.constexpr("""{
    .reg .b32 t, low, high, offset;
    xor.b32 t, $2, 0x80808080;
    mov.b32 offset, 0x64806480;
    prmt.b32 low, t, 0x64646464, 0x4140;
    prmt.b32 high, t, 0x64646464, 0x4342;
    sub.f16x2 $0, low, offset;
    sub.f16x2 $1, high, offset;
}""")

# 0x4b0000uu is the float32 number 2^23 + uu.
_INT8_TO_BF16 = tl.constexpr("""{
    .reg .b32 t, a, b, c, d;
    .reg .f32 fa, fb, fc, fd;
    xor.b32 t, $2, 0x80808080;
    prmt.b32 a, t, 0x4b000000, 0x7440;
    prmt.b32 b, t, 0x4b000000, 0x7441;
    prmt.b32 c, t, 0x4b000000, 0x7442;
    prmt.b32 d, t, 0x4b000000, 0x7443;
    mov.b32 fa, a;
    mov.b32 fb, b;
    mov.b32 fc, c;
    mov.b32 fd, d;
    sub.f32 fa, fa, 0f4B000080;
    sub.f32 fb, fb, 0f4B000080;
    sub.f32 fc, fc, 0f4B000080;
    sub.f32 fd, fd, 0f4B000080;
    cvt.rn.bf16x2.f32 $0, fb, fa;
    cvt.rn.bf16x2.f32 $1, fd, fc;
}""")

_FP8_TO_FP16 = tl.constexpr("""{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")

_FP8_TO_BF16 = tl.constexpr("""{
    .reg .b16 low, high, a, b, c, d;
    .reg .b32 first, second;
    .reg .f32 fa, fb, fc, fd;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 first, low;
    cvt.rn.f16x2.e4m3x2 second, high;
    mov.b32 {a, b}, first;
    mov.b32 {c, d}, second;
    cvt.f32.f16 fa, a;
    cvt.f32.f16 fb, b;
    cvt.f32.f16 fc, c;
    cvt.f32.f16 fd, d;
    cvt.rn.bf16x2.f32 $0, fb, fa;
    cvt.rn.bf16x2.f32 $1, fd, fc;
}""")


@triton.jit
def widen(x, dtype: tl.constexpr):
    """x as ``dtype``, exactly; int8 and e4m3 to fp16 or bf16 by assembly, anything else by a plain conversion."""
    if not ASSEMBLY:
        return x.to(dtype)
    if x.dtype == tl.int8 and dtype == tl.float16:
        return tl.inline_asm_elementwise(_INT8_TO_FP16, "=r,=r,r", [x], dtype=tl.float16, is_pure=True, pack=4)
    elif x.dtype == tl.int8 and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_INT8_TO_BF16, "=r,=r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=4)
    elif x.dtype == tl.float8e4nv and dtype == tl.float16:
        return tl.inline_asm_elementwise(_FP8_TO_FP16, "=r,=r,r", [x], dtype=tl.float16, is_pure=True, pack=4)
    elif x.dtype == tl.float8e4nv and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(_FP8_TO_BF16, "=r,=r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        return x.to(dtype)
