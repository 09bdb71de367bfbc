"""The dense linear in plain PyTorch. ``weight`` is an object of ``sits.quant.linear``."""

from __future__ import annotations

from typing import Any

import torch

from sits.kernels.registry import register


@register("linear_dense", "reference")
def linear_dense(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]; see ``sits.kernels.ops``."""
    return torch.nn.functional.linear(x, weight.weight, bias)
