"""Paged attention on the CPU: PyTorch's flash kernel over the cache itself wherever a request's blocks lie in a run.

Grouped queries need no copy of K and V: in decode the query heads of a group become rows of one attention problem
(they see the same keys); in prefill the group is an expanded (stride 0) dimension.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cpu.plan import Request, plan_of
from sits.kernels.kv_cache import CacheTensor
from sits.kernels.reference.attention import attention as reference_attention
from sits.kernels.registry import register


def _supports(dtype: torch.dtype | None = None, **properties: object) -> bool:
    return dtype in (None, torch.float32, torch.bfloat16, torch.float16)


@register("attention", "cpu", devices=("cpu",), priority=10, supports=_supports)
def attention(
    q: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """q[T, H, D] -> [T, H, D]; see ``sits.kernels.ops``. An 8-bit cache takes the reference path."""
    if not (isinstance(k_cache, torch.Tensor) and isinstance(v_cache, torch.Tensor)):
        return reference_attention(q, k_cache, v_cache, batch, scale, window)
    out = torch.empty(q.shape, dtype=q.dtype)
    attend(q, k_cache, v_cache, batch, scale, window, out)
    return out


def attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int,
    out: torch.Tensor,
    skip: int = 0,
) -> None:
    """Fill ``out`` for all requests but the first ``skip``."""
    plan = plan_of(batch)
    group = q.shape[1] // k_cache.shape[2]
    gathered = plan.gathered_blocks(skip)
    if gathered is not None:
        k_gathered = k_cache.index_select(0, gathered)
        v_gathered = v_cache.index_select(0, gathered)
    for request in plan.requests[skip:]:
        k, v = (k_gathered, v_gathered) if request.gathered else (k_cache, v_cache)
        run = _decode if request.query_len == 1 else _prefill
        run(q, k, v, request, out, group, scale, window)


def _decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    request: Request,
    out: torch.Tensor,
    group: int,
    scale: float,
    window: int,
) -> None:
    kv_heads, head_dim = k.shape[2:]
    length, start = request.context_len, request.start
    if window and length > window:
        start += length - window
        length = window
    size, strides = (1, kv_heads, length, head_dim), (0, head_dim, kv_heads * head_dim, 1)
    offset = start * kv_heads * head_dim
    keys = k.as_strided(size, strides, k.storage_offset() + offset)
    values = v.as_strided(size, strides, v.storage_offset() + offset)
    row = slice(request.row, request.row + 1)
    query = q[row].view(1, kv_heads, group, head_dim)
    result = scaled_dot_product_attention(query, keys, values, scale=scale)
    out[row] = result.reshape(1, kv_heads * group, head_dim)


def _prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    request: Request,
    out: torch.Tensor,
    group: int,
    scale: float,
    window: int,
) -> None:
    kv_heads, head_dim = k.shape[2:]
    size = (kv_heads, group, request.context_len, head_dim)
    strides = (head_dim, 0, kv_heads * head_dim, 1)
    offset = request.start * kv_heads * head_dim
    keys = k.as_strided(size, strides, k.storage_offset() + offset)
    values = v.as_strided(size, strides, v.storage_offset() + offset)
    rows = slice(request.row, request.row + request.query_len)
    query = q[rows].unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3)  # [kv_heads, group, query, head_dim]
    mask = request.mask(window)
    result = scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale)
    out[rows].unflatten(1, (kv_heads, group)).copy_(result.permute(2, 0, 1, 3))
