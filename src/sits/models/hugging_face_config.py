"""A Hugging Face ``config.json`` as a ``ModelConfig``: both generations of rotary keys, windows, stop tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sits.errors import InputError
from sits.models.config import ARCHITECTURES, ModelConfig, RopeConfig, unsupported_architecture


def read_config(folder: Path) -> ModelConfig:
    """Read ``config.json`` (and the stop tokens of ``generation_config.json``) of a Hugging Face folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} has no config.json", "Give a folder saved by save_pretrained, or a .gguf file")
    return from_hugging_face(_read_json(path), _read_json(folder / "generation_config.json", optional=True))


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} does not hold a JSON object")
    return value


def from_hugging_face(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """ModelConfig of a parsed ``config.json``; both the old ``rope_theta``/``rope_scaling`` and the new
    ``rope_parameters`` keys are read."""
    names = config.get("architectures") or []
    name = names[0] if names else config.get("model_type", "unknown")
    family = ARCHITECTURES.get(name)
    if family is None and not names and name in ARCHITECTURES.values():
        family = name
    if family is None:
        raise unsupported_architecture(str(name))
    if config.get("hidden_act", "silu") != "silu":
        raise InputError(f"activation {config['hidden_act']!r} is not supported", "Supported: silu")

    def integer(key: str, default: int | None = None) -> int:
        value = config.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"config.json: {key} is {value!r}, an integer is needed")
        return value

    layers, hidden, heads = integer("num_hidden_layers"), integer("hidden_size"), integer("num_attention_heads")
    head_dim = integer("head_dim", hidden // max(heads, 1))
    rope_keys = _rope_keys(config)
    eos = (generation or {}).get("eos_token_id", config.get("eos_token_id"))
    eos_ids = tuple(eos) if isinstance(eos, list) else (() if eos is None else (int(eos),))
    return ModelConfig(
        architecture=family,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=integer("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=integer("intermediate_size"),
        vocab_size=integer("vocab_size"),
        max_position=integer("max_position_embeddings", 2048),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(rope_keys, integer("max_position_embeddings", 2048), config),
        rotary_dim=int(head_dim * float(rope_keys.get("partial_rotary_factor", 1.0))),
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
        output_bias=family == "llama" and bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        windows=_windows(config, family, layers),
        bos_id=config.get("bos_token_id"),
        eos_ids=eos_ids,
    )


def _rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """One flat dictionary from either generation of keys."""
    merged: dict[str, Any] = dict(config.get("rope_scaling") or {})
    merged.update(config.get("rope_parameters") or {})
    merged.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if config.get("partial_rotary_factor") is not None:
        merged.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    return merged


def _rope(keys: Mapping[str, Any], max_position: int, config: Mapping[str, Any]) -> RopeConfig:
    kind = str(keys.get("rope_type") or keys.get("type") or "default")
    kind = {"su": "longrope"}.get(kind, kind)
    if kind == "mrope":
        raise InputError("multimodal rotary embedding (mrope) is not supported", "Give the text-only model")
    original = keys.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or 0
    factor = keys.get("factor")
    if factor is None:
        factor = max_position / original if original else 1.0
    attention_factor = keys.get("attention_factor")
    return RopeConfig(
        theta=float(keys["rope_theta"]),
        kind=kind,
        factor=float(factor),
        original_max_position=int(original or max_position),
        low_freq_factor=float(keys.get("low_freq_factor", 1.0)),
        high_freq_factor=float(keys.get("high_freq_factor", 4.0)),
        beta_fast=float(keys.get("beta_fast") or 32.0),
        beta_slow=float(keys.get("beta_slow") or 1.0),
        attention_factor=None if attention_factor is None else float(attention_factor),
        truncate=bool(keys.get("truncate", True)),
        short_factor=tuple(keys.get("short_factor") or ()),
        long_factor=tuple(keys.get("long_factor") or ()),
    )


def _windows(config: Mapping[str, Any], family: str, layers: int) -> tuple[int, ...]:
    # transformers' Mistral has a window of 4096 when the key is absent, and none when it is null.
    window = config.get("sliding_window", 4096 if family == "mistral" else None)
    if window is None or family == "llama" or (family == "qwen2" and not config.get("use_sliding_window", False)):
        return ()
    kinds = config.get("layer_types")
    if kinds is None and family == "qwen2":
        first = int(config.get("max_window_layers", layers))
        kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    if kinds is None:
        return (int(window),) * layers
    windows = tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds[:layers])
    return windows if any(windows) else ()
