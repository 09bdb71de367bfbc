"""A decode step of up to 16 requests in five launches a layer, for INT4 models on Hopper (SPEC 1.5).

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
from sits.models.model import KVCache

if TYPE_CHECKING:
    from sits.kernels.cuda.int4_layout import PackedInt4
    from sits.models.llama import LlamaModel


class FusedDecoder:
    """The decode-only forward of one model; ``build`` says whether there is one."""

    def __init__(self, model: LlamaModel):
        self.model = model
        self._packed = [
            tuple(
                weight.packed.layouts["cuda"]
                for weight in (layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj)
            )
            for layer in model.layers
        ]

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
            linears = (layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj)
            layouts = [getattr(weight.packed, "layouts", {}) for weight in linears]
            if any("cuda" not in layout for layout in layouts):
                return "not all linears of a layer are INT4 in the tensor-core layout"
            if layer.gate_up_proj.bias is not None or not layouts[2]["cuda"].interleaved:
                return "gate_up has a bias, or its rows are not in eights"
        return None

    def accepts(self, batch: AttentionBatch, logits_rows: torch.Tensor) -> bool:
        """Whether a step is one token for each of at most 16 requests, all of which want logits."""
        rows = batch.num_decodes
        return 0 < rows <= 16 and batch.positions.shape[0] == rows == logits_rows.shape[0]

    def forward(self, token_ids: torch.Tensor, batch: AttentionBatch, kv_cache: KVCache) -> torch.Tensor:
        """token_ids[M] -> float32 logits[M, vocab]; the same function as ``LlamaModel.forward``."""
        from sits.kernels.cuda.decode_linear import (
            PLAIN,
            RESIDUAL,
            SILU_MUL,
            decode_linear,
            default_shape,
            square_parts,
        )
        from sits.kernels.cuda.small import embed
        from sits.kernels.triton.fused_decode import fused_rope_attention

        model, config = self.model, self.model.config
        rows, eps, dtype, device = token_ids.shape[0], config.norm_eps, model.dtype, model.device
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        residual, gained, squares = embed(token_ids, model.embedding, model.layers[0].input_norm)
        last = len(model.layers) - 1

        def empty(columns: int) -> torch.Tensor:
            return torch.empty(rows, columns, dtype=dtype, device=device)

        def parts(weight: PackedInt4) -> torch.Tensor:
            count = square_parts(weight.rows, default_shape(rows, weight.rows, weight.columns, False))
            return torch.empty(rows, count, dtype=torch.float32, device=device)

        qkv, activated = empty(config.q_size + 2 * config.kv_size), empty(config.intermediate_size)
        for index, layer in enumerate(model.layers):
            qkv_weight, o_weight, gate_up_weight, down_weight = self._packed[index]
            k_cache, v_cache = kv_cache[index]
            decode_linear(
                qkv_weight, gained, qkv, epilogue=PLAIN, bias=layer.qkv_proj.bias, squares_in=squares, eps=eps,
            )  # fmt: skip
            mixed = fused_rope_attention(
                qkv, model.cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, config.scale,
                config.window(index),
            )  # fmt: skip
            squares = parts(o_weight)
            decode_linear(
                o_weight, mixed.flatten(1), residual, epilogue=RESIDUAL, bias=layer.o_proj.bias,
                next_gain=layer.post_norm, gained=gained, squares_out=squares,
            )  # fmt: skip
            decode_linear(
                gate_up_weight, gained, activated, epilogue=SILU_MUL, squares_in=squares, eps=eps,
            )  # fmt: skip
            squares = parts(down_weight)
            decode_linear(
                down_weight, activated, residual, epilogue=RESIDUAL, bias=layer.down_proj.bias,
                next_gain=model.final_norm if index == last else model.layers[index + 1].input_norm,
                gained=gained, squares_out=squares,
            )  # fmt: skip
        dense = getattr(model.lm_head, "weight", None)
        if dense is None or model.lm_head.bias is not None:
            scale = torch.rsqrt(squares.sum(1, keepdim=True) / config.hidden_size + eps)
            return model.lm_head.apply((gained * scale).to(dtype)).float()
        logits = empty(config.vocab_size)
        decode_linear(dense, gained, logits, epilogue=PLAIN, squares_in=squares, eps=eps)
        return logits.float()
