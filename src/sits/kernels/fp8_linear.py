"""``linear_fp8`` on CUDA: activations to e4m3 per token in one launch, then cuBLAS's FP8 matrix product."""

from __future__ import annotations

from typing import Any

import torch

from sits.kernels.fp8_product import scaled_product
from sits.kernels.fp8_rows import quantize_fp8
from sits.kernels.registry import register


def supports(in_features: int = 0, out_features: int = 0, **_: Any) -> bool:
    """Tensor cores take FP8 from compute capability 8.9 on, with both dimensions in multiples of 16."""
    if torch.version.hip or not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        return False
    return in_features % 16 == 0 and out_features % 16 == 0


@register("linear_fp8", "scaled_mm", devices=("cuda",), priority=10, supports=supports)
def linear_fp8(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]; see ``sits.kernels.ops``."""
    if x.shape[0] == 0:
        return x.new_empty(0, weight.out_features)
    q, scale = quantize_fp8(x)
    result = scaled_product(q, scale, weight.codes.q, weight.codes.scale, x.dtype)
    return result if bias is None else result.add_(bias)
