"""Attention of prefill chunks: K and V of each request are gathered from the cache, then one library call."""

from __future__ import annotations

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import CacheTensor, gather_tokens
from sits.kernels.reference.attention import causal_mask


def _flash(q, k, v, query_start, context_start, longest_query, longest_context, scale, window):
    """torch's FlashAttention-2 on ragged rows: q[T, H, D], k and v [S, K, D]; causal, aligned to the end."""
    options = {"scale": scale}
    if window > 0:
        options |= {"window_size_left": window - 1, "window_size_right": 0}
    return torch.ops.aten._flash_attention_forward(
        q, k, v, query_start, context_start, longest_query, longest_context, 0.0, True, False, **options
    )[0]


def prefill_attention(
    q: torch.Tensor,
    k_cache: CacheTensor,
    v_cache: CacheTensor,
    batch: AttentionBatch,
    scale: float,
    window: int,
    out: torch.Tensor,
) -> torch.Tensor:
    """q[T, H, D] of the requests after the decode rows; writes ``out`` of the same shape."""
    first = batch.num_decodes
    query_lens, context_lens = batch.query_lens_host[first:], batch.context_lens_host[first:]
    block_size = batch.block_size
    blocks = [
        batch.block_tables[first + i, : -(-length // block_size)].long() for i, length in enumerate(context_lens)
    ]
    flash = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= 256 and q.shape[-1] % 8 == 0
    if flash:
        k = torch.cat([gather_tokens(k_cache, b, n, q.dtype) for b, n in zip(blocks, context_lens)])
        v = torch.cat([gather_tokens(v_cache, b, n, q.dtype) for b, n in zip(blocks, context_lens)])
        query_start = (batch.query_start[first:] - batch.query_start[first]).to(torch.int32)
        context_start = torch.zeros(len(blocks) + 1, dtype=torch.int32, device=q.device)
        context_start[1:] = batch.context_lens[first : first + len(blocks)].cumsum(0)
        out.copy_(_flash(q, k, v, query_start, context_start, max(query_lens), max(context_lens), scale, window))
        return out
    start = 0
    for chosen, query_len, context_len in zip(blocks, query_lens, context_lens):
        k = gather_tokens(k_cache, chosen, context_len, q.dtype).transpose(0, 1).unsqueeze(0)
        v = gather_tokens(v_cache, chosen, context_len, q.dtype).transpose(0, 1).unsqueeze(0)
        query = q[start : start + query_len].transpose(0, 1).unsqueeze(0)
        mask = causal_mask(query_len, context_len, window, q.device)
        result = torch.nn.functional.scaled_dot_product_attention(
            query, k, v, attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[start : start + query_len] = result.squeeze(0).transpose(0, 1)
        start += query_len
    return out
