"""A decode step of an INT4 model in e4m3 products, for many rows: weights are rounded to 8 bits on their way (W4A8).

    norm + quantise | qkv | rotary + KV write + attention | quantise | o + residual
    norm + quantise | gate_up + SiLU | quantise | down + residual

Nine launches a layer instead of five, and half the time in the tensor cores, which is what a step of 128 rows and
more consists of; rounded as FP8 models are. Only where ``SITS_INT4_DECODE=fp8`` asks for it: **it has not run on a
GPU yet** (docs/notes/tuning.md, W10).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.models.model import KVCache

if TYPE_CHECKING:
    from sits.kernels.cuda.wgmma_layout import WgmmaInt4
    from sits.models.llama import LlamaModel

LEAST_ROWS = 33  # predicted: below it reading the weights takes the time, not multiplying them


def asked_for(model: LlamaModel) -> bool:
    """Whether the environment asks for it and every linear of a layer has whole tiles of 128 inputs."""
    asked = os.environ.get("SITS_INT4_DECODE", "exact") == "fp8"
    return asked and all(weight.in_features % 128 == 0 for layer in model.layers for weight in layer.linears())


def forward(
    model: LlamaModel,
    packed: list[tuple[WgmmaInt4, ...]],
    token_ids: torch.Tensor,
    batch: AttentionBatch,
    kv_cache: KVCache,
) -> torch.Tensor:
    """token_ids[M] -> float32 logits[M, vocab]; ``packed``: qkv, o, gate_up and down of every layer."""
    from sits.kernels.cuda.rows import norm, quantize
    from sits.kernels.cuda.wgmma_linear import RESIDUAL, SILU_MUL, wgmma_linear
    from sits.kernels.triton.fused_decode import fused_rope_attention

    config, eps, rows = model.config, model.config.norm_eps, token_ids.shape[0]
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    residual = torch.nn.functional.embedding(token_ids, model.embedding)
    qkv, activated = (
        torch.empty(rows, columns, dtype=model.dtype, device=model.device)
        for columns in (config.q_size + 2 * config.kv_size, config.intermediate_size)
    )

    def normed(gain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, scale, _ = norm(residual, None, gain, eps, quantize=True, e4m3_order=True)
        assert scale is not None
        return q, scale

    for index, layer in enumerate(model.layers):
        qkv_weight, o_weight, gate_up_weight, down_weight = packed[index]
        k_cache, v_cache = kv_cache[index]
        q, scale = normed(layer.input_norm)
        wgmma_linear(qkv_weight, q, qkv, bias=layer.qkv_proj.bias, x_scale=scale)
        mixed = fused_rope_attention(
            qkv, model.cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, config.scale, config.window(index)
        )
        q, scale = quantize(mixed.flatten(1), silu=False, e4m3_order=True)
        wgmma_linear(o_weight, q, residual, epilogue=RESIDUAL, bias=layer.o_proj.bias, x_scale=scale)
        q, scale = normed(layer.post_norm)
        wgmma_linear(gate_up_weight, q, activated, epilogue=SILU_MUL, x_scale=scale)
        q, scale = quantize(activated, silu=False, e4m3_order=True)
        wgmma_linear(down_weight, q, residual, epilogue=RESIDUAL, bias=layer.down_proj.bias, x_scale=scale)
    return model.lm_head.apply(model.ops.rms_norm(residual, model.final_norm, eps)).float()
