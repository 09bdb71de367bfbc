"""True shapes of well-known models, for synthetic weights: timing and memory are real, text is not."""

from __future__ import annotations

import dataclasses

from sits.errors import InputError
from sits.models.config import ModelConfig, RopeConfig

PRESETS: dict[str, ModelConfig] = {
    "llama-3-8b": ModelConfig(
        architecture="llama",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=128256,
        max_position=8192,
        norm_eps=1e-5,
        rope=RopeConfig(theta=500000.0),
        bos_id=128000,
        eos_ids=(128001, 128009),
    ),
    "llama-3-70b": ModelConfig(
        architecture="llama",
        layers=80,
        hidden_size=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        intermediate_size=28672,
        vocab_size=128256,
        max_position=8192,
        norm_eps=1e-5,
        rope=RopeConfig(theta=500000.0),
        bos_id=128000,
        eos_ids=(128001, 128009),
    ),
    "qwen2-7b": ModelConfig(
        architecture="qwen2",
        layers=28,
        hidden_size=3584,
        heads=28,
        kv_heads=4,
        head_dim=128,
        intermediate_size=18944,
        vocab_size=152064,
        max_position=131072,
        norm_eps=1e-6,
        rope=RopeConfig(theta=1000000.0),
        qkv_bias=True,
        eos_ids=(151643, 151645),
    ),
    "phi-3-mini": ModelConfig(
        architecture="phi3",
        layers=32,
        hidden_size=3072,
        heads=32,
        kv_heads=32,
        head_dim=96,
        intermediate_size=8192,
        vocab_size=32064,
        max_position=4096,
        norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
        windows=(2047,) * 32,
        bos_id=1,
        eos_ids=(32000, 32007),
    ),
    "mistral-7b": ModelConfig(
        architecture="mistral",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=32768,
        max_position=32768,
        norm_eps=1e-5,
        rope=RopeConfig(theta=1000000.0),
        bos_id=1,
        eos_ids=(2,),
    ),
    "smollm2-135m": ModelConfig(
        architecture="llama",
        layers=30,
        hidden_size=576,
        heads=9,
        kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=49152,
        max_position=8192,
        norm_eps=1e-5,
        rope=RopeConfig(theta=100000.0),
        tied_embeddings=True,
        bos_id=1,
        eos_ids=(2,),
    ),
    "tiny": ModelConfig(
        architecture="llama",
        layers=2,
        hidden_size=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=512,
        max_position=2048,
        norm_eps=1e-5,
        rope=RopeConfig(theta=10000.0),
    ),
}


def preset_config(name: str, layers: int | None = None) -> ModelConfig:
    """A preset, cut to its first ``layers`` layers if given (``full_layers`` then keeps the true depth)."""
    config = PRESETS.get(name)
    if config is None:
        raise InputError(f"there is no synthetic preset {name!r}", f"Presets: {', '.join(PRESETS)}")
    if layers is None or layers == config.layers:
        return config
    if not 1 <= layers <= config.layers:
        raise InputError(f"synthetic:{name} has {config.layers} layers, layers={layers} is not between 1 and that")
    return dataclasses.replace(
        config, layers=layers, windows=config.windows[:layers], full_layers=config.full_layers or config.layers
    )
