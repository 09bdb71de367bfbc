"""From a weight source to a model: one tensor at a time, straight into its fused, final place.

At no moment do two copies of the model exist: a fused linear is allocated in its final dtype on its device, filled
part by part from the memory-mapped file, and packed (which frees the original) before the next one is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sits.models.config import ModelConfig
from sits.models.llama import DecoderLayer, DecoderWeights, LlamaModel
from sits.models.loading.source import WeightSource
from sits.quant.linear import DenseWeight, LinearWeight


@dataclass(frozen=True)
class LinearSpec:
    """One linear of the model and the checkpoint tensors it is made of, in row order.

    ``name`` is the model's (``layers.0.qkv_proj``); ``parts`` are checkpoint prefixes without ``.weight``
    (``model.layers.0.self_attn.q_proj``) with their row counts.
    """

    name: str
    parts: tuple[tuple[str, int], ...]
    in_features: int
    has_bias: bool = False

    @property
    def out_features(self) -> int:
        """Rows of the fused matrix."""
        return sum(rows for _, rows in self.parts)


# Turns one linear of a source into a weight object, or returns None to leave it dense.
LinearFormat = Callable[[LinearSpec, WeightSource, torch.dtype, torch.device], LinearWeight | None]


def read_dense(
    spec: LinearSpec, source: WeightSource, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(weight[out, in], bias[out] or None) of a linear, its parts joined by rows."""
    weight = torch.empty(spec.out_features, spec.in_features, dtype=dtype, device=device)
    bias = torch.empty(spec.out_features, dtype=dtype, device=device) if spec.has_bias else None
    first = 0
    for prefix, rows in spec.parts:
        source.read_checked(f"{prefix}.weight", weight[first : first + rows])
        if bias is not None:
            source.read_checked(f"{prefix}.bias", bias[first : first + rows])
        first += rows
    return weight, bias


def layer_specs(config: ModelConfig, index: int, source: WeightSource) -> dict[str, LinearSpec]:
    """The four fused linears of a layer; sources that store q/k/v or gate/up fused are read as they are."""
    prefix, name = f"model.layers.{index}", f"layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv: tuple[tuple[str, int], ...] = (
        (f"{attention}.q_proj", config.q_size),
        (f"{attention}.k_proj", config.kv_size),
        (f"{attention}.v_proj", config.kv_size),
    )
    gate_up: tuple[tuple[str, int], ...] = (
        (f"{mlp}.gate_proj", config.intermediate_size),
        (f"{mlp}.up_proj", config.intermediate_size),
    )
    if source.has(f"{attention}.qkv_proj.weight"):
        qkv = ((f"{attention}.qkv_proj", config.q_size + 2 * config.kv_size),)
    if source.has(f"{mlp}.gate_up_proj.weight"):
        gate_up = ((f"{mlp}.gate_up_proj", 2 * config.intermediate_size),)
    return {
        "qkv_proj": LinearSpec(f"{name}.qkv_proj", qkv, config.hidden_size, config.qkv_bias),
        "o_proj": LinearSpec(
            f"{name}.o_proj", ((f"{attention}.o_proj", config.hidden_size),), config.q_size, config.output_bias
        ),
        "gate_up_proj": LinearSpec(f"{name}.gate_up_proj", gate_up, config.hidden_size, config.mlp_bias),
        "down_proj": LinearSpec(
            f"{name}.down_proj",
            ((f"{mlp}.down_proj", config.hidden_size),),
            config.intermediate_size,
            config.mlp_bias,
        ),
    }


def build_model(
    config: ModelConfig,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_context: int = 0,
    linear_format: LinearFormat | None = None,
    on_first_layer: Callable[[LlamaModel], None] | None = None,
) -> LlamaModel:
    """Load every weight and return the model, ready to run. ``linear_format`` quantises linears while they load.

    ``on_first_layer`` gets a model of the first layer alone as soon as that is there (see ``first_layer_twice``).
    """

    def linear(spec: LinearSpec) -> LinearWeight:
        weight = linear_format(spec, source, dtype, device) if linear_format else None
        if weight is None:
            weight = DenseWeight(*read_dense(spec, source, dtype, device))
        weight.role, weight.activation_dtype = spec.name.rpartition(".")[2], dtype
        return weight.prepack(activation_dtype=dtype)

    def vector(name: str) -> torch.Tensor:
        out = torch.empty(config.hidden_size, dtype=dtype, device=device)
        source.read_checked(name, out)
        return out

    embedding = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
    source.read_checked("model.embed_tokens.weight", embedding)
    layers = []
    for index in range(config.layers):
        specs = layer_specs(config, index, source)
        prefix = f"model.layers.{index}"
        layers.append(
            DecoderLayer(
                input_norm=vector(f"{prefix}.input_layernorm.weight"),
                qkv_proj=linear(specs["qkv_proj"]),
                o_proj=linear(specs["o_proj"]),
                post_norm=vector(f"{prefix}.post_attention_layernorm.weight"),
                gate_up_proj=linear(specs["gate_up_proj"]),
                down_proj=linear(specs["down_proj"]),
            )
        )
        if index == 0 and on_first_layer is not None:
            on_first_layer(first_layer_twice(config, embedding, layers[0], dtype, max_context))
    head = LinearSpec("lm_head", (("lm_head", config.vocab_size),), config.hidden_size)
    if config.tied_embeddings:
        head = LinearSpec("lm_head", (("model.embed_tokens", config.vocab_size),), config.hidden_size)
        tied = linear_format(head, source, dtype, device) if linear_format else None
        lm_head = (tied or DenseWeight(embedding, shared=True)).prepack()
    else:
        lm_head = linear(head)
    weights = DecoderWeights(embedding, layers, vector("model.norm.weight"), lm_head)
    return LlamaModel(config, weights, dtype, max_context)


def first_layer_twice(
    config: ModelConfig, embedding: torch.Tensor, layer: DecoderLayer, dtype: torch.dtype, max_context: int
) -> LlamaModel:
    """A model of the first layer, before head and final norm are loaded: others of the same shape stand in.

    Twice, because the last layer of a prompt goes on with the wanted rows alone.
    """
    short = dataclasses.replace(config, layers=2, windows=config.windows[:1] * 2)
    head = DenseWeight(embedding, shared=True).prepack()
    return LlamaModel(short, DecoderWeights(embedding, [layer, layer], layer.input_norm, head), dtype, max_context)
