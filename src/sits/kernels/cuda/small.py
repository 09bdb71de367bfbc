"""Launch the helpers of ``small.cu``: the first operator of a fused decode step, and dense weights for prefill."""

from __future__ import annotations

import ctypes
import functools

import torch

from sits.kernels.cuda.int4_layout import PackedInt4
from sits.kernels.cuda.module import Kernel

EMBED_PARTS = 4  # CTAs a row: enough to hide the latency of one row, few enough to sum up quickly


class _EmbedArguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "table", "gain", "residual", "gained", "squares")),
        ("N", ctypes.c_int),
    )


class _DenseArguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "minimums", "out")),
        ("multiplier", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("N", "K", "interleaved")),
    )


@functools.cache
def _kernel(name: str, bf16: bool) -> Kernel:
    return Kernel("small.cu", name, {"BF16": int(bf16)})


def embed(
    tokens: torch.Tensor, table: torch.Tensor, gain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens[M] int64 -> (residual[M, N], residual * gain, partial sums of squares [M, EMBED_PARTS])."""
    rows, columns = tokens.shape[0], table.shape[1]
    residual = torch.empty(rows, columns, dtype=table.dtype, device=table.device)
    gained = torch.empty_like(residual)
    squares = torch.empty(rows, EMBED_PARTS, dtype=torch.float32, device=table.device)
    pointers = (tensor.data_ptr() for tensor in (tokens, table, gain, residual, gained, squares))
    _kernel("embed", table.dtype == torch.bfloat16).launch(
        (EMBED_PARTS, rows, 1), 256, _EmbedArguments(*pointers, columns), overlap=False
    )
    return residual, gained, squares


@functools.cache
def _scratch(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(0, dtype=dtype, device=device)]


def make_dense(weight: PackedInt4, dtype: torch.dtype) -> torch.Tensor:
    """The dense [N, K] of a packed weight, in a scratch that the next call overwrites (safe in stream order)."""
    holder = _scratch(weight.codes.device, dtype)
    size = weight.rows * weight.columns
    if holder[0].numel() < size:
        holder[0] = torch.empty(size, dtype=dtype, device=weight.codes.device)
    out = holder[0][:size].view(weight.rows, weight.columns)
    tiles, chunks = weight.codes.shape[:2]
    arguments = _DenseArguments(
        weight.codes.data_ptr(),
        weight.scales.data_ptr(),
        weight.minimums.data_ptr() if weight.minimums is not None else None,
        out.data_ptr(),
        weight.multiplier,
        weight.rows,
        weight.columns,
        int(weight.interleaved),
    )
    kernel = _kernel("make_dense", dtype == torch.bfloat16)
    kernel.launch((-(-chunks // 8), tiles, 1), 256, arguments, overlap=False)
    return out
