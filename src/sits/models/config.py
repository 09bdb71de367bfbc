"""The shape of a decoder, wherever it came from: the one description the model, the loader and the card share.

Sources: a Hugging Face ``config.json`` (here), GGUF metadata (``loading/gguf_source``), a preset (``presets``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sits.errors import InputError

# Hugging Face class -> family. The family decides what config.json leaves unsaid (biases, windows).
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Phi3ForCausalLM": "phi3",
}
ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope", "factors")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding. ``models/rope.py`` turns it into frequencies.

    ``factors`` (GGUF) divides each frequency by ``short_factor``; ``longrope`` (Phi-3) by ``short_factor`` up to
    ``original_max_position`` tokens of context and by ``long_factor`` for longer ones.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ROPE_KINDS:
            raise InputError(
                f"the model uses rotary scaling {self.kind!r}, which is not supported",
                f"Supported: {', '.join(ROPE_KINDS)}",
            )


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and constants of a Llama-family decoder. Sizes in elements, ``windows`` in tokens (0 = full)."""

    architecture: str  # llama, mistral, qwen2, phi3
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    norm_eps: float = 1e-5
    rope: RopeConfig = field(default_factory=RopeConfig)
    rotary_dim: int = 0  # 0 = all of head_dim
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    windows: tuple[int, ...] = ()  # sliding window of each layer; () = none anywhere
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    full_layers: int = 0  # depth before a synthetic model was cut; 0 = not cut

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "hidden_size",
            "heads",
            "kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_position",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"the model's {name} is {getattr(self, name)}, it must be at least 1")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly")
        if self.windows and len(self.windows) != self.layers:
            raise InputError(f"{len(self.windows)} sliding windows given for {self.layers} layers")

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads."""
        return self.kv_heads * self.head_dim

    @property
    def scale(self) -> float:
        """Softmax scale, 1 / sqrt(head_dim)."""
        return float(self.head_dim) ** -0.5

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that rotate."""
        return self.rotary_dim or self.head_dim

    @property
    def cut_layers(self) -> int:
        """Layers left out of a synthetic model, 0 for a whole one."""
        return self.full_layers - self.layers if self.full_layers else 0

    def window(self, layer: int) -> int:
        """Sliding window of a layer in tokens, 0 for full attention."""
        return self.windows[layer] if self.windows else 0

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out, in) of the fused linears of one layer."""
        return {
            "qkv_proj": (self.q_size + 2 * self.kv_size, self.hidden_size),
            "o_proj": (self.hidden_size, self.q_size),
            "gate_up_proj": (2 * self.intermediate_size, self.hidden_size),
            "down_proj": (self.hidden_size, self.intermediate_size),
        }

    def parameters(self) -> int:
        """Number of weights, counted as transformers does (a tied head once)."""
        biases = (
            self.qkv_bias * (self.q_size + 2 * self.kv_size)
            + self.output_bias * self.hidden_size
            + self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        )
        layer = sum(rows * columns for rows, columns in self.linear_shapes().values())
        layer += 2 * self.hidden_size + biases
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden_size

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes one token adds to the KV cache over all layers."""
        return 2 * self.layers * self.kv_size * element_bytes

    def card(self) -> dict[str, Any]:
        """What a result or a traffic model needs to know of the shapes (plain JSON values)."""
        card: dict[str, Any] = {
            "architecture": self.architecture,
            "parameters": self.parameters(),
            "layers": self.layers,
            "hidden_size": self.hidden_size,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "max_position": self.max_position,
            "tied_embeddings": self.tied_embeddings,
            "qkv_bias": self.qkv_bias,
        }
        if any(self.windows):
            card["windows"] = list(self.windows)
        if self.full_layers:
            card["full_layers"] = self.full_layers
            card["cut_layers"] = self.cut_layers
        return card


def unsupported_architecture(name: str) -> InputError:
    """The error for a model this engine cannot run."""
    return InputError(
        f"architecture {name!r} is not supported by the embedded engine",
        f"Supported: {', '.join(sorted(ARCHITECTURES))}",
    )


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
