"""Logits of a given text in one step: what quality is measured on, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.models.model import CausalModel
from sits.quant.kv import allocate_kv_cache

_BLOCK_SIZE = 16


def single_request_batch(tokens: int, device: torch.device | str = "cpu") -> AttentionBatch:
    """A prompt of ``tokens`` tokens alone in the cache, in blocks 0, 1, ..."""
    blocks = -(-tokens // _BLOCK_SIZE)
    steps = torch.arange(tokens, device=device)
    return AttentionBatch(
        positions=steps,
        slots=steps,
        query_start=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        context_lens=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_tables=torch.arange(blocks, dtype=torch.int32, device=device).unsqueeze(0),
        block_size=_BLOCK_SIZE,
        num_decodes=0,
        query_lens_host=[tokens],
        context_lens_host=[tokens],
        blocks_host=[list(range(blocks))],
    )


@torch.inference_mode()
def teacher_forced_logits(model: CausalModel, token_ids: Sequence[int], kv_dtype: str = "auto") -> torch.Tensor:
    """float32 [T, vocab]: row t is the prediction after token t. K and V pass through a cache of ``kv_dtype``."""
    count, shape = len(token_ids), model.config
    blocks = -(-count // _BLOCK_SIZE)
    cache = allocate_kv_cache(
        kv_dtype, shape.layers, blocks, _BLOCK_SIZE, shape.kv_heads, shape.head_dim, model.dtype, model.device
    )
    ids = torch.tensor(list(token_ids), device=model.device)
    batch = single_request_batch(count, model.device)
    return model.forward(ids, batch, cache, torch.arange(count, device=model.device))
