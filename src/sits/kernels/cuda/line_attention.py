"""Launch ``line_attention.cu``: rotary embedding, KV write and attention for any mix of context lengths."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import torch

from sits.kernels.attention_batch import LOG2E, AttentionBatch
from sits.kernels.cuda.attention_limits import SLICE, step_fits
from sits.kernels.cuda.module import Kernel, multiprocessors
from sits.kernels.kv_cache import CacheTensor, ScaledCache

KINDS = {torch.int8: 1, torch.float8_e4m3fn: 2}  # of the stored values; 0: 16 bits


@dataclass(frozen=True)
class LineShape:
    """A launch shape: warps a CTA, slices of 16 tokens in flight a warp, CTAs a multiprocessor."""

    warps: int = 8
    stages: int = 2
    blocks: int = 1


class _Arguments(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "qkv", "cos_sin", "positions", "slots", "k_cache", "v_cache", "out", "partial", "arrivals",
                "context_lens", "tables",
            )
        ),
        ("qkv_stride", ctypes.c_longlong),
        *(
            (name, ctypes.c_int)
            for name in ("cos_stride", "table_stride", "kv_heads", "block_log", "window", "requests", "min_share")
        ),
        ("scale", ctypes.c_float),
        ("k_scale", ctypes.c_void_p),  # read only by kernels for 8-bit caches
        ("v_scale", ctypes.c_void_p),
    )  # fmt: skip


def fits(
    qkv: torch.Tensor, k_cache: object, batch: AttentionBatch, heads: int, kv_heads: int, head_dim: int, half: int
) -> bool:
    """Whether the kernel takes such a step: heads it has registers for, all of a head rotated, a type of cache."""
    if not isinstance(k_cache, ScaledCache | torch.Tensor):
        return False
    if 2 * half != head_dim or qkv.stride(0) % 8 or qkv.data_ptr() % 16:  # rows are read 16 bytes at a time
        return False
    return step_fits(qkv, batch, heads, kv_heads, head_dim)


def shared_bytes(shape: LineShape, head_dim: int, group: int, kind: int = 0) -> int:
    """Shared memory of a CTA: the rings (of 8-bit values with their scales), a part a warp, who owns the parts."""
    part = -(-group * (head_dim + 2) * 4 // 16) * 16
    slice_bytes = 2 * SLICE * (head_dim + 4 if kind else 2 * head_dim)
    return shape.warps * (shape.stages * slice_bytes + part + 24) + 16


def definitions(head_dim: int, group: int, bf16: bool, kind: int, shape: LineShape) -> dict[str, int]:
    """What ``line_attention.cu`` is compiled with."""
    return {
        "D": head_dim, "GROUP": group, "WARPS": shape.warps, "STAGES": shape.stages, "BLOCKS": shape.blocks,
        "BF16": int(bf16), "KIND": kind, "SHARED_BYTES": shared_bytes(shape, head_dim, group, kind),
    }  # fmt: skip


@functools.cache
def _kernel(head_dim: int, group: int, bf16: bool, kind: int, shape: LineShape) -> Kernel:
    defines = definitions(head_dim, group, bf16, kind, shape)
    return Kernel("line_attention.cu", "line_attention", defines, defines["SHARED_BYTES"])


@functools.cache
def _partial(device: torch.device, ctas: int, group: int, head_dim: int) -> torch.Tensor:
    """Two parts a CTA, of the largest launch; shared by all layers (launches are in stream order)."""
    return torch.empty(ctas * 2 * (-(-group * (head_dim + 2) // 4) * 4), dtype=torch.float32, device=device)


@functools.cache
def _arrivals(device: torch.device, count: int) -> torch.Tensor:
    """Arrival counters; every launch leaves them at zero."""
    return torch.zeros(count, dtype=torch.int32, device=device)


def ctas_for(multiprocessors: int, shape: LineShape, slices: int, min_share: int) -> int:
    """CTAs to launch: what the device holds at once, no more than have work for the longest contexts expected."""
    return max(1, min(shape.blocks * multiprocessors, -(-slices // min_share)))


def line_attention(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int = 0,
    shape: LineShape | None = None,
    min_share: int = 0,
    overlap: bool = True,
) -> torch.Tensor:
    """qkv[R, (H + 2K) D], one new token per request -> [R, H, D]; the cache gets k and v.

    The function of ``kernels.triton.fused_decode.fused_rope_attention``, for steps that :func:`fits`. Right for any
    context lengths on the device; the host's (``batch.context_lens_host``, of a captured graph its bucket's) only
    bound the launch. ``min_share`` is the fewest slices worth a CTA, 0: one for each of its warps.
    """
    requests, group, device = qkv.shape[0], heads // kv_heads, qkv.device
    shape = shape or LineShape()
    min_share = min_share or shape.warps
    out = torch.empty((requests, heads, head_dim), dtype=qkv.dtype, device=device)
    count = multiprocessors(device)
    slices = kv_heads * sum(-(-length // SLICE) for length in batch.context_lens_host)
    ctas = ctas_for(count, shape, slices, min_share) if slices else shape.blocks * count
    counters = 1 << (requests * kv_heads - 1).bit_length()
    caches = [cache.data if isinstance(cache, ScaledCache) else cache for cache in (k_cache, v_cache)]
    scales = [cache.scale.data_ptr() if isinstance(cache, ScaledCache) else None for cache in (k_cache, v_cache)]
    arguments = _Arguments(
        qkv.data_ptr(), cos_sin.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr(), caches[0].data_ptr(),
        caches[1].data_ptr(), out.data_ptr(), _partial(device, shape.blocks * count, group, head_dim).data_ptr(),
        _arrivals(device, counters).data_ptr(), batch.context_lens.data_ptr(), batch.block_tables.data_ptr(),
        qkv.stride(0), cos_sin.stride(0), batch.block_tables.stride(0), kv_heads, batch.block_size.bit_length() - 1,
        window, requests, min_share, scale * LOG2E, *scales,
    )  # fmt: skip
    kind = KINDS.get(k_cache.dtype, 0)
    kernel = _kernel(head_dim, group, qkv.dtype == torch.bfloat16, kind, shape)
    kernel.launch((ctas, 1, 1), shape.warps * 32, arguments, overlap)
    return out
