"""Launch ``rows.cu``: norms, SiLU * up and e4m3 quantisation of rows that fit into the registers of one CTA."""

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


class _Arguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "residual", "gain", "out", "summed", "scale")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("x_stride", "residual_stride")),
    )


def can_run(x: torch.Tensor, columns: int) -> bool:
    """Whether rows of ``columns`` results (``x`` has them, or twice them) suit the kernels."""
    if not is_available() or x.dtype not in _HALF or columns % _CHUNK or columns > 65536:
        return False
    return x.stride(-1) == 1 and x.stride(0) % _CHUNK == 0 and x.data_ptr() % 16 == 0


@functools.cache
def _kernel(name: str, bf16: bool, columns: int, threads: int, blocks: int, *flags: tuple[str, int]) -> Kernel:
    chunks = -(-columns // (_CHUNK * threads))
    defines = {"BF16": int(bf16), "N": columns, "THREADS": threads, "CHUNKS": chunks, "BLOCKS": blocks}
    return Kernel("rows.cu", name, defines | dict(flags))


def _threads(columns: int, chunks: int) -> int:
    """Multiple of 32, at most 1024, so that each thread has about ``chunks`` loads."""
    return min(1024, max(32, -(-columns // (_CHUNK * chunks * 32)) * 32))


def _overlap() -> bool:
    return os.environ.get("SITS_PDL", "1") != "0"


def _launch(
    kernel: Kernel,
    threads: int,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor | None,
    out: torch.Tensor,
    summed: torch.Tensor | None,
    scale: torch.Tensor | None,
    eps: float,
) -> None:
    tensors = (x, residual, gain, out, summed, scale)
    pointers = map(address, tensors)
    strides = x.stride(0), 0 if residual is None else residual.stride(0)
    kernel.launch((x.shape[0], 1, 1), threads, _Arguments(*pointers, eps, *strides), overlap=_overlap())


def norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    quantize: bool,
    chunks: int = NORM_CHUNKS,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """x[M, N] (+ residual) -> (normed in x's dtype or e4m3, its scales [M] or None, the sum or x itself)."""
    rows, columns = x.shape
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn if quantize else x.dtype, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device) if quantize else None
    summed = torch.empty(rows, columns, dtype=x.dtype, device=x.device) if residual is not None else x
    if rows:
        threads = _threads(columns, chunks)
        flags = ("ADD", int(residual is not None)), ("QUANTIZE", int(quantize))
        blocks = max(1, 1024 // threads)
        kernel = _kernel("norm_rows", x.dtype == torch.bfloat16, columns, threads, blocks, *flags)
        _launch(kernel, threads, x, residual, gain, out, summed, scale, eps)
    return out, scale, summed


def quantize(x: torch.Tensor, silu: bool, chunks: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x[M, N] -> (e4m3 [M, N], scales [M]); with ``silu`` of silu(first half) * second half, [M, N / 2]."""
    rows, columns = x.shape[0], x.shape[1] // 2 if silu else x.shape[1]
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        threads = _threads(columns, chunks or (SILU_CHUNKS if silu else QUANTIZE_CHUNKS))
        blocks = max(1, 1024 // threads)
        kernel = _kernel("quantize_rows", x.dtype == torch.bfloat16, columns, threads, blocks, ("SILU", int(silu)))
        _launch(kernel, threads, x, None, None, out, None, scale, 0.0)
    return out, scale
