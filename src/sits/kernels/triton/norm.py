"""Residual add + RMS norm (+ FP8 quantisation), one launch: each row is read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sits.kernels.registry import register
from sits.kernels.triton.launch import begin, pdl_options

FP8_LARGEST = 448.0


@triton.jit
def quantize_row(value, out, scale_out, row, columns, mask, N, FP8_MAX: tl.constexpr):
    """One row of float32 values -> e4m3 with scale = absmax / 448 (1 for a zero row); NaN and Inf stay visible."""
    absmax = tl.max(tl.where(mask, tl.abs(value), 0.0), axis=0)
    scale = tl.where(absmax > 0, absmax / FP8_MAX, 1.0)
    scaled = value / scale
    # A GPU's minimum and maximum drop NaN, so it goes around them.
    clamped = tl.where(scaled != scaled, scaled, tl.minimum(tl.maximum(scaled, -FP8_MAX), FP8_MAX))
    tl.store(out + row * N + columns, clamped.to(tl.float8e4nv), mask=mask)
    tl.store(scale_out + row, scale)


@triton.jit
def scale_values(value, row_scale, column_scale, row, columns, mask):
    """Sums of an FP8 product, float32, times the scales of their row and columns."""
    return value * tl.load(row_scale + row) * tl.load(column_scale + columns, mask=mask, other=0.0)


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, summed, scale_out, row_scale, column_scale, eps, x_stride, residual_stride, N,
    BLOCK: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr, QUANTIZE: tl.constexpr, FP8_MAX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    gain = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    begin(PDL)
    value = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        value = scale_values(value, row_scale, column_scale, row, columns, mask)
    dtype = summed.dtype.element_ty  # of the residual; x may have another
    if ADD:
        value += tl.load(residual + row * residual_stride + columns, mask=mask, other=0.0).to(tl.float32)
        stored = value.to(dtype)
        tl.store(summed + row * N + columns, stored, mask=mask)
        value = stored.to(tl.float32)
    square = tl.sum(value * value, axis=0) / N
    normed = (value * tl.rsqrt(square + eps)).to(dtype).to(tl.float32) * gain
    if QUANTIZE:
        quantize_row(normed.to(dtype).to(tl.float32), out, scale_out, row, columns, mask, N, FP8_MAX)
    else:
        tl.store(out + row * N + columns, normed.to(dtype), mask=mask)


def _warps(block: int) -> int:
    return max(1, min(16, block // 512))


def _launch(x, residual, weight, eps, quantize, scales=None):
    rows, columns = x.shape
    if x.stride(-1) != 1:
        x = x.contiguous()
    dtype = x.dtype if residual is None else residual.dtype
    out = torch.empty((rows, columns), dtype=torch.float8_e4m3fn if quantize else dtype, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device) if quantize else x
    summed = torch.empty((rows, columns), dtype=dtype, device=x.device) if residual is not None else x
    if rows:
        block = triton.next_power_of_2(columns)
        rms_norm_kernel[(rows,)](
            x, residual if residual is not None else x, weight, out, summed, scale, *(scales or (x, x)), eps,
            x.stride(0), residual.stride(0) if residual is not None else 0, columns,
            BLOCK=block, ADD=residual is not None, SCALED=scales is not None, QUANTIZE=quantize,
            FP8_MAX=FP8_LARGEST, num_warps=_warps(block), **pdl_options(x),
        )  # fmt: skip
    return out, summed, scale


@register("rms_norm", "triton", devices=("cuda",), priority=10)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x[T, N] -> [T, N]; see ``sits.kernels.ops``."""
    return _launch(x, None, weight, eps, False)[0]


@register("add_rms_norm", "triton", devices=("cuda",), priority=10)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual) normed, and the sum; both [T, N]."""
    out, summed, _ = _launch(x, residual, weight, eps, False)
    return out, summed


def add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(normed as e4m3 [T, N], its scales [T] float32, sum [T, N]); without a residual the sum is x itself.

    With ``scales`` (of the rows, of the columns) x holds the bare sums of an FP8 product.
    """
    out, summed, scale = _launch(x, residual, weight, eps, True, scales)
    return out, scale, summed
