"""Launch ``decode_linear.cu``: linear layers for up to 16 rows with what follows them in a layer fused in."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from sits.kernels.cuda.int4_layout import PackedInt4
from sits.kernels.cuda.module import Kernel

PLAIN, RESIDUAL, SILU_MUL = 0, 1, 2
MAX_BATCH = 16  # rows of x; more would need x staged in shared memory


class _Arguments(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("weight", "scales", "minimums", "x", "y", "bias", "next_gain", "gained")
        ),
        ("squares_out", ctypes.c_void_p),
        ("squares_in", ctypes.c_void_p),
        ("squares_count", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("multiplier", ctypes.c_float),
        ("M", ctypes.c_int),
        ("N", ctypes.c_int),
        ("K", ctypes.c_int),
    )


@dataclass(frozen=True)
class Shape:
    """A launch shape: row tiles of a CTA, warps that split K, stages in flight (even), CTAs per multiprocessor."""

    row_tiles: int
    warps: int
    stages: int
    blocks: int


def default_shape(batch: int, rows: int, columns: int, dense: bool) -> Shape:
    """Shape by rule, for what the measured table does not hold: enough bytes in flight, enough CTAs."""
    if dense:
        return Shape(1, 8, 2, 2)
    # Two CTAs a multiprocessor, unless a third lets all run at once instead of a few in a second wave (132 of them).
    ctas = -(-rows // 32)
    return Shape(2, 8, 2, 3 if batch <= 8 and 264 < ctas <= 396 else 2)


@functools.cache
def _kernel(
    dense: bool,
    bf16: bool,
    batch: int,
    shape: Shape,
    minimum: bool,
    epilogue: int,
    norm: bool,
    full: bool,
    interleaved: bool,
) -> Kernel:
    batch_tiles = -(-batch // 8)
    x_rows = 8 if batch_tiles > 1 else 1 << (batch - 1).bit_length()
    defines = {
        "WEIGHT": int(dense), "BF16": int(bf16), "MT": batch_tiles, "XROWS": x_rows, "RT": shape.row_tiles,
        "WARPS": shape.warps, "STAGES": shape.stages, "HAS_MIN": int(minimum), "EPILOGUE": epilogue,
        "NORM": int(norm), "MIN_BLOCKS": shape.blocks, "FULL_K": int(full), "INTERLEAVED": int(interleaved),
    }  # fmt: skip
    return Kernel("decode_linear.cu", "decode_linear", defines)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def decode_linear(
    weight: PackedInt4 | torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    epilogue: int = PLAIN,
    bias: torch.Tensor | None = None,
    squares_in: torch.Tensor | None = None,
    eps: float = 1e-5,
    next_gain: torch.Tensor | None = None,
    gained: torch.Tensor | None = None,
    squares_out: torch.Tensor | None = None,
    shape: Shape | None = None,
    overlap: bool = True,
) -> None:
    """x[M, K] times weight[N, K], M <= 16, into y, with what follows it fused in.

    ``squares_in`` [M, parts] float32: partial sums of squares of the un-normed rows; the result is then scaled by
    ``rsqrt(sum / K + eps)`` (x must already carry the norm's gain).
    PLAIN: y[M, N] = result + bias. RESIDUAL: y is the residual, updated in place; ``gained`` = y * next_gain and
    ``squares_out`` [M, square_parts] its partial sums of squares. SILU_MUL: y[M, N / 2] = silu(gate) * up of rows
    interleaved by ``interleave_gate_up``.

    ``overlap`` lets the launch start before the kernel ahead of it has ended.
    """
    dense = isinstance(weight, torch.Tensor)
    rows, columns = weight.shape if isinstance(weight, torch.Tensor) else (weight.rows, weight.columns)
    batch = x.shape[0]
    shape = shape or default_shape(batch, rows, columns, dense)
    minimums = None if isinstance(weight, torch.Tensor) else weight.minimums
    kernel = _kernel(
        dense,
        x.dtype == torch.bfloat16,
        batch,
        shape,
        minimums is not None,
        epilogue,
        squares_in is not None,
        columns % 64 == 0,
        not isinstance(weight, torch.Tensor) and weight.interleaved,
    )
    arguments = _Arguments(
        _address(weight if isinstance(weight, torch.Tensor) else weight.codes),
        None if isinstance(weight, torch.Tensor) else _address(weight.scales),
        _address(minimums), _address(x), _address(y), _address(bias), _address(next_gain), _address(gained),
        _address(squares_out), _address(squares_in), squares_in.shape[1] if squares_in is not None else 0, eps,
        1.0 if isinstance(weight, torch.Tensor) else weight.multiplier,
        batch, rows, columns,
    )  # fmt: skip
    kernel.launch((square_parts(rows, shape), 1, 1), shape.warps * 32, arguments, overlap)


def square_parts(rows: int, shape: Shape) -> int:
    """CTAs of a launch: the second size of ``squares_out``."""
    return -(-rows // (16 * shape.row_tiles))
