"""INT4 linears in CUDA C++: one layout, multiplied on ``wgmma`` or made dense in a scratch."""

from __future__ import annotations

import torch

from sits.kernels.cuda import wgmma_layout
from sits.kernels.cuda.module import is_available
from sits.kernels.cuda.small import make_dense, make_fp8
from sits.kernels.cuda.wgmma_layout import WgmmaInt4, can_pack, unpack
from sits.kernels.cuda.wgmma_linear import wgmma_linear

__all__ = [
    "WGMMA_ROWS",
    "WgmmaInt4",
    "can_pack",
    "dense_linear",
    "is_available",
    "linear",
    "make_fp8",
    "pack",
    "unpack",
]

WGMMA_ROWS = 512  # above it the weights are better made dense once


def pack(
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    gate_up: bool = False,
) -> WgmmaInt4:
    """See ``wgmma_layout.pack``; ``gate_up`` lays gate and up rows in eights, as the fused activation wants them."""
    return wgmma_layout.pack(q, scale, minimum, group_size, dtype, interleaved=gate_up and q.shape[0] % 16 == 0)


def linear(x: torch.Tensor, weight: WgmmaInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] of any M -> [M, N]; best up to ``WGMMA_ROWS``."""
    out = torch.empty(x.shape[0], weight.rows, dtype=x.dtype, device=x.device)
    wgmma_linear(weight, x.contiguous(), out, bias=bias)
    return out


def dense_linear(x: torch.Tensor, weight: WgmmaInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] of any M -> [M, N]: the weight is made dense in x's dtype, then cuBLAS multiplies."""
    return torch.nn.functional.linear(x, make_dense(weight, x.dtype), bias)
