"""One decoder for Llama-2/3, Mistral, Qwen2, Phi-3 and SmolLM2: they differ by config, not by code.

Knows shapes, weights and operators; knows nothing of requests, devices' kernels or storage formats. Every layer
takes the fused path (add + norm in one operator; rotary + KV write in one), so a device speeds the model up by
registering operators, not by another model file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from sits.kernels import int4_fp8
from sits.kernels.attention_batch import AttentionBatch
from sits.kernels.ops import LayerOps
from sits.models.config import ModelConfig
from sits.models.fused_decode import FusedDecoder
from sits.models.fused_fp8 import FusedFp8
from sits.models.model import KVCache
from sits.models.rope import cos_sin_table
from sits.quant.linear import LinearWeight


@dataclass(slots=True)
class DecoderLayer:
    """Weights of one layer; the linears are fused (q, k, v rows; gate, up rows)."""

    input_norm: torch.Tensor  # [hidden]
    qkv_proj: LinearWeight
    o_proj: LinearWeight
    post_norm: torch.Tensor  # [hidden]
    gate_up_proj: LinearWeight
    down_proj: LinearWeight

    def linears(self) -> tuple[LinearWeight, ...]:
        """The four, in the order they run."""
        return self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj


@dataclass(slots=True)
class DecoderWeights:
    """Everything the loader hands over."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: list[DecoderLayer]
    final_norm: torch.Tensor  # [hidden]
    lm_head: LinearWeight


class LlamaModel:
    """A Llama-family decoder over a paged KV cache; see ``sits.models.model.CausalModel``.

    ``max_context`` bounds the positions that may be used (the rotary table is that long); it also decides between
    the short and long factors of Phi-3's longrope, as one cache cannot mix both.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype, max_context: int = 0):
        self.config = config
        self.dtype = dtype
        self.embedding = weights.embedding
        self.layers = weights.layers
        self.final_norm = weights.final_norm
        self.lm_head = weights.lm_head
        self.device = weights.embedding.device
        self.max_context = min(max_context or config.max_position, config.max_position)
        self.cos_sin = cos_sin_table(config, self.max_context, self.device)
        self.ops = LayerOps(self.device.type, dtype=dtype, head_dim=config.head_dim)
        self.int4_prompts_at_fp8 = int4_fp8.asked_for()

    @cached_property
    def fused_decoder(self) -> FusedDecoder | None:
        """The forward of decode steps, where the weights allow one. Found when it is first wanted, not at every
        change of a linear: each search goes through all layers."""
        return FusedDecoder.build(self)

    @cached_property
    def fused_fp8(self) -> FusedFp8 | None:
        """The forward in e4m3, where the weights allow one; found like ``fused_decoder``."""
        return FusedFp8.build(self, self.int4_prompts_at_fp8)

    def _forget_fused(self) -> None:
        for name in ("fused_decoder", "fused_fp8"):
            self.__dict__.pop(name, None)

    def linears(self) -> Iterator[tuple[str, LinearWeight]]:
        """(name, weight) of every linear, e.g. ``layers.3.qkv_proj``, ``lm_head``."""
        for index, layer in enumerate(self.layers):
            for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
                yield f"layers.{index}.{name}", getattr(layer, name)
        yield "lm_head", self.lm_head

    def set_linear(self, name: str, weight: LinearWeight) -> None:
        """Replace one linear (names as in ``linears``), e.g. by a quantised one."""
        if name == "lm_head":
            self.lm_head = weight
        else:
            _, index, attribute = name.split(".")
            setattr(self.layers[int(index)], attribute, weight)
        self._forget_fused()

    def set_int4_prefill(self, mode: str) -> str | None:
        """``fp8``: long prompts through INT4 weights in W8A8 arithmetic, faster but rounded; ``exact``: 16 bits.

        Returns why this model cannot do what was asked, ``None`` when it can.
        """
        if self.int4_prompts_at_fp8 != (mode == "fp8"):
            self.int4_prompts_at_fp8 = mode == "fp8"
            self._forget_fused()
        return FusedFp8.refusal(self, True) if self.int4_prompts_at_fp8 else None

    def weight_bytes(self) -> int:
        """Bytes of all weights as they lie in memory (a tied embedding that is also packed counts twice)."""
        norms = [self.final_norm] + [norm for layer in self.layers for norm in (layer.input_norm, layer.post_norm)]
        tables = [self.embedding, *norms]
        total = sum(table.numel() * table.element_size() for table in tables)
        for _, weight in self.linears():
            shared = getattr(weight, "weight", None) is self.embedding
            total += 0 if shared else weight.memory_bytes()
        return total

    def forward(
        self, token_ids: torch.Tensor, batch: AttentionBatch, kv_cache: KVCache, logits_rows: torch.Tensor
    ) -> torch.Tensor:
        """token_ids[T] int64 -> float32 logits[len(logits_rows), vocab]; see ``CausalModel.forward``.

        Callers run it under ``torch.inference_mode()``; it is left out here so that calibration can differentiate.
        """
        if self.fused_decoder is not None and self.fused_decoder.accepts(batch, logits_rows):
            return self.fused_decoder.forward(token_ids, batch, kv_cache)
        if self.fused_fp8 is not None and self.fused_fp8.accepts(token_ids.shape[0]):
            return self.fused_fp8.forward(token_ids, batch, kv_cache, logits_rows)
        config, ops = self.config, self.ops
        eps, scale = config.norm_eps, config.scale
        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        last = len(self.layers) - 1
        residual = torch.nn.functional.embedding(token_ids, self.embedding)  # [T, hidden]
        hidden = ops.rms_norm(residual, self.layers[0].input_norm, eps)
        for index, layer in enumerate(self.layers):
            k_cache, v_cache = kv_cache[index]
            qkv = layer.qkv_proj.apply(hidden)
            mixed = ops.rope_attention(
                qkv, self.cos_sin, k_cache, v_cache, batch, heads, kv_heads, head_dim, scale, config.window(index)
            ).flatten(1)
            if index == last:
                # Past the last KV write only the wanted rows matter: a prompt needs one of them.
                mixed = mixed.index_select(0, logits_rows)
                residual = residual.index_select(0, logits_rows)
            hidden, residual = ops.add_rms_norm(layer.o_proj.apply(mixed), residual, layer.post_norm, eps)
            hidden = layer.down_proj.apply(ops.silu_mul(layer.gate_up_proj.apply(hidden)))
            next_norm = self.final_norm if index == last else self.layers[index + 1].input_norm
            hidden, residual = ops.add_rms_norm(hidden, residual, next_norm, eps)
        return self.lm_head.apply(hidden).float()
