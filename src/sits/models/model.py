"""The contract between the engine and a model file."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.kv_cache import CacheTensor

KVCache = list[tuple[CacheTensor, CacheTensor]]  # per layer (k, v), each [num_blocks, block_size, kv_heads, head_dim]


class CausalModel(Protocol):
    """A decoder-only language model over a paged KV cache."""

    config: Any  # sits.models.config.ModelConfig
    device: torch.device
    dtype: torch.dtype

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, kv_cache: KVCache, logits_rows: torch.Tensor
    ) -> torch.Tensor:
        """Run one step: token_ids[T] int64 -> logits[len(logits_rows), vocab_size] in float32.

        ``logits_rows`` are the token indices (int64) whose next-token logits are wanted. K and V of every token
        are written to ``kv_cache`` at ``batch.slots``.
        """
        ...
