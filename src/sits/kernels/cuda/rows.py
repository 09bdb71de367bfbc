"""Launch ``rows.cu``: norms, SiLU * up and e4m3 quantisation of rows that fit into the registers of one CTA.

``x`` may be the bare sums of an FP8 product: with ``scales`` (float32 for its rows, and for its columns) its values
are ``x * rows[:, None] * columns``.
"""

from __future__ import annotations

import ctypes
import functools
import os

import torch

from sits.kernels.cuda.module import Kernel, address, is_available

_HALF = (torch.bfloat16, torch.float16)
_CHUNK = 8  # values of a 16-byte load
#: 16-byte loads a thread makes of a row: enough threads to hide latency, few enough to reduce over quickly.
NORM_CHUNKS, QUANTIZE_CHUNKS, SILU_CHUNKS = 2, 2, 7
SCALE_THREADS, SCALE_ROWS = 256, 4  # of ``scale_rows``: 4 loads in flight a thread, 320 CTAs for 256 rows of 10240
Scales = tuple[torch.Tensor, torch.Tensor]


_POINTERS = ("x", "residual", "gain", "out", "summed", "scale", "row_scale", "column_scale")


class _Arguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("x_stride", "residual_stride", "rows")),
    )


def can_run(x: torch.Tensor, columns: int, scales: Scales | None = None) -> bool:
    """Whether rows of ``columns`` results (``x`` has them, or twice them) suit the kernels."""
    if scales is not None and (scales[1].data_ptr() % 16 or not all(scale.is_contiguous() for scale in scales)):
        return False
    if not is_available() or x.dtype not in _HALF or columns % _CHUNK or columns > 65536:
        return False
    return x.stride(-1) == 1 and x.stride(0) % _CHUNK == 0 and x.data_ptr() % 16 == 0


@functools.cache
def _kernel(
    name: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    columns: int,
    threads: int,
    scaled: bool,
    *flags: tuple[str, int],
) -> Kernel:
    """``dtypes`` are those of x and of the rest."""
    x_bf16, bf16 = (int(dtype == torch.bfloat16) for dtype in dtypes)
    defines = {"X_BF16": x_bf16, "BF16": bf16, "SCALED": int(scaled), "N": columns, "THREADS": threads}
    defines |= {"CHUNKS": -(-columns // (_CHUNK * threads)), "BLOCKS": max(1, 1024 // threads)}
    return Kernel("rows.cu", name, defines | dict(flags))


def _threads(columns: int, chunks: int) -> int:
    """Multiple of 32, at most 1024, so that each thread has about ``chunks`` loads."""
    return min(1024, max(32, -(-columns // (_CHUNK * chunks * 32)) * 32))


def _overlap() -> bool:
    return os.environ.get("SITS_PDL", "1") != "0"


def _launch(
    kernel: Kernel,
    grid: tuple[int, int],
    threads: int,
    x: torch.Tensor,
    out: torch.Tensor,
    scales: Scales | None,
    residual: torch.Tensor | None = None,
    gain: torch.Tensor | None = None,
    summed: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    tensors = (x, residual, gain, out, summed, scale, *(scales or (None, None)))
    strides = x.stride(0), 0 if residual is None else residual.stride(0)
    arguments = _Arguments(*map(address, tensors), eps, *strides, x.shape[0])
    kernel.launch((*grid, 1), threads, arguments, overlap=_overlap())


def norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    quantize: bool,
    chunks: int = NORM_CHUNKS,
    scales: Scales | None = None,
    e4m3_order: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """x[M, N] (+ residual) -> (normed in the residual's dtype or e4m3, its scales [M] or None, the sum or x itself).

    The sum has the residual's dtype, which may be another 16-bit one than x's. ``scales`` go with a residual.
    ``e4m3_order``: the e4m3 result, N a multiple of 16, in the order of ``wgmma_layout.e4m3_order``.
    """
    rows, columns = x.shape
    dtype = x.dtype if residual is None else residual.dtype
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn if quantize else dtype, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device) if quantize else None
    summed = torch.empty(rows, columns, dtype=dtype, device=x.device) if residual is not None else x
    if rows:
        threads = _threads(columns, chunks)
        flags = ("ADD", int(residual is not None)), ("QUANTIZE", int(quantize)), ("E4M3_ORDER", int(e4m3_order))
        kernel = _kernel("norm_rows", (x.dtype, dtype), columns, threads, scales is not None, *flags)
        _launch(kernel, (rows, 1), threads, x, out, scales, residual, gain, summed, scale, eps)
    return out, scale, summed


def quantize(
    x: torch.Tensor, silu: bool, chunks: int = 0, scales: Scales | None = None, e4m3_order: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """x[M, N] -> (e4m3 [M, N], scales [M]); with ``silu`` of silu(first half) * second half, [M, N / 2].

    ``scales`` go with ``silu``; ``e4m3_order`` as in :func:`norm`.
    """
    rows, columns = x.shape[0], x.shape[1] // 2 if silu else x.shape[1]
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        threads = _threads(columns, chunks or (SILU_CHUNKS if silu else QUANTIZE_CHUNKS))
        flags = ("SILU", int(silu)), ("E4M3_ORDER", int(e4m3_order))
        kernel = _kernel("quantize_rows", (x.dtype, x.dtype), columns, threads, scales is not None, *flags)
        _launch(kernel, (rows, 1), threads, x, out, scales, scale=scale)
    return out, scale


def scale_rows(x: torch.Tensor, scales: Scales, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x[M, N] scaled (+ bias[N] of ``dtype``) -> [M, N] of ``dtype``: into x itself where that is its dtype."""
    rows, columns = x.shape
    out = x if x.dtype == dtype and x.is_contiguous() else torch.empty(rows, columns, dtype=dtype, device=x.device)
    if rows:
        flags = ("BIAS", int(bias is not None)), ("ROWS", SCALE_ROWS)
        kernel = _kernel("scale_rows", (x.dtype, dtype), columns, SCALE_THREADS, True, *flags)
        grid = -(-columns // (_CHUNK * SCALE_THREADS)), -(-rows // SCALE_ROWS)
        _launch(kernel, grid, SCALE_THREADS, x, out, scales, gain=bias)
    return out
