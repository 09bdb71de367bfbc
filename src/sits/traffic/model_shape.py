"""What the traffic model needs to know of a decoder: its shapes and nothing else.

Built from the ``card`` of a result (``ModelShape.from_card``) or taken from a preset of well-known models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sits.errors import InputError

_REQUIRED = ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in elements. A mixture of experts sets ``experts`` and the two expert widths.

    ``windows`` holds the sliding window of each layer in tokens (0 = full attention); () means none anywhere.
    """

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0  # intermediate size of one routed expert
    shared_expert_size: int = 0
    windows: tuple[int, ...] = ()
    max_position: int = 0
    weights: str | None = None  # precision the card states, e.g. "int4-g32"
    kv_dtype: str | None = None
    activations: str | None = None

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            if getattr(self, name) < 1:
                raise InputError(f"model card: {name} is {getattr(self, name)}, it must be at least 1")
        if self.experts and not (1 <= self.experts_per_token <= self.experts and self.expert_size >= 1):
            raise InputError("model card: experts need experts_per_token between 1 and experts, and an expert size")
        if self.windows and len(self.windows) != self.layers:
            raise InputError(f"model card: {len(self.windows)} windows for {self.layers} layers")

    @classmethod
    def from_card(cls, card: Mapping[str, Any], name: str = "") -> ModelShape:
        """From the plain values of ``ModelConfig.card()`` or a Hugging Face ``config.json``.

        Raises ``InputError`` that names every missing field.
        """
        value = {ours: _first(card, names) for ours, names in _NAMES.items()}
        if value["head_dim"] is None and value["hidden_size"] and value["heads"]:
            value["head_dim"] = int(value["hidden_size"]) // int(value["heads"])
        if value["kv_heads"] is None:
            value["kv_heads"] = value["heads"]
        missing = [key for key in _REQUIRED if value[key] is None]
        if missing:
            raise InputError(
                f"the model card lacks {', '.join(missing)}", "explain needs the shapes; give --model instead"
            )
        try:
            numbers = {key: int(value[key]) for key in _INTEGERS if value[key] is not None}
            windows = tuple(int(size) for size in card.get("windows") or ())
        except (TypeError, ValueError) as error:
            raise InputError(f"model card: a size is not a number ({error})") from None
        return cls(
            name=name or str(card.get("name") or card.get("model") or card.get("architecture") or "model"),
            tied_embeddings=bool(value["tied_embeddings"]),
            windows=windows,
            weights=_text(card, "precision", "weights", "weight_precision"),
            kv_dtype=_text(card, "kv_dtype", "kv_cache_dtype", "kv"),
            activations=_text(card, "dtype", "torch_dtype", "activation_dtype"),
            **numbers,
        )

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def kv_elements_per_token(self) -> int:
        """K and V elements one token adds over all layers."""
        return 2 * self.layers * self.kv_size

    def attention_parameters(self) -> int:
        """Of one layer: the QKV and output projections."""
        return self.hidden_size * (self.q_size + 2 * self.kv_size) + self.q_size * self.hidden_size

    def dense_mlp_parameters(self) -> int:
        """Of one layer: what every token passes (the shared expert of a mixture)."""
        width = self.shared_expert_size if self.experts else self.intermediate_size
        return 3 * self.hidden_size * width

    def expert_parameters(self) -> int:
        """Of one routed expert of one layer."""
        return 3 * self.hidden_size * self.expert_size

    def linear_parameters(self) -> int:
        """All projections of all layers, every expert included; no embeddings, no head."""
        per_layer = (
            self.attention_parameters() + self.dense_mlp_parameters() + self.experts * self.expert_parameters()
        )
        return self.layers * per_layer + self.layers * self.experts * self.hidden_size

    def parameters(self) -> int:
        """Total, a tied head counted once; norms and biases left out (under 0.1%)."""
        head = self.vocab_size * self.hidden_size
        return self.linear_parameters() + head * (1 if self.tied_embeddings else 2)

    def expected_experts(self, tokens: float) -> float:
        """Routed experts at least one of ``tokens`` tokens picks: E * (1 - (1 - k/E)^T), uniform routing."""
        if not self.experts or tokens <= 0:
            return 0.0
        share = self.experts_per_token / self.experts
        return float(self.experts) * (1.0 - (1.0 - share) ** tokens)


_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("layers", "num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "heads": ("heads", "num_attention_heads", "n_head"),
    "kv_heads": ("kv_heads", "num_key_value_heads"),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size", "ffn_size"),
    "vocab_size": ("vocab_size",),
    "max_position": ("max_position", "max_position_embeddings"),
    "tied_embeddings": ("tied_embeddings", "tie_word_embeddings"),
    "experts": ("experts", "num_experts", "num_local_experts"),
    "experts_per_token": ("experts_per_token", "num_experts_per_tok"),
    "expert_size": ("expert_size", "moe_intermediate_size", "expert_intermediate_size"),
    "shared_expert_size": ("shared_expert_size", "shared_expert_intermediate_size"),
}
_INTEGERS = tuple(name for name in _NAMES if name != "tied_embeddings")


def _first(card: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((card[name] for name in names if card.get(name) is not None), None)


def _text(card: Mapping[str, Any], *names: str) -> str | None:
    value = next((card[name] for name in names if isinstance(card.get(name), str)), None)
    return value.removeprefix("torch.") if value else None


def _llama(name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any) -> ModelShape:
    more.setdefault("head_dim", hidden // heads)
    return ModelShape(name, layers, hidden, heads, kv, intermediate_size=ffn, vocab_size=vocab, **more)


# Shapes as published in the models' own config.json.
PRESETS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, max_position=8192),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256, max_position=8192),
        _llama("qwen2-7b", 28, 3584, 28, 4, 18944, 152064, max_position=131072),
        _llama(
            "qwen2-57b-a14b", 28, 3584, 28, 4, 18944, 151936, max_position=131072,
            experts=64, experts_per_token=8, expert_size=2560, shared_expert_size=20480,
        ),
        _llama("phi-3-mini", 32, 3072, 32, 32, 8192, 32064, max_position=4096, windows=(2047,) * 32),
        _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32768, max_position=32768),
        _llama("smollm2-135m", 30, 576, 9, 3, 1536, 49152, max_position=8192, tied_embeddings=True),
    )
}  # fmt: skip

_SHORT = {"llama3-8b": "llama-3-8b", "llama3-70b": "llama-3-70b", "ll8": "llama-3-8b", "ll70": "llama-3-70b",
          "qwen2-57b": "qwen2-57b-a14b", "qw57": "qwen2-57b-a14b", "smollm2": "smollm2-135m",
          "phi3-mini": "phi-3-mini"}  # fmt: skip


def get_shape(name: str) -> ModelShape:
    """A preset by name. Raises ``InputError`` that lists the known ones."""
    key = name.strip().lower().removeprefix("synthetic:")
    key = _SHORT.get(key, key)
    if key not in PRESETS:
        raise InputError(f"no shapes known for model {name!r}", "Known: " + ", ".join(PRESETS))
    return PRESETS[key]


def cut_to(shape: ModelShape, layers: int) -> ModelShape:
    """The same model with fewer layers."""
    return dataclasses.replace(shape, layers=layers, windows=shape.windows[:layers])
