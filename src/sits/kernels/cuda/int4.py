"""One INT4 layout, two ways to multiply: a tensor-core GEMV for small batches, a dense scratch for prompts."""

from __future__ import annotations

import torch

from sits.kernels.cuda.decode_linear import MAX_BATCH, decode_linear
from sits.kernels.cuda.int4_layout import PackedInt4, pack_int4, unpack_codes
from sits.kernels.cuda.module import is_available
from sits.kernels.cuda.small import make_dense

__all__ = [
    "MAX_BATCH",
    "PackedInt4",
    "can_pack",
    "dense_linear",
    "is_available",
    "pack",
    "small_linear",
    "unpack_codes",
]


def can_pack(columns: int, group_size: int) -> bool:
    """Whether the layout holds such a weight."""
    return columns % 8 == 0 and group_size % 32 == 0


def pack(
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    gate_up: bool = False,
) -> PackedInt4:
    """See ``pack_int4``; ``gate_up`` lays gate and up rows in eights, as the fused activation wants them."""
    return pack_int4(q, scale, minimum, group_size, dtype, interleaved=gate_up and q.shape[0] % 16 == 0)


def small_linear(x: torch.Tensor, weight: PackedInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K], M <= MAX_BATCH -> [M, N]."""
    out = torch.empty(x.shape[0], weight.rows, dtype=x.dtype, device=x.device)
    decode_linear(weight, x.contiguous(), out, bias=bias)
    return out


def dense_linear(x: torch.Tensor, weight: PackedInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] of any M -> [M, N]: the weight is made dense in x's dtype, then cuBLAS multiplies."""
    return torch.nn.functional.linear(x, make_dense(weight, x.dtype), bias)
