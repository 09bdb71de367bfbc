"""Which CUDA C++ kernel a decode step's rotary embedding, KV write and attention go through, if any.

The rule is measured (``docs/notes/tuning.md``, A5 and A6): clusters for the short contexts they fit, the line for
longer ones. ``SITS_CUDA_ATTENTION`` overrides it: ``mixed`` is the rule, ``cluster`` only ``decode_attention.cu``,
``line`` only ``line_attention.cu``, ``0`` neither: Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cuda import decode_attention as cluster
from sits.kernels.cuda import line_attention as line

RULE = "mixed"


def kernel_for(
    qkv: torch.Tensor, k_cache: object, batch: AttentionBatch, heads: int, kv_heads: int, head_dim: int, half: int
) -> Callable[..., torch.Tensor] | None:
    """A function of the arguments of ``fused_rope_attention`` that takes this step, or ``None``: Triton's turn."""
    rule = os.environ.get("SITS_CUDA_ATTENTION", RULE)
    step = (qkv, k_cache, batch, heads, kv_heads, head_dim, half)
    if rule in ("cluster", "mixed") and cluster.fits(*step):
        return cluster.decode_attention
    if rule in ("line", "mixed") and line.fits(*step):
        return line.line_attention
    return None
