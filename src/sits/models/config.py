"""The shape of a decoder, wherever it came from: the one description the model, the loader and the card share.

Sources: a Hugging Face ``config.json`` (``hugging_face_config``), GGUF metadata (``loading/gguf_source``), a preset
(``presets``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
