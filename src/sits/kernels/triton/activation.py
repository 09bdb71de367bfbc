"""SiLU(gate) * up and per-token FP8 quantisation, alone or in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.registry import register
from sits.kernels.triton.launch import begin, pdl_options
from sits.kernels.triton.norm import FP8_LARGEST, quantize_row


@triton.jit
def silu_product(gate_up, start, columns, mask, N):
    """silu(gate) * up in float32, rounded as the reference rounds (silu to the storage type first)."""
    dtype = gate_up.dtype.element_ty
    gate = tl.load(gate_up + start + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + start + N + columns, mask=mask, other=0.0).to(tl.float32)
    activated = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return (activated * up).to(dtype)


@triton.jit
def silu_mul_kernel(gate_up, out, stride, N, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    begin(PDL)
    tl.store(out + row * N + columns, silu_product(gate_up, row * stride, columns, mask, N), mask=mask)


@triton.jit
def quantize_kernel(
    x, out, scale_out, stride, N,
    BLOCK: tl.constexpr, SILU: tl.constexpr, FP8_MAX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    begin(PDL)
    if SILU:
        value = silu_product(x, row * stride, columns, mask, N).to(tl.float32)
    else:
        value = tl.load(x + row * stride + columns, mask=mask, other=0.0).to(tl.float32)
    quantize_row(value, out, scale_out, row, columns, mask, N, FP8_MAX)


@register("silu_mul", "triton", devices=("cuda",), priority=10)
def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] -> silu(gate) * up, [T, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if gate_up.stride(-1) != 1:
        gate_up = gate_up.contiguous()
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        block = min(1024, triton.next_power_of_2(width))
        grid = (rows, triton.cdiv(width, block))
        silu_mul_kernel[grid](
            gate_up, out, gate_up.stride(0), width, BLOCK=block, num_warps=4, **pdl_options(gate_up)
        )
    return out


def quantize_fp8(x: torch.Tensor, silu: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, N] -> (e4m3 [T, N], scales [T] float32); with ``silu`` of silu(first half) * second half, [T, N / 2]."""
    rows, width = x.shape[0], x.shape[1] // 2 if silu else x.shape[1]
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(width)
        quantize_kernel[(rows,)](
            x, out, scale, x.stride(0), width, BLOCK=block, SILU=silu, FP8_MAX=FP8_LARGEST,
            num_warps=max(1, min(16, block // 512)), **pdl_options(x),
        )  # fmt: skip
    return out, scale
