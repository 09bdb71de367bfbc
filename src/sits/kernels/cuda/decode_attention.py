"""Launch ``decode_attention.cu``: rotary embedding, KV write and attention of short contexts or many requests."""

from __future__ import annotations

import ctypes
import functools

import torch

from sits.kernels.attention_batch import LOG2E, AttentionBatch
from sits.kernels.cuda.attention_limits import step_fits
from sits.kernels.cuda.module import Kernel

LONGEST = 2048  # tokens: above it a request must be spread over more CTAs than a cluster has
MAX_SPLITS = 8
STAGES, BLOCKS = 2, 3  # tiles of 64 tokens on their way, CTAs a multiprocessor
_FEW = 66  # CTAs: half the multiprocessors are free, so the next linear may fetch its first weights there
_ENOUGH = 132  # CTAs: more of a cluster cost more than they hide (docs/notes/tuning.md)


class _Arguments(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "qkv",
                "cos_sin",
                "positions",
                "slots",
                "k_cache",
                "v_cache",
                "out",
                "context_lens",
                "tables",
            )
        ),
        ("qkv_stride", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("cos_stride", "half", "table_stride", "kv_heads", "block_log", "window")),
        ("scale", ctypes.c_float),
        ("early", ctypes.c_int),
    )


def fits(
    qkv: torch.Tensor, k_cache: object, batch: AttentionBatch, heads: int, kv_heads: int, head_dim: int, half: int
) -> bool:
    """Whether the kernel takes such a step: a 16-bit cache, heads it has registers for, contexts short enough."""
    if not isinstance(k_cache, torch.Tensor) or half % 2:
        return False
    if qkv.stride(0) % 2 or qkv.data_ptr() % 4:  # values are read in pairs
        return False
    if not 0 < max(batch.context_lens_host, default=0) <= LONGEST:
        return False
    return step_fits(qkv, batch, heads, kv_heads, head_dim)


def splits_for(pairs: int, longest: int) -> int:
    """CTAs a (request, KV head): enough to fill the device, no more than there are tiles of 64 tokens."""
    splits = 1
    while splits < MAX_SPLITS and pairs * splits * 2 <= _ENOUGH and splits * 2 * 64 <= longest:
        splits *= 2
    return splits


@functools.cache
def _kernel(head_dim: int, group: int, splits: int, bf16: bool, window: bool, stages: int, blocks: int) -> Kernel:
    tiles = 4 * stages * 2 * 16 * head_dim * 2
    shared = tiles + 2 * (group * (head_dim + 8) + 2 * head_dim) + 4 * splits * group * (head_dim + 2) + 64
    defines = {"D": head_dim, "GROUP": group, "SPLITS": splits, "BF16": int(bf16), "WINDOW": int(window)}
    return Kernel("decode_attention.cu", "decode_attention", {**defines, "STAGES": stages, "BLOCKS": blocks}, shared)


def decode_attention(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int = 0,
    splits: int = 0,
    overlap: bool = True,
) -> torch.Tensor:
    """qkv[R, (H + 2K) D], one new token per request -> [R, H, D]; the cache gets k and v.

    The function of ``kernels.triton.fused_decode.fused_rope_attention``, for steps that :func:`fits`. Right for any
    context length; ``splits`` (1, 2, 4 or 8, 0: by rule) decides how fast.
    """
    requests = qkv.shape[0]
    out = torch.empty((requests, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    splits = splits or splits_for(requests * kv_heads, max(batch.context_lens_host, default=0))
    arguments = _Arguments(
        qkv.data_ptr(), cos_sin.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr(), k_cache.data_ptr(),
        v_cache.data_ptr(), out.data_ptr(), batch.context_lens.data_ptr(), batch.block_tables.data_ptr(),
        qkv.stride(0), cos_sin.stride(0), cos_sin.shape[1] // 2, batch.block_tables.stride(0), kv_heads,
        batch.block_size.bit_length() - 1, window, scale * LOG2E, int(splits * kv_heads * requests <= _FEW),
    )  # fmt: skip
    kernel = _kernel(head_dim, heads // kv_heads, splits, qkv.dtype == torch.bfloat16, window > 0, STAGES, BLOCKS)
    kernel.launch((splits, kv_heads, requests), 128, arguments, overlap)
    return out
