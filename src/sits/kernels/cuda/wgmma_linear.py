"""Launch ``wgmma_linear.cu``: INT4 linear layers for up to some hundred rows, with what follows them fused in."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from sits.kernels.cuda.module import Kernel, address, multiprocessors, tensor_map
from sits.kernels.cuda.wgmma_layout import WgmmaInt4, block_bytes

PLAIN, RESIDUAL, SILU_MUL = 0, 1, 2
MAX_NORM_ROWS = 512  # rows whose norms fit into what ``shared_bytes`` sets aside for them
SHARED_TOTAL = 228 * 1024  # of a multiprocessor; a CTA takes 1 KiB more than it asks for


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


@dataclass(frozen=True)
class WgmmaShape:
    """A launch shape.

    A tile is ``64 * row_groups`` weight rows by ``columns`` batch rows; ``k_groups`` warpgroups and ``k_split`` CTAs
    of a cluster split K; a stage holds ``chunks`` chunks of 64 k; ``blocks`` CTAs share a multiprocessor; ``late``
    gives a stage back when the next one has begun.
    """

    columns: int
    row_groups: int
    k_groups: int
    k_split: int
    chunks: int
    stages: int
    blocks: int = 1
    late: bool = False

    @property
    def groups(self) -> int:
        """Consumer warpgroups of a CTA."""
        return self.row_groups * self.k_groups

    @property
    def set_registers(self) -> bool:
        """Whether consumers take over registers of the producer: where the sums need them."""
        return self.columns >= 128

    @property
    def threads(self) -> int:
        """Of a CTA: consumers, two producer warps (a warpgroup where registers move)."""
        return self.groups * 128 + (128 if self.set_registers else 64)

    def shared_bytes(self, symmetric: bool) -> int:
        """Dynamic shared memory of a CTA."""
        own = -(-self.columns // 8 // self.k_split)
        staging, local = own * 8 * 144, (self.k_groups - 1) * 64 * self.columns * 4
        remote = (self.k_split - 1) * 64 * own * 8 * 4
        exchange = max(local, staging) + remote if self.k_groups > 1 else max(remote, staging)
        stage = self.chunks * (self.columns * 128 + self.row_groups * block_bytes(symmetric)) + 16
        return 1024 + self.stages * stage + self.row_groups * (exchange + 16) + MAX_NORM_ROWS * 4


TILES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# (row groups, K groups, K split) and what a tile costs more than its share of the weights, as measured on one H200
# (docs/notes/tuning.md): up to 16 rows nothing is gained by sharing x between row groups, above that much is.
SMALL_SPLITS = (((1, 4, 1), 1.0), ((1, 4, 2), 1.1), ((2, 2, 1), 1.08))
LARGE_SPLITS = (((2, 2, 2), 1.0), ((2, 2, 1), 0.9), ((1, 4, 2), 1.45), ((1, 4, 1), 1.3))


@functools.cache
def default_shape(batch: int, rows: int, symmetric: bool = True, multiprocessors: int = 132) -> WgmmaShape:
    """Shape by rule: the split of the work that keeps most multiprocessors busy in its last round.

    A round is a tile on each of them; its cost is the share of a row tile's K that a CTA does, times its row tiles.
    """
    tile = next((size for size in TILES if batch <= size), 256)
    best: tuple[float, WgmmaShape] | None = None
    for (row_groups, k_groups, k_split), factor in SMALL_SPLITS if tile <= 16 else LARGE_SPLITS:
        k_groups = k_groups if tile <= 64 else k_groups // 2
        if tile > 128 and row_groups == 1:
            continue  # x would come in faster than a multiprocessor can take it
        options = (tile, 128) if tile == 256 and k_split == 2 else (tile,)  # half a tile where rounds fit better
        for tile_columns in options:
            units = -(-square_parts(rows) // row_groups) * -(-batch // tile_columns)
            rounds = -(-units // (multiprocessors // k_split))
            cost = (
                rounds * row_groups / k_split * factor * tile_columns / tile * (1.0 if tile_columns == tile else 1.1)
            )
            if best is None or cost < best[0] - 1e-9:
                chunks = 4 if tile_columns <= 32 else 2 if tile_columns <= 128 else 1
                if tile_columns == 128 and tile == 256:
                    chunks = 1
                late = chunks > 1 and tile_columns > 16
                best = (
                    cost,
                    fill_stages(tile_columns, row_groups, k_groups, k_split, chunks, symmetric, late=late),
                )
    assert best is not None
    return best[1]


def fill_stages(
    columns: int,
    row_groups: int,
    k_groups: int,
    k_split: int,
    chunks: int,
    symmetric: bool = True,
    blocks: int = 1,
    late: bool = False,
) -> WgmmaShape:
    """The shape with as many stages as shared memory holds (at most 48)."""
    limit = SHARED_TOTAL // blocks - 1024
    sizes = (
        WgmmaShape(columns, row_groups, k_groups, k_split, chunks, count, blocks, late) for count in range(48, 1, -1)
    )
    smallest = WgmmaShape(columns, row_groups, k_groups, k_split, chunks, k_groups, blocks, late)
    return next((shape for shape in sizes if shape.shared_bytes(symmetric) <= limit), smallest)


def product_source(columns: int, bf16: bool) -> str:
    """The C++ function around one ``wgmma`` of 64 x ``columns`` x 16: A in registers, B in shared memory."""
    count = columns // 2
    kind = "bf16" if bf16 else "f16"
    sums = ", ".join(f"%{index}" for index in range(count))
    a = ", ".join(f"%{count + index}" for index in range(4))
    outputs = ", ".join(f'"+f"(d[{index}])' for index in range(count))
    return f"""typedef unsigned int u32;
