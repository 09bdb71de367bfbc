"""Launch ``decode_linear.cu``: INT4 linear layers for up to 16 rows, with the norm before them fused in."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from sits.kernels.cuda.int4_layout import PackedInt4
from sits.kernels.cuda.module import Kernel, address

MAX_BATCH = 16  # rows of x; more would need x staged in shared memory


class _Arguments(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "minimums", "x", "y", "bias", "squares_in")),
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


def default_shape(batch: int, rows: int) -> Shape:
    """Shape by rule, for what the measured table does not hold: enough bytes in flight, enough CTAs."""
    ctas = -(-rows // 32)
    if 1 < batch <= 8 and 264 < ctas <= 396:
        return Shape(1, 16, 2, 2)
    # Two CTAs a multiprocessor, unless a third lets all run at once instead of a few in a second wave (132 of them).
    return Shape(2, 8, 2, 3 if batch == 1 and 264 < ctas <= 396 else 2)


@functools.cache
def _kernel(
    bf16: bool,
    batch: int,
    shape: Shape,
    minimum: bool,
    norm: bool,
    full: bool,
    interleaved: bool,
) -> Kernel:
    batch_tiles = -(-batch // 8)
    x_rows = 8 if batch_tiles > 1 else 1 << (batch - 1).bit_length()
    defines = {
        "BF16": int(bf16), "MT": batch_tiles, "XROWS": x_rows, "RT": shape.row_tiles,
        "WARPS": shape.warps, "STAGES": shape.stages, "HAS_MIN": int(minimum),
        "NORM": int(norm), "MIN_BLOCKS": shape.blocks, "FULL_K": int(full), "INTERLEAVED": int(interleaved),
    }  # fmt: skip
    return Kernel("decode_linear.cu", "decode_linear", defines)


def decode_linear(
    weight: PackedInt4,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    squares_in: torch.Tensor | None = None,
    eps: float = 1e-5,
    shape: Shape | None = None,
    overlap: bool = True,
) -> None:
    """y[M, N] = x[M, K] times weight[N, K], plus bias[N]; M <= 16.

    ``squares_in`` [M, parts] float32: partial sums of squares of the un-normed rows; the result is then scaled by
    ``rsqrt(sum / K + eps)`` (x must already carry the norm's gain). ``overlap`` lets the launch start before the
    kernel ahead of it has ended.
    """
    batch = x.shape[0]
    shape = shape or default_shape(batch, weight.rows)
    kernel = _kernel(
        x.dtype == torch.bfloat16,
        batch,
        shape,
        weight.minimums is not None,
        squares_in is not None,
        weight.columns % 64 == 0,
        weight.interleaved,
    )
    arguments = _Arguments(
        address(weight.codes), address(weight.scales), address(weight.minimums), address(x), address(y),
        address(bias), address(squares_in), squares_in.shape[1] if squares_in is not None else 0, eps,
        weight.multiplier, batch, weight.rows, weight.columns,
    )  # fmt: skip
    kernel.launch((-(-weight.rows // (16 * shape.row_tiles)), 1, 1), shape.warps * 32, arguments, overlap)
