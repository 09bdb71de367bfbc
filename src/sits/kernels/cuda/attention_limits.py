"""What both CUDA C++ kernels of decode attention ask of a step."""

from __future__ import annotations

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cuda.module import is_available

SLICE = 16  # tokens a tensor-core tile takes at once: blocks of the cache must be made of whole slices


def step_fits(qkv: torch.Tensor, batch: AttentionBatch, heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether there are registers for the heads, blocks are a power of two in whole slices, and a card is there."""
    if head_dim not in (64, 128) or heads > 8 * kv_heads:
        return False
    size = batch.block_size
    if size % SLICE or size & (size - 1):
        return False
    return qkv.is_cuda and qkv.dtype != torch.float32 and is_available()