typedef unsigned long long u64;
static __device__ __forceinline__ void wgmma(float (&d)[{count}], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
                 "{{{sums}}}, {{{a}}}, %{count + 4}, 1, 1, 1, 0;"
                 : {outputs} : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}}
"""


def defines(
    shape: WgmmaShape, bf16: bool, minimum: bool, epilogue: int, norm: bool, plain_order: bool
) -> dict[str, int]:
    """Compile-time settings; two consumer warpgroups leave the producer's registers to the sums."""
    return {
        "NT": shape.columns, "GR": shape.row_groups, "GK": shape.k_groups, "CK": shape.k_split, "KC": shape.chunks,
        "STAGES": shape.stages, "LATE": int(shape.late), "BF16": int(bf16),
        "HAS_MIN": int(minimum), "NORM": int(norm), "EPILOGUE": epilogue, "PLAIN_ORDER": int(plain_order),
        "SET_REGISTERS": int(shape.set_registers), "MIN_BLOCKS": shape.blocks, "PRODUCER_REGISTERS": 40,
        "CONSUMER_REGISTERS": 232,
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
        product_source(shape.columns, bf16),
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
    shape: WgmmaShape | None = None,
    overlap: bool = True,
) -> None:
    """x[M, K] times weight[N, K] into y, with what follows it fused in. All contiguous.

    ``squares_in`` [M, parts] float32, M <= ``MAX_NORM_ROWS``: partial sums of squares of the un-normed rows; the
    result is then scaled by ``rsqrt(sum / K + eps)`` (x must already carry the norm's gain).
    PLAIN: y[M, N] = result + bias. RESIDUAL: y is the residual, updated in place; ``gained`` = y * next_gain and
    ``squares_out`` [M, square_parts] its partial sums of squares. SILU_MUL: y[M, N / 2] = silu(gate) * up of
    interleaved rows. ``overlap`` lets the launch start before the kernel ahead of it has ended.
    """
    batch = x.shape[0]
    if shape is None:
        shape = default_shape(batch, weight.rows, weight.symmetric, multiprocessors(x.device))
    plain_order = weight.interleaved and epilogue == PLAIN
    kernel, clusters = _kernel(
        shape, x.dtype == torch.bfloat16, not weight.symmetric, epilogue, squares_in is not None, plain_order
    )
    assert epilogue != SILU_MUL or weight.interleaved
    units = -(-square_parts(weight.rows) // shape.row_groups) * -(-batch // shape.columns)
    arguments = _Arguments(
        tensor_map(x, shape.columns, shape.chunks),
        weight.blocks.data_ptr(), weight.row_factor.data_ptr(), address(y), address(bias), address(next_gain),
        address(gained),
        address(squares_out), address(squares_in), squares_in.shape[1] if squares_in is not None else 0, eps,
        batch, weight.rows, weight.columns,
    )  # fmt: skip
    kernel.launch((min(units, clusters) * shape.k_split, 1, 1), shape.threads, arguments, overlap)


def square_parts(rows: int) -> int:
    """Row tiles of a weight: the second size of ``squares_out``."""
    return -(-rows // 64)
