"""Norms and activations that leave e4m3 with a scale per token, ready for the next FP8 product: one launch each.

CUDA C++ (``cuda/rows.cu``) on Hopper, Triton on other cards, plain PyTorch elsewhere. All round to the 16-bit type
exactly where the separate operators do, so fusing changes no more than the last bit of a sum. All take a product
either as it is or as ``Sums``, which they scale in float32 as they read.
"""

from __future__ import annotations

import torch

from sits.kernels.fp8 import quantize_rows
from sits.kernels.fp8_product import Sums


def _parts(x: torch.Tensor | Sums) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    return (x.values, x.scales) if isinstance(x, Sums) else (x, None)


def add_rms_norm_fp8(
    x: torch.Tensor | Sums, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x[T, N] (+ residual) -> (normed as e4m3 [T, N], its scales [T] float32, the sum [T, N] or x itself).

    Sums need a residual. The sum has the residual's dtype; x may have another one.
    """
    values, scales = _parts(x)
    if scales is not None and residual is None:
        raise ValueError("sums are scaled on their way into a residual, and there is none")
    if not values.is_cuda:
        from sits.kernels.reference.layer import rms_norm

        summed = values
        if residual is not None:
            wide = x.scaled() if isinstance(x, Sums) else x.float()
            summed = (wide + residual.float()).to(residual.dtype)
        q, scale = quantize_rows(rms_norm(summed, weight, eps))
        return q, scale, summed
    from sits.kernels.cuda import rows

    columns = values.shape[1]
    if rows.can_run(values, columns, scales) and (residual is None or rows.can_run(residual, columns)):
        q, found, summed = rows.norm(values, residual, weight, eps, quantize=True, scales=scales)
        assert found is not None
        return q, found, summed
    from sits.kernels.triton import norm

    return norm.add_rms_norm_fp8(values, residual, weight, eps, scales)


def quantize_fp8(x: torch.Tensor | Sums, silu: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, N] -> (e4m3 [T, N], scales [T] float32); with ``silu`` of silu(first half) * second half, [T, N / 2].

    Sums need ``silu``.
    """
    values, scales = _parts(x)
    if scales is not None and not silu:
        raise ValueError("only a gate and its up are quantised from sums")
    if not values.is_cuda:
        from sits.kernels.reference.layer import silu_mul

        wide = x.scaled() if isinstance(x, Sums) else x
        return quantize_rows(silu_mul(wide) if silu else wide)
    from sits.kernels.cuda import rows

    if rows.can_run(values, values.shape[1] // 2 if silu else values.shape[1], scales):
        return rows.quantize(values, silu, scales=scales)
    from sits.kernels.triton import activation

    return activation.quantize_fp8(values, silu, scales)


def scale_sums(x: Sums, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The product itself, [T, N] of ``dtype``, bias[N] added before the one rounding. May write into the sums."""
    if not x.values.is_cuda:
        wide = x.scaled()
        return (wide if bias is None else wide + bias.float()).to(dtype)
    from sits.kernels.cuda import rows

    aligned = bias is None or (bias.dtype == dtype and bias.is_contiguous() and bias.data_ptr() % 16 == 0)
    half = dtype in (torch.bfloat16, torch.float16)
    if aligned and half and rows.can_run(x.values, x.values.shape[1], x.scales):
        return rows.scale_rows(x.values, x.scales, bias, dtype)
    from sits.kernels.triton import activation

    return activation.scale_sums(x.values, *x.scales, bias, dtype)
