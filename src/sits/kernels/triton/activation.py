"""SiLU(gate) * up and per-token FP8 quantisation, alone or in one launch; scales for an FP8 product's bare sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.registry import register
from sits.kernels.triton.launch import begin, pdl_options
from sits.kernels.triton.norm import FP8_LARGEST, quantize_row, scale_values


@triton.jit
def silu_product(gate_up, start, row_scale, column_scale, row, columns, mask, N, SCALED: tl.constexpr):
    """silu(gate) * up in float32, rounded as the reference rounds (silu to the storage type first)."""
    dtype = gate_up.dtype.element_ty
    gate = tl.load(gate_up + start + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + start + N + columns, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        gate = scale_values(gate, row_scale, column_scale, row, columns, mask)
        up = scale_values(up, row_scale, column_scale + N, row, columns, mask)
    activated = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return (activated * up).to(dtype)


@triton.jit
def silu_mul_kernel(gate_up, out, stride, N, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    begin(PDL)
    value = silu_product(gate_up, row * stride, gate_up, gate_up, row, columns, mask, N, False)
    tl.store(out + row * N + columns, value, mask=mask)


@triton.jit
def quantize_kernel(
    x, out, scale_out, row_scale, column_scale, stride, N,
    BLOCK: tl.constexpr, SILU: tl.constexpr, SCALED: tl.constexpr, FP8_MAX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    begin(PDL)
    if SILU:
        value = silu_product(x, row * stride, row_scale, column_scale, row, columns, mask, N, SCALED).to(tl.float32)
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


def quantize_fp8(
    x: torch.Tensor, silu: bool = False, scales: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, N] -> (e4m3 [T, N], scales [T] float32); with ``silu`` of silu(first half) * second half, [T, N / 2].

    With ``scales`` (of the rows, of the columns) and ``silu`` x holds the bare sums of an FP8 product.
    """
    rows, width = x.shape[0], x.shape[1] // 2 if silu else x.shape[1]
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(width)
        quantize_kernel[(rows,)](
            x, out, scale, *(scales or (x, x)), x.stride(0), width,
            BLOCK=block, SILU=silu, SCALED=scales is not None, FP8_MAX=FP8_LARGEST,
            num_warps=max(1, min(16, block // 512)), **pdl_options(x),
        )  # fmt: skip
    return out, scale


@triton.jit
def scale_kernel(
    x, out, row_scale, column_scale, bias, stride, N, BLOCK: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    begin(PDL)
    value = tl.load(x + row * stride + columns, mask=mask, other=0.0).to(tl.float32)
    value = scale_values(value, row_scale, column_scale, row, columns, mask)
    if BIAS:
        value += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * N + columns, value.to(out.dtype.element_ty), mask=mask)


def scale_sums(
    x: torch.Tensor,
    row_scale: torch.Tensor,
    column_scale: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x[T, N] * row_scale[:, None] * column_scale (+ bias[N]) -> [T, N] of ``dtype``, rounded once."""
    rows, columns = x.shape
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty((rows, columns), dtype=dtype, device=x.device)
    if rows:
        block = min(1024, triton.next_power_of_2(columns))
        scale_kernel[(rows, triton.cdiv(columns, block))](
            x, out, row_scale, column_scale, x if bias is None else bias, x.stride(0), columns,
            BLOCK=block, BIAS=bias is not None, num_warps=4, **pdl_options(x),
        )  # fmt: skip
    return out
