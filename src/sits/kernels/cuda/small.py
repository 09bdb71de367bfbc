"""Launch ``small.cu``: the first operator of a fused decode step; dense or e4m3 weights for prefill."""

from __future__ import annotations

import ctypes
import functools

import torch

from sits.kernels.cuda.module import Kernel
from sits.kernels.cuda.wgmma_layout import WgmmaInt4

EMBED_PARTS = 4  # CTAs a row: enough to hide the latency of one row, few enough to sum up quickly


class _EmbedArguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "table", "gain", "residual", "gained", "squares")),
        ("N", ctypes.c_int),
    )


class _BlockArguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("blocks", "row_factor", "out")),
        ("fp8_factor", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("N", "K", "chunks", "block_bytes", "interleaved")),
    )


@functools.cache
def _kernel(name: str, bf16: bool, fp8: bool = False) -> Kernel:
    return Kernel("small.cu", name, {"BF16": int(bf16), "FP8": int(fp8)})


def embed(
    tokens: torch.Tensor, table: torch.Tensor, gain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens[M] int64 -> (residual[M, N], residual * gain, partial sums of squares [M, EMBED_PARTS])."""
    rows, columns = tokens.shape[0], table.shape[1]
    residual = torch.empty(rows, columns, dtype=table.dtype, device=table.device)
    gained = torch.empty_like(residual)
    squares = torch.empty(rows, EMBED_PARTS, dtype=torch.float32, device=table.device)
    pointers = (tensor.data_ptr() for tensor in (tokens, table, gain, residual, gained, squares))
    # Not overlapped: what the kernels of a step read before they wait (lengths, block tables, the cache of earlier
    # steps) was written before this launch, and must be complete when it starts.
    _kernel("embed", table.dtype == torch.bfloat16).launch(
        (EMBED_PARTS, rows, 1), 256, _EmbedArguments(*pointers, columns), overlap=False
    )
    return residual, gained, squares


class Scratch:
    """Room for one matrix, which grows. What a captured graph knows the address of is kept for its replays."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self._room = torch.empty(0, dtype=dtype, device=device)
        self._in_graphs: list[torch.Tensor] = []

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        """[rows, columns] over what the last call gave out."""
        if self._room.numel() < rows * columns:
            self._room = torch.empty(rows * columns, dtype=self._room.dtype, device=self._room.device)
        known = any(kept is self._room for kept in self._in_graphs)
        if not known and self._room.is_cuda and torch.cuda.is_current_stream_capturing():
            self._in_graphs.append(self._room)
        return self._room[: rows * columns].view(rows, columns)


@functools.cache
def _scratch(dtype: torch.dtype, device: torch.device) -> Scratch:
    return Scratch(dtype, device)


def make_fp8(weight: WgmmaInt4) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [N, K], float32 row scales [N]) of a packed weight.

    The matrix is in a scratch that the next call overwrites. The scales are powers of two; relative to them no weight
    exceeds 256.
    """
    times = 2.0**14 if weight.symmetric else 2.0**12
    out = _scratch(torch.float8_e4m3fn, weight.blocks.device).matrix(weight.rows, weight.columns)
    _make_dense_blocks(weight, out, times)
    return out, weight.factors_in_order() / times


def _make_dense_blocks(weight: WgmmaInt4, out: torch.Tensor, fp8_factor: float) -> None:
    tiles, chunks, size = weight.blocks.shape
    arguments = _BlockArguments(
        weight.blocks.data_ptr(), weight.row_factor.data_ptr(), out.data_ptr(), fp8_factor,
        weight.rows, weight.columns, chunks, size, int(weight.interleaved),
    )  # fmt: skip
    kernel = _kernel("make_dense_blocks", weight.dtype == torch.bfloat16, out.dtype == torch.float8_e4m3fn)
    kernel.launch((weight.columns // 64, tiles, 1), 128, arguments, overlap=False)


def make_dense(weight: WgmmaInt4, dtype: torch.dtype) -> torch.Tensor:
    """The dense [N, K] of a packed weight, in a scratch that the next call overwrites (safe in stream order)."""
    if dtype != weight.dtype:
        raise ValueError(f"a weight packed for {weight.dtype} cannot be made dense in {dtype}")
    out = _scratch(dtype, weight.blocks.device).matrix(weight.rows, weight.columns)
    _make_dense_blocks(weight, out, 0.0)
    return out
