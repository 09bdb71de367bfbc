"""A forward in which every linear multiplies e4m3: activations leave each norm and activation already quantised.

    add + norm + quantise | qkv | rotary + KV write + attention | quantise | o
    add + norm + quantise | gate_up | SiLU * up + quantise | down

The same numbers as the plain path to the last bit of a sum, in four launches a layer less. It serves FP8 models in
decode steps and prompts alike, and long prompts of INT4 models that were told so (``kernels.int4_fp8``): their
weights are made e4m3 one after the other, in a scratch. ``SITS_FUSED_FP8=0`` turns it off (the ablation switch).

For few tokens a product leaves its scales to the kernel that reads it (``fp8_product.Sums``): the faster product. The
sum is rounded before its scales then, not after: as often and as far, but the last bit may be another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from sits.kernels import int4_fp8
from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.fp8_product import Sums, scaled_product, unit_scale, unscaled_product
from sits.kernels.fp8_rows import add_rms_norm_fp8, quantize_fp8, scale_sums
from sits.models.model import KVCache
from sits.quant.fp8_linear import Fp8Weight
from sits.quant.linear import LinearWeight

if TYPE_CHECKING:
    from sits.models.llama import LlamaModel

# Tokens of a step up to which products leave their scales to the reader. On an H200, 70B shapes: o 34 us with scales
# and 23 without at 128 tokens, gate_up 191 and 180 at 256; at 2048 torch's row-wise kernel is the faster one.
MOST_UNSCALED = 512
# Tokens beyond which that also pays where scaling is not free: qkv needs a launch for it, and the scales of gate and
# up are twice the bytes of a row, read for every row. At 128 tokens these two products gain but 1 to 2 us.
SCALING_PAYS = 128


class FusedFp8:
    """The forward of one model; ``build`` says whether there is one."""

    def __init__(self, model: LlamaModel, least_tokens: int = 0):
        self.model = model
        self.least_tokens = least_tokens  # of a step it takes
        # What a product comes in, where the next kernel takes that: a pass over it less.
        self._product_dtype = torch.bfloat16 if model.device.type == "cuda" else model.dtype
        unit_scale(model.device)  # now, not while a graph is captured

    @classmethod
    def build(cls, model: LlamaModel, int4_prompts: bool = False) -> FusedFp8 | None:
        """The fused forward of a model, or ``None`` where the plain path must serve."""
        if cls.refusal(model, int4_prompts):
            return None
        fp8 = all(isinstance(weight, Fp8Weight) for layer in model.layers for weight in layer.linears())
        return cls(model, 0 if fp8 else int4_fp8.LEAST_ROWS)

    @staticmethod
    def refusal(model: LlamaModel, int4_prompts: bool = False) -> str | None:
        """Why a model has no such forward; ``None`` when it has. ``int4_prompts``: INT4 weights will do."""
        if os.environ.get("SITS_FUSED_FP8", "1") == "0":
            return "switched off by SITS_FUSED_FP8=0"
        if model.device.type != "cuda":
            return "needs a CUDA device"
        for weight in (weight for layer in model.layers for weight in layer.linears()):
            fp8 = isinstance(weight, Fp8Weight) and weight.kernel != "reference"
            if not fp8 and not (int4_prompts and int4_fp8.layout_of(weight) is not None):
                also = ", or INT4 in a layout that can be made FP8" if int4_prompts else ""
                return f"not all linears of a layer are FP8 on tensor cores{also}"
        return None

    def accepts(self, tokens: int) -> bool:
        """Whether a step of so many tokens goes this way."""
        return tokens >= max(self.least_tokens, 1)

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, kv_cache: KVCache, logits_rows: torch.Tensor
    ) -> torch.Tensor:
        """The same function as ``LlamaModel.forward``."""
        model, config, ops = self.model, self.model.config, self.model.ops
        eps, scale = config.norm_eps, config.scale
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        last = len(model.layers) - 1
        residual = torch.nn.functional.embedding(token_ids, model.embedding)
        q, q_scale, residual = add_rms_norm_fp8(residual, None, model.layers[0].input_norm, eps)
        for index, layer in enumerate(model.layers):
            k_cache, v_cache = kv_cache[index]
            qkv = self._attention_input(q, q_scale, layer.qkv_proj)
            mixed = ops.rope_attention(
                qkv, model.cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, scale, config.window(index)
            ).flatten(1)
            if index == last:
                # Past the last KV write only the wanted rows matter: a prompt needs one of them.
                mixed = mixed.index_select(0, logits_rows)
                residual = residual.index_select(0, logits_rows)
            attended = self._row_input(*quantize_fp8(mixed), layer.o_proj)
            q, q_scale, residual = add_rms_norm_fp8(attended, residual, layer.post_norm, eps)
            gate_up = self._row_input(q, q_scale, layer.gate_up_proj, above=SCALING_PAYS)
            activated = quantize_fp8(gate_up, silu=True)
            if index < last:
                hidden = self._row_input(*activated, layer.down_proj)
                q, q_scale, residual = add_rms_norm_fp8(hidden, residual, model.layers[index + 1].input_norm, eps)
        last_hidden = _multiply(*activated, model.layers[last].down_proj, model.dtype)
        normed, _ = ops.add_rms_norm(last_hidden, residual, model.final_norm, eps)
        return model.lm_head.apply(normed).float()

    def _attention_input(self, q: torch.Tensor, scale: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
        """q[T, in] e4m3 with scale[T] -> [T, out] in the model's dtype, as attention takes it."""
        if not SCALING_PAYS < q.shape[0] <= MOST_UNSCALED:
            return _multiply(q, scale, weight, self.model.dtype)
        return scale_sums(unscaled_product(q, scale, *_fp8_form(weight)), weight.bias, self.model.dtype)

    def _row_input(
        self, q: torch.Tensor, scale: torch.Tensor, weight: LinearWeight, above: int = 0
    ) -> torch.Tensor | Sums:
        """The same as the row kernels take it: in a dtype of its own, and as sums for more than ``above`` tokens.

        They know no bias: a product with one is finished here.
        """
        if weight.bias is not None:
            return _multiply(q, scale, weight, self.model.dtype)
        if not above < q.shape[0] <= MOST_UNSCALED:
            return _multiply(q, scale, weight, self._product_dtype)
        return unscaled_product(q, scale, *_fp8_form(weight))


def _fp8_form(weight: LinearWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [N, K], scales [N]); of an INT4 weight in a scratch that the next call overwrites."""
    if isinstance(weight, Fp8Weight):
        return weight.codes.q, weight.codes.scale
    return int4_fp8.fp8_form(int4_fp8.layout_of(weight))


def _multiply(q: torch.Tensor, scale: torch.Tensor, weight: LinearWeight, dtype: torch.dtype) -> torch.Tensor:
    """q[T, in] e4m3 with scale[T] -> [T, out] of ``dtype``, scaled."""
    product = scaled_product(q, scale, *_fp8_form(weight), dtype)
    return product if weight.bias is None else product.add_(weight.bias)
