"""Linears in plain PyTorch: dense, INT4 and FP8. ``weight`` is an object of ``sits.quant.linear``."""

from __future__ import annotations

from typing import Any

import torch

from sits.kernels.fp8 import quantize_rows
from sits.kernels.fp8_product import exact_product
from sits.kernels.registry import register


@register("linear_dense", "reference")
def linear_dense(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]; see ``sits.kernels.ops``."""
    return torch.nn.functional.linear(x, weight.weight, bias)


def prepare_int4(weight: Any) -> None:
    """Codes to the portable packed rows."""
    weight.pack_portable()


@register("linear_int4", "reference", prepare=prepare_int4)
def linear_int4(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]: a piece of the weight at a time is made dense in x's dtype and multiplied."""
    out = torch.empty(x.shape[0], weight.out_features, dtype=x.dtype, device=x.device)
    for start, stop in weight.packed.row_ranges():
        out[:, start:stop] = x @ weight.packed.dense_rows(start, stop, x.dtype).T
    return out if bias is None else out.add_(bias)


@register("linear_fp8", "reference")
def linear_fp8(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
    """x[T, in] -> [T, out]: what FP8 tensor cores compute. Activations are rounded to e4m3 with a scale per token;
    products are summed in float32; both scales, then the bias, are applied to the sum."""
    q, scale = quantize_rows(x)
    result = exact_product(q, scale, weight.codes.q, weight.codes.scale)
    return (result if bias is None else result + bias.float()).to(x.dtype)
