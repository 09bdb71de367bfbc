"""Norms and activations that leave e4m3 with a scale per token, ready for the next FP8 product: one launch each.

CUDA C++ (``cuda/rows.cu``) on Hopper, Triton on other cards, plain PyTorch elsewhere. All round to the 16-bit type
exactly where the separate operators do, so fusing changes no more than the last bit of a sum.
"""

from __future__ import annotations

import torch

from sits.kernels.fp8 import quantize_rows


def add_rms_norm_fp8(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x[T, N] (+ residual) -> (normed as e4m3 [T, N], its scales [T] float32, the sum [T, N] or x itself)."""
    if not x.is_cuda:
        from sits.kernels.reference.layer import rms_norm

        summed = x if residual is None else x + residual
        q, scale = quantize_rows(rms_norm(summed, weight, eps))
        return q, scale, summed
    from sits.kernels.cuda import rows

    if rows.can_run(x, x.shape[1]) and (residual is None or rows.can_run(residual, x.shape[1])):
        q, found, summed = rows.norm(x, residual, weight, eps, quantize=True)
        assert found is not None
        return q, found, summed
    from sits.kernels.triton import norm

    return norm.add_rms_norm_fp8(x, residual, weight, eps)


def quantize_fp8(x: torch.Tensor, silu: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, N] -> (e4m3 [T, N], scales [T] float32); with ``silu`` of silu(first half) * second half, [T, N / 2]."""
    if not x.is_cuda:
        from sits.kernels.reference.layer import silu_mul

        return quantize_rows(silu_mul(x) if silu else x)
    from sits.kernels.cuda import rows

    if rows.can_run(x, x.shape[1] // 2 if silu else x.shape[1]):
        return rows.quantize(x, silu)
    from sits.kernels.triton import activation

    return activation.quantize_fp8(x, silu)
