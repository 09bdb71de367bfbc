"""Dense linears on the CPU with oneDNN's packed weights.

A plain ``linear`` of one token reads the weight at half of the machine's memory rate and does not scale to two
threads in float32; oneDNN's blocked layout reads it at the full rate. Packing frees the row-major original.
"""

from __future__ import annotations

from typing import Any

import torch

from sits.kernels.registry import register


def _supports(dtype: torch.dtype | None = None, **properties: Any) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def _prepare(weight: Any) -> None:
    """Pack a ``DenseWeight``, unless it is also the embedding table: that would be a second copy."""
    if weight.shared:
        return
    weight.packed = torch.ops.mkldnn._reorder_linear_weight(weight.weight, 1)
    weight.weight = None


@register("linear_dense", "cpu", devices=("cpu",), priority=10, supports=_supports, prepare=_prepare)
def linear_dense(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]; see ``sits.kernels.ops``."""
    if weight.packed is None:
        return torch.nn.functional.linear(x, weight.weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight.packed, bias, "none", [], "")
