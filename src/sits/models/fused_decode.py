"""A decode step in five launches a layer, for INT4 models on Hopper (SPEC 1.5).

    norm + qkv | rotary + KV write + attention | o + residual | norm + gate_up + SiLU | down + residual

A norm is never a launch of its own: the linear that writes the residual also writes residual * gain and its partial
sums of squares, and the linear that reads it scales its result by 1 / rms, which is the same by linearity. Launches
overlap (programmatic dependent launch). ``SITS_FUSED_DECODE=0`` turns it all off (the ablation switch).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.cuda.wgmma_shape import MAX_NORM_ROWS
from sits.models import fused_decode_fp8
from sits.models.model import KVCache

if TYPE_CHECKING:
    from sits.models.llama import LlamaModel


class FusedDecoder:
    """The decode-only forward of one model; ``build`` says whether there is one."""

    def __init__(self, model: LlamaModel):
        self.model = model
        self._e4m3 = fused_decode_fp8.asked_for(model)
        self._packed = [tuple(weight.held("wgmma") for weight in layer.linears()) for layer in model.layers]

    @classmethod
    def build(cls, model: LlamaModel) -> FusedDecoder | None:
        """The fused decoder of a model, or ``None`` where the plain path must serve."""
        return None if cls.refusal(model) else cls(model)

    @staticmethod
    def refusal(model: LlamaModel) -> str | None:
        """Why a model has no fused decoder; ``None`` when it has."""
        if os.environ.get("SITS_FUSED_DECODE", "1") == "0":
            return "switched off by SITS_FUSED_DECODE=0"
        if model.device.type != "cuda" or model.ops.chosen.get("attention") != "triton":
            return "needs a CUDA device and the Triton attention"
        for layer in model.layers:
            if any(weight.held("wgmma") is None or weight.kernel != "measured" for weight in layer.linears()):
                return "not all linears of a layer are INT4 in the wgmma layout, or another kernel was asked for"
            if layer.gate_up_proj.bias is not None or not layer.gate_up_proj.held("wgmma").interleaved:
                return "gate_up has a bias, or its rows are not in eights"
        return None

    def accepts(self, batch: AttentionBatch, logits_rows: torch.Tensor) -> bool:
        """Whether a step is one token for each of at most ``MAX_NORM_ROWS`` requests, all of which want logits."""
        rows = batch.num_decodes
        return 0 < rows <= MAX_NORM_ROWS and batch.positions.shape[0] == rows == logits_rows.shape[0]

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch, kv_cache: KVCache) -> torch.Tensor:
        """token_ids[M] -> float32 logits[M, vocab]; the same function as ``LlamaModel.forward``."""
        from sits.kernels.cuda.small import embed
        from sits.kernels.cuda.wgmma_linear import RESIDUAL, SILU_MUL, wgmma_linear
        from sits.kernels.cuda.wgmma_shape import square_parts
        from sits.kernels.triton.fused_decode import fused_rope_attention

        model, config = self.model, self.model.config
        if self._e4m3 and token_ids.shape[0] >= fused_decode_fp8.LEAST_ROWS:
            return fused_decode_fp8.forward(model, self._packed, token_ids, batch, kv_cache)
        rows, eps, dtype, device = token_ids.shape[0], config.norm_eps, model.dtype, model.device
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        residual, gained, squares = embed(token_ids, model.embedding, model.layers[0].input_norm)
        last = len(model.layers) - 1

        def empty(columns: int) -> torch.Tensor:
            return torch.empty(rows, columns, dtype=dtype, device=device)

        qkv, activated = empty(config.q_size + 2 * config.kv_size), empty(config.intermediate_size)
        sums = torch.empty(rows, square_parts(config.hidden_size), dtype=torch.float32, device=device)
        for index, layer in enumerate(model.layers):
            qkv_weight, o_weight, gate_up_weight, down_weight = self._packed[index]
            k_cache, v_cache = kv_cache[index]
            wgmma_linear(qkv_weight, gained, qkv, bias=layer.qkv_proj.bias, squares_in=squares, eps=eps)
            mixed = fused_rope_attention(
                qkv, model.cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, config.scale,
                config.window(index),
            )  # fmt: skip
            wgmma_linear(
                o_weight, mixed.flatten(1), residual, epilogue=RESIDUAL, bias=layer.o_proj.bias,
                next_gain=layer.post_norm, gained=gained, squares_out=sums,
            )  # fmt: skip
            squares = sums
            wgmma_linear(gate_up_weight, gained, activated, epilogue=SILU_MUL, squares_in=squares, eps=eps)
            wgmma_linear(
                down_weight, activated, residual, epilogue=RESIDUAL, bias=layer.down_proj.bias,
                next_gain=model.final_norm if index == last else model.layers[index + 1].input_norm,
                gained=gained, squares_out=sums,
            )  # fmt: skip
        return model.lm_head.apply(model.ops.rms_norm(residual, model.final_norm, eps)).float()
