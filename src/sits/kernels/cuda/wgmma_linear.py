"""Launch ``wgmma_linear.cu``: INT4 linear layers for up to some hundred rows, with what follows them fused in."""

from __future__ import annotations

import ctypes
import functools

import torch

from sits.kernels.cuda.module import Kernel, address, multiprocessors, tensor_map
from sits.kernels.cuda.wgmma_layout import WgmmaInt4
from sits.kernels.cuda.wgmma_shape import MAX_NORM_ROWS, WgmmaShape, default_shape, square_parts

PLAIN, RESIDUAL, SILU_MUL = 0, 1, 2


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("map", ctypes.c_ubyte * 128),
        *((name, ctypes.c_void_p) for name in ("weight", "row_factor", "y", "bias", "next_gain", "gained")),
        ("squares_out", ctypes.c_void_p),
        ("squares_in", ctypes.c_void_p),
        ("squares_count", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("M", ctypes.c_int),
        ("N", ctypes.c_int),
        ("K", ctypes.c_int),
        ("padding", ctypes.c_ubyte * 64),  # the struct is aligned to 64 bytes
    )


def product_source(columns: int, kind: str) -> str:
    """The C++ function around one ``wgmma`` of 64 rows by ``columns``: A in registers, B in shared memory.

    ``kind`` is ``bf16`` or ``f16`` (16 k an instruction), or ``e4m3`` (32 k).
    """
    count = columns // 2
    k, transposed = (32, "") if kind == "e4m3" else (16, ", 0")
    sums = ", ".join(f"%{index}" for index in range(count))
    a = ", ".join(f"%{count + index}" for index in range(4))
    outputs = ", ".join(f'"+f"(d[{index}])' for index in range(count))
    return f"""typedef unsigned int u32;
typedef unsigned long long u64;
static __device__ __forceinline__ void wgmma(float (&d)[{count}], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{kind}.{kind} "
                 "{{{sums}}}, {{{a}}}, %{count + 4}, 1, 1, 1{transposed};"
                 : {outputs} : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}}
"""


def defines(
    shape: WgmmaShape, bf16: bool, minimum: bool, epilogue: int, norm: bool, plain_order: bool
) -> dict[str, int]:
    """Compile-time settings."""
    consumer, producer = shape.registers or (0, 0)
    return {
        "NT": shape.columns, "GR": shape.row_groups, "GK": shape.k_groups, "CK": shape.k_split, "KC": shape.chunks,
        "STAGES": shape.stages, "LATE": int(shape.late), "BF16": int(bf16), "E4M3": int(shape.e4m3),
        "HAS_MIN": int(minimum), "NORM": int(norm), "EPILOGUE": epilogue, "PLAIN_ORDER": int(plain_order),
        "SET_REGISTERS": int(consumer > 0), "CONSUMER_REGISTERS": consumer, "PRODUCER_REGISTERS": producer,
        "MIN_BLOCKS": shape.blocks,
    }  # fmt: skip


@functools.cache
def _kernel(
    shape: WgmmaShape, bf16: bool, minimum: bool, epilogue: int, norm: bool, plain_order: bool
) -> tuple[Kernel, int]:
    settings = defines(shape, bf16, minimum, epilogue, norm, plain_order)
    kernel = Kernel(
        "wgmma_linear.cu",
        "wgmma_linear",
        settings,
        shape.shared_bytes(not minimum),
        product_source(shape.columns, "e4m3" if shape.e4m3 else "bf16" if bf16 else "f16"),
    )
    return kernel, kernel.resident_clusters(shape.k_split, shape.threads)


def wgmma_linear(
    weight: WgmmaInt4,
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
    x_scale: torch.Tensor | None = None,
    shape: WgmmaShape | None = None,
    overlap: bool = True,
) -> None:
    """x[M, K] times weight[N, K] into y, with what follows it fused in. All contiguous.

    ``squares_in`` [M, parts] float32, M <= ``MAX_NORM_ROWS``: partial sums of squares of the un-normed rows; the
    result is then scaled by ``rsqrt(sum / K + eps)`` (x must already carry the norm's gain).
    PLAIN: y[M, N] = result + bias. RESIDUAL: y is the residual, updated in place; ``gained`` = y * next_gain and
    ``squares_out`` [M, square_parts] its partial sums of squares. SILU_MUL: y[M, N / 2] = silu(gate) * up of
    interleaved rows. ``overlap`` lets the launch start before the kernel ahead of it has ended.

    ``x_scale`` [M] float32, M <= ``MAX_NORM_ROWS``: x is e4m3 in ``e4m3_order`` and to be multiplied by it, K a
    multiple of 128; weights are then rounded to e4m3 too. RESIDUAL does no more than
    add then. Not run on a GPU yet.
    """
    batch, e4m3 = x.shape[0], x_scale is not None
    if x.shape[1] != weight.columns or y.dtype != weight.dtype or (not e4m3 and x.dtype != weight.dtype):
        raise ValueError(
            f"x[{batch}, {x.shape[1]}] {x.dtype} and y {y.dtype} for a weight of {weight.columns} inputs packed "
            f"for {weight.dtype}"
        )
    if batch > MAX_NORM_ROWS and (e4m3 or squares_in is not None):
        raise ValueError(f"{batch} rows, and a CTA keeps the scales of {MAX_NORM_ROWS}")
    assert not e4m3 or (squares_in is None and weight.columns % 128 == 0)
    if shape is None:
        shape = default_shape(
            batch, weight.rows, weight.columns, weight.symmetric, multiprocessors(x.device), e4m3=e4m3
        )
    plain_order = weight.interleaved and epilogue == PLAIN
    kernel, clusters = _kernel(
        shape, y.dtype == torch.bfloat16, not weight.symmetric, epilogue, squares_in is not None, plain_order
    )
    assert epilogue != SILU_MUL or weight.interleaved
    units = -(-square_parts(weight.rows) // shape.row_groups) * -(-batch // shape.columns)
    arguments = _Arguments(
        tensor_map(x, shape.columns, shape.chunks // 2 if e4m3 else shape.chunks),
        weight.blocks.data_ptr(), weight.row_factor.data_ptr(), address(y), address(bias), address(next_gain),
        address(gained), address(squares_out), address(x_scale if e4m3 else squares_in),
        squares_in.shape[1] if squares_in is not None else 0, eps,
        batch, weight.rows, weight.columns,
    )  # fmt: skip
    kernel.launch((min(units, clusters) * shape.k_split, 1, 1), shape.threads, arguments, overlap)
