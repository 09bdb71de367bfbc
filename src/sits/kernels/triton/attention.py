"""``attention`` on CUDA: split-KV decode for the decode rows, a library kernel for prefill chunks, in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton

from sits.kernels.attention_batch import LOG2E, AttentionBatch
from sits.kernels.cuda.module import multiprocessors
from sits.kernels.kv_cache import CacheTensor, ScaledCache
from sits.kernels.registry import register
from sits.kernels.triton.decode_attention import combine_kernel, decode_kernel
from sits.kernels.triton.launch import pdl_options
from sits.kernels.triton.prefill_attention import prefill_attention


def _multiprocessors(device: torch.device) -> int:
    return multiprocessors(device) if device.type == "cuda" else 4  # on a CPU the interpreter runs them in turn


@cache
def workspace(device: torch.device, workers: int, rows: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial results of the workers, shared by all layers (launches are in stream order)."""
    partial = torch.empty(workers * 2 * rows * head_dim, dtype=torch.float32, device=device)
    return partial, torch.empty(workers * 2 * rows * 2, dtype=torch.float32, device=device)


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Tokens per tile, programs launched, the fewest tiles worth a program, depth of the load pipeline."""

    tile: int
    workers: int
    min_share: int
    stages: int
    splits: int  # 0, or the pieces every request is cut into under the static rule


def decode_shape(
    plan: Any, head_dim: int, device: torch.device, kv_heads: int = 0, longest: Sequence[int] = ()
) -> DecodeShape:
    """From a plan with these attributes (``policy.kv_planner.DecodePlan``), or a rule for what it lacks.

    ``longest`` are the longest contexts the launch may see (host numbers; of a graph, its bucket's). They bound the
    programs: one without a tile would only keep the next kernel from starting early. The same goes for the depth
    of the load pipeline, which costs shared memory and pays only over several tiles.
    """
    tile = getattr(plan, "tile", None) or (64 if head_dim <= 128 else 32)
    most = 2 * _multiprocessors(device)
    units = kv_heads * sum(-(-length // tile) for length in longest)
    short, long = 0 < units <= most, tile == 64 and max(longest, default=0) >= 32768
    if long and plan is None:  # the planner's rule for long contexts
        return DecodeShape(32, 3 * _multiprocessors(device), 1, 5, 0)
    return DecodeShape(
        tile,
        getattr(plan, "workers", None) or (max(1, units) if short else most),
        getattr(plan, "min_share", None) or 1,
        getattr(plan, "stages", None) or (3 if short else 5),
        getattr(plan, "splits", None) or 0,
    )


def decode_attention(
    q: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int = 0,
    plan: Any = None,
    out: torch.Tensor | None = None,
    longest: Sequence[int] = (),
) -> torch.Tensor:
    """q[R, H, D], one token per request, over context_lens[R] cached tokens each -> [R, H, D].

    ``plan`` may carry ``tile``, ``workers`` and ``min_share`` (``policy.kv_planner.DecodePlan``). Reads no host data:
    safe inside a CUDA graph for any lengths that ``block_tables`` has room for.
    """
    requests, heads, head_dim = q.shape
    _, block_size, kv_heads, _ = k_cache.shape
    group = heads // kv_heads
    scaled = isinstance(k_cache, ScaledCache)
    shape = decode_shape(plan, head_dim, q.device, kv_heads, longest)
    tile, workers, min_share = shape.tile, shape.workers, shape.min_share
    out = torch.empty_like(q) if out is None else out
    if not requests:
        return out
    partial, stats = workspace(q.device, workers, group, head_dim)
    k_data, v_data = (k_cache.data, v_cache.data) if scaled else (k_cache, v_cache)
    k_scale, v_scale = (k_cache.scale, v_cache.scale) if scaled else (q, q)
    batch_block = triton.next_power_of_2(requests)
    block_d = triton.next_power_of_2(head_dim)
    decode_kernel[(workers,)](
        q, k_data, v_data, k_scale, v_scale, out, partial, stats, context_lens, block_tables,
        scale * LOG2E, window, requests, block_tables.stride(0), min_share,
        BLOCK_SIZE=block_size, KV_HEADS=kv_heads, GROUP=group, ROWS=max(16, triton.next_power_of_2(group)),
        D=head_dim,
        BLOCK_D=block_d, TILE=tile, BATCH=batch_block, SCALED=scaled, STAGES=shape.stages, SPLITS=shape.splits,
        num_warps=4, **pdl_options(q),
    )  # fmt: skip
    together = 1 if requests * heads <= 4096 else group
    combine_kernel[(requests * kv_heads, group // together)](
        partial, stats, out, context_lens, window, requests, workers, min_share,
        KV_HEADS=kv_heads, GROUP=group, D=head_dim, BLOCK_D=block_d, TILE=tile, BATCH=batch_block,
        PARTS=16, HEADS=together, SPLITS=shape.splits, num_warps=4, **pdl_options(q),
    )  # fmt: skip
    return out


@register("attention", "triton", devices=("cuda",), priority=10)
def attention(
    q: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """q[T, H, D] -> [T, H, D]; see ``sits.kernels.ops``."""
    decodes, tokens = batch.num_decodes, q.shape[0]
    out = torch.empty_like(q)
    if decodes:
        decode_attention(
            q[:decodes], k_cache, v_cache, batch.context_lens[:decodes], batch.block_tables[:decodes], scale, window,
            batch.plan, out[:decodes], batch.context_lens_host[:decodes],
        )  # fmt: skip
    if tokens > decodes:
        prefill_attention(q[decodes:], k_cache, v_cache, batch, scale, window, out[decodes:])
    return out
