"""Paged attention in plain PyTorch: gather each request's blocks, then one library call per request."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import CacheTensor, gather_tokens
from sits.kernels.registry import register


def causal_mask(query_len: int, context_len: int, window: int, device: torch.device) -> torch.Tensor:
    """[query_len, context_len] bool, True = may attend. Query i sits at position context_len - query_len + i."""
    q_pos = torch.arange(context_len - query_len, context_len, device=device).unsqueeze(1)
    k_pos = torch.arange(context_len, device=device).unsqueeze(0)
    mask = k_pos <= q_pos
    if window > 0:
        mask &= k_pos > q_pos - window
    return mask


@register("attention", "reference")
def attention(
    q: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """q[T, H, D] -> [T, H, D]; see ``sits.kernels.ops``."""
    out = torch.empty_like(q)
    start = 0
    for row, (query_len, context_len) in enumerate(zip(batch.query_lens_host, batch.context_lens_host)):
        blocks = batch.block_tables[row, : -(-context_len // batch.block_size)].long()
        k = gather_tokens(k_cache, blocks, context_len, q.dtype).transpose(0, 1).unsqueeze(0)
        v = gather_tokens(v_cache, blocks, context_len, q.dtype).transpose(0, 1).unsqueeze(0)
        query = q[start : start + query_len].transpose(0, 1).unsqueeze(0)
        mask = None if query_len == 1 and not window else causal_mask(query_len, context_len, window, q.device)
        result = scaled_dot_product_attention(query, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
        out[start : start + query_len] = result.squeeze(0).transpose(0, 1)
        start += query_len
    return out
