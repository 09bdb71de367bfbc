"""A model of some layers of another, sharing its tensors: what costs the same in every layer is tried on a few."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sits.models.llama import DecoderWeights, LlamaModel


def excerpt(model: LlamaModel, layers: Sequence[int]) -> LlamaModel:
    """The model with only the given layers, in that order; embedding, head and final norm are the model's."""
    config = model.config
    short = dataclasses.replace(
        config,
        layers=len(layers),
        windows=tuple(config.window(index) for index in layers) if config.windows else (),
    )
    chosen = [model.layers[index] for index in layers]
    weights = DecoderWeights(model.embedding, chosen, model.final_norm, model.lm_head)
    part = LlamaModel(short, weights, model.dtype, model.max_context)
    part.int4_prompts_at_fp8 = model.int4_prompts_at_fp8  # it decides what a step needs of memory
    return part


def representative_layers(model: LlamaModel) -> list[int]:
    """One layer of every kind (formats of its linears, sliding window), and the last one, which ends differently."""
    kinds: dict[object, int] = {}
    for index, layer in enumerate(model.layers):
        kinds.setdefault((model.config.window(index), *((w.precision, w.kernel) for w in layer.linears())), index)
    return sorted({*kinds.values(), len(model.layers) - 1})
