"""INT4 linears in CUDA C++: a layout for ``wgmma``, one for ``mma`` (up to 16 rows), and dense scratches."""

from __future__ import annotations

import torch

from sits.kernels.cuda import wgmma_layout
from sits.kernels.cuda.decode_linear import MAX_BATCH, decode_linear
from sits.kernels.cuda.int4_layout import PackedInt4, pack_int4, unpack_codes
from sits.kernels.cuda.module import is_available
from sits.kernels.cuda.small import make_dense, make_fp8
from sits.kernels.cuda.wgmma_layout import WgmmaInt4
from sits.kernels.cuda.wgmma_layout import unpack as unpack_blocks
from sits.kernels.cuda.wgmma_linear import wgmma_linear

__all__ = [
    "MAX_BATCH",
    "WGMMA_ROWS",
    "PackedInt4",
    "WgmmaInt4",
    "can_pack",
    "can_pack_blocks",
    "dense_linear",
    "is_available",
    "make_fp8",
    "middle_linear",
    "pack",
    "pack_blocks",
    "small_linear",
    "unpack_blocks",
    "unpack_codes",
]

WGMMA_ROWS = 512  # above it the weights are better made dense once


def can_pack(columns: int, group_size: int) -> bool:
    """Whether the ``mma`` layout holds such a weight."""
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


def can_pack_blocks(rows: int, columns: int, group_size: int) -> bool:
    """Whether the ``wgmma`` layout holds such a weight."""
    return wgmma_layout.can_pack(rows, columns, group_size)


def pack_blocks(
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    gate_up: bool = False,
) -> WgmmaInt4:
    """See ``wgmma_layout.pack``; ``gate_up`` as in :func:`pack`."""
    return wgmma_layout.pack(q, scale, minimum, group_size, dtype, interleaved=gate_up and q.shape[0] % 16 == 0)


def small_linear(x: torch.Tensor, weight: PackedInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K], M <= MAX_BATCH -> [M, N]."""
    out = torch.empty(x.shape[0], weight.rows, dtype=x.dtype, device=x.device)
    decode_linear(weight, x.contiguous(), out, bias=bias)
    return out


def middle_linear(x: torch.Tensor, weight: WgmmaInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] of any M -> [M, N]; best up to ``WGMMA_ROWS``."""
    out = torch.empty(x.shape[0], weight.rows, dtype=x.dtype, device=x.device)
    wgmma_linear(weight, x.contiguous(), out, bias=bias)
    return out


def dense_linear(x: torch.Tensor, weight: PackedInt4 | WgmmaInt4, bias: torch.Tensor | None) -> torch.Tensor:
    """x[M, K] of any M -> [M, N]: the weight is made dense in x's dtype, then cuBLAS multiplies."""
    return torch.nn.functional.linear(x, make_dense(weight, x.dtype), bias)
