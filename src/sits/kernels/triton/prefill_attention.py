"""Attention of prefill chunks: K and V of all requests gathered by one index each, then one library call.

Where the tokens lie is the same for every layer: the first layer of a step works it out, on the device and for all
requests at once, so a layer launches the same few kernels whatever the number of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import CacheTensor, gather_slots
from sits.kernels.reference.attention import causal_mask


@dataclass(frozen=True, slots=True)
class PrefillLayout:
    """The requests after the decode rows: N of them, S tokens of context in all."""

    slots: torch.Tensor  # [S] int64, request after request
    query_start: torch.Tensor  # [N + 1] int32
    context_start: torch.Tensor  # [N + 1] int32

    @classmethod
    def of(cls, batch: AttentionBatch) -> PrefillLayout:
        """Of a step that has such requests. Launches a dozen small kernels and waits for nothing."""
        first, size = batch.num_decodes, batch.block_size
        lengths = batch.context_lens[first:]
        context_start = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))  # int64
        total = sum(batch.context_lens_host[first:])
        rows = torch.arange(lengths.shape[0], device=lengths.device)
        row = torch.repeat_interleave(rows, lengths, output_size=total)
        position = torch.arange(total, device=lengths.device) - context_start[row]
        block = batch.block_tables[first + row, position // size].long()
        query_start = batch.query_start[first:] - batch.query_start[first]
        return cls(block * size + position % size, query_start.to(torch.int32), context_start.to(torch.int32))


def _flash(q, k, v, layout, longest_query, longest_context, scale, window):
    """torch's FlashAttention-2 on ragged rows: q[T, H, D], k and v [S, K, D]; causal, aligned to the end."""
    options = {"scale": scale}
    if window > 0:
        options |= {"window_size_left": window - 1, "window_size_right": 0}
    return torch.ops.aten._flash_attention_forward(
        q, k, v, layout.query_start, layout.context_start, longest_query, longest_context, 0.0, True, False, **options
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
    layout = batch.prefill
    if layout is None:
        layout = batch.prefill = PrefillLayout.of(batch)
    keys, values = (gather_slots(cache, layout.slots, q.dtype) for cache in (k_cache, v_cache))
    flash = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= 256 and q.shape[-1] % 8 == 0
    if flash:
        out.copy_(_flash(q, keys, values, layout, max(query_lens), max(context_lens), scale, window))
        return out
    start = 0
    contexts = zip(query_lens, keys.split(context_lens), values.split(context_lens))
    for query_len, k, v in contexts:
        query = q[start : start + query_len].transpose(0, 1).unsqueeze(0)
        mask = causal_mask(query_len, k.shape[0], window, q.device)
        result = torch.nn.functional.scaled_dot_product_attention(
            query,
            k.transpose(0, 1).unsqueeze(0),
            v.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            scale=scale,
            enable_gqa=True,
        )
        out[start : start + query_len] = result.squeeze(0).transpose(0, 1)
        start += query_len
    return out
