"""Which CUDA C++ kernel a decode step's rotary embedding, KV write and attention go through, if any.

``SITS_CUDA_ATTENTION`` overrides the rule: ``cluster`` (``decode_attention.cu`` where it fits), ``line``
(``line_attention.cu`` where it fits), ``mixed`` (clusters for few requests, else the line) or ``0`` (Triton only).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cuda import decode_attention as cluster
from sits.kernels.cuda import line_attention as line

RULE = "cluster"
FEW = 32  # (request, KV head) pairs up to which a cluster each was faster than the line


def kernel_for(
    qkv: torch.Tensor, k_cache: object, batch: AttentionBatch, heads: int, kv_heads: int, head_dim: int, half: int
) -> Callable[..., torch.Tensor] | None:
    """A function of the arguments of ``fused_rope_attention`` that takes this step, or ``None``: Triton's turn."""
    rule = os.environ.get("SITS_CUDA_ATTENTION", RULE)
    step = (qkv, k_cache, batch, heads, kv_heads, head_dim, half)
    few = rule == "cluster" or qkv.shape[0] * kv_heads <= FEW
    if rule in ("cluster", "mixed") and few and cluster.fits(*step):
        return cluster.decode_attention
    if rule in ("line", "mixed") and line.fits(*step):
        return line.line_attention
    return None
