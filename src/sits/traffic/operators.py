"""Bytes and FLOPs of one engine step, operator by operator, from the model's shapes.

``bytes`` are what must cross the memory bus: each weight once, the KV of every running context once, the new KV,
and activations at operator borders. A matrix multiply is 2 FLOPs per weight and token. Under tensor parallelism
the figures are per device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sits.errors import InputError
from sits.traffic.model_shape import ModelShape
from sits.traffic.precision import StepPrecision, family_of

WEIGHTS = "weights"
KV = "kv"
OTHER = "other"
COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step: decoding sequences with their context lengths, and prefill chunks.

    ``prefill`` holds (new tokens, tokens already in the cache) per chunk. ``devices`` is the tensor-parallel size.
    """

    contexts: tuple[int, ...] = ()  # per decoding sequence: tokens its attention reads
    prefill: tuple[tuple[int, int], ...] = ()
    precision: StepPrecision = field(default_factory=StepPrecision)
    devices: int = 1
    fused: bool = False  # element-wise work folded into neighbours: fewer launches, fewer activations

    def __post_init__(self) -> None:
        if not self.contexts and not self.prefill:
            raise InputError("a step needs at least one decoding sequence or prefill chunk")
        if self.devices < 1 or min(self.contexts, default=0) < 0:
            raise InputError("a step needs at least one device and contexts of 0 or more tokens")
        if any(new < 1 or cached < 0 for new, cached in self.prefill):
            raise InputError("a prefill chunk has at least one new token and no negative cache")

    @classmethod
    def decode(cls, batch: int, context: int, precision: StepPrecision | None = None, devices: int = 1) -> Step:
        """``batch`` sequences, each with ``context`` tokens."""
        return cls((context,) * batch, (), precision or StepPrecision(), devices)

    @property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.contexts) + sum(new for new, _ in self.prefill)

    @property
    def rows(self) -> int:
        """Rows that need logits: one per decoding sequence and per chunk."""
        return len(self.contexts) + len(self.prefill)


@dataclass(frozen=True, slots=True)
class Operator:
    """Traffic of one operator over all its layers. ``launches`` is how many kernels it takes in total."""

    name: str
    kind: str  # weights | kv | other | communication
    family: str  # which fitted efficiency applies: int4, fp8, bf16, attention, elementwise
    weight_bytes: float = 0.0
    kv_read_bytes: float = 0.0
    kv_write_bytes: float = 0.0
    activation_bytes: float = 0.0
    flops: float = 0.0
    launches: float = 0.0

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


def operators(shape: ModelShape, step: Step) -> list[Operator]:
    """Every operator of one step, per device."""
    return [operator for operator in _generate(shape, step) if operator.bytes or operator.flops]


def _generate(shape: ModelShape, step: Step) -> Iterator[Operator]:
    share = 1.0 / step.devices
    precision, tokens, layers = step.precision, step.tokens, shape.layers
    a, w, family = precision.activation_bytes, precision.weight_bytes, precision.family
    hidden = shape.hidden_size

    def linear(name: str, inner: float, outer: float, launches: float = 1.0) -> Operator:
        """All layers of one projection; the wider side is the one split over devices."""
        parameters = inner * outer * share
        return Operator(
            name, WEIGHTS, family, layers * parameters * w,
            activation_bytes=layers * tokens * (inner + outer) * share * a,
            flops=layers * 2.0 * parameters * tokens, launches=layers * launches,
        )  # fmt: skip

    yield Operator("embedding", OTHER, "elementwise", activation_bytes=2.0 * tokens * hidden * a, launches=1)
    norm = 4.0 * hidden * a  # read the input and the residual, write both
    yield Operator(
        "norms", OTHER, "elementwise", activation_bytes=(0 if step.fused else 2 * layers + 1) * tokens * norm,
        launches=0 if step.fused else 2 * layers + 1,
    )  # fmt: skip
    yield linear("qkv_proj", hidden, shape.q_size + 2 * shape.kv_size)
    yield _rope(shape, step, share)
    yield _attention(shape, step, share)
    yield linear("o_proj", shape.q_size, hidden)
    if shape.experts:
        yield from _mixture(shape, step, share)
    else:
        yield linear("gate_up_proj", hidden, 2.0 * shape.intermediate_size)
        yield _activation(shape.intermediate_size, shape, step, share)
        yield linear("down_proj", shape.intermediate_size, hidden)
    head = shape.vocab_size * hidden * share
    yield Operator(
        "lm_head", WEIGHTS, family_of(precision.head or precision.activations), head * precision.head_bytes,
        activation_bytes=step.rows * (hidden * a + shape.vocab_size * share * 4.0),
        flops=2.0 * head * step.rows, launches=1,
    )  # fmt: skip
    yield Operator(
        "sampling", OTHER, "elementwise", activation_bytes=step.rows * shape.vocab_size * 4.0,
        flops=4.0 * step.rows * shape.vocab_size, launches=2,
    )  # fmt: skip


def _rope(shape: ModelShape, step: Step, share: float) -> Operator:
    """Rotate q and k, write k and v into the cache."""
    written = shape.kv_elements_per_token() * step.tokens * share
    width = (shape.q_size + 2 * shape.kv_size) * share
    moved = 0.0 if step.fused else shape.layers * step.tokens * 2.0 * width * step.precision.activation_bytes
    return Operator(
        "rope_kv_write", KV, "elementwise", kv_write_bytes=written * kv_element_bytes(shape, step.precision),
        activation_bytes=moved, launches=0 if step.fused else shape.layers,
    )  # fmt: skip


def kv_element_bytes(shape: ModelShape, precision: StepPrecision) -> float:
    """Bytes of one K or V element; below 16 bits a 16-bit scale per token and head rides along."""
    size = precision.kv_bytes
    return size + (2.0 / shape.head_dim if size < 2 else 0.0)


def kv_bytes_per_token(shape: ModelShape, precision: StepPrecision) -> float:
    """What one token of context occupies, all layers."""
    return shape.kv_elements_per_token() * kv_element_bytes(shape, precision)


def _attention(shape: ModelShape, step: Step, share: float) -> Operator:
    """Decode reads each context once (grouped queries share it); a chunk reads its cache and itself."""
    read = flops = 0.0
    windows: dict[int, int] = {}
    for layer in range(shape.layers):
        windows[shape.window(layer)] = windows.get(shape.window(layer), 0) + 1
    for window, layers in windows.items():
        limit = window or 1 << 62
        seen = sum(min(context + 1, limit) for context in step.contexts)  # the token itself included
        read += layers * 2.0 * shape.kv_size * sum(min(context, limit) for context in step.contexts)
        flops += layers * 4.0 * shape.q_size * seen
        for new, cached in step.prefill:
            read += layers * 2.0 * shape.kv_size * min(cached + new, limit + new)
            flops += layers * 4.0 * shape.q_size * _pairs(new, cached, limit)
    return Operator(
        "attention", KV, "attention", kv_read_bytes=read * kv_element_bytes(shape, step.precision) * share,
        activation_bytes=2.0 * shape.layers * step.tokens * shape.q_size * share * step.precision.activation_bytes,
        flops=flops * share, launches=shape.layers,
    )  # fmt: skip


def _pairs(new: int, cached: int, limit: int) -> float:
    """Query-key pairs of a causal chunk: query i sees min(cached + i + 1, window) keys."""
    full = max(0, min(new, limit - cached))  # queries that still see everything before them
    return full * cached + full * (full + 1) / 2 + (new - full) * float(min(limit, cached + new))


def _activation(width: float, shape: ModelShape, step: Step, share: float, tokens: float | None = None) -> Operator:
    """SiLU of the gate times up: reads 2 widths, writes one."""
    count = step.tokens if tokens is None else tokens
    moved = 0.0 if step.fused else shape.layers * count * 3.0 * width * share * step.precision.activation_bytes
    return Operator(
        "silu_mul", OTHER, "elementwise", activation_bytes=moved, flops=shape.layers * count * 5.0 * width * share,
        launches=0 if step.fused else shape.layers,
    )  # fmt: skip


def _mixture(shape: ModelShape, step: Step, share: float) -> Iterator[Operator]:
    """Router, the experts at least one token picks, the shared expert."""
    precision, tokens, layers = step.precision, step.tokens, shape.layers
    a = precision.activation_bytes
    router = shape.hidden_size * shape.experts
    yield Operator(
        "router", WEIGHTS, "bf16", layers * router * 2.0, flops=layers * 2.0 * router * tokens, launches=3 * layers
    )
    touched = shape.expected_experts(tokens) * share
    routed = tokens * shape.experts_per_token
    per_expert = float(shape.expert_parameters())
    yield Operator(
        "experts", WEIGHTS, precision.family, layers * touched * per_expert * precision.weight_bytes,
        activation_bytes=layers * routed * (2.0 * shape.hidden_size + 3.0 * shape.expert_size) * share * a,
        flops=layers * 2.0 * routed * per_expert * share, launches=4 * layers,
    )  # fmt: skip
    if shape.shared_expert_size:
        parameters = float(shape.dense_mlp_parameters()) * share
        yield Operator(
            "shared_expert", WEIGHTS, precision.family, layers * parameters * precision.weight_bytes,
            activation_bytes=layers * tokens * (2.0 * shape.hidden_size + 3.0 * shape.shared_expert_size) * share * a,
            flops=layers * 2.0 * parameters * tokens, launches=3 * layers,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """Totals of one step per device, in bytes and FLOPs."""

    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    flops: float
    launches: float

    @property
    def bytes(self) -> float:
        """Required bytes: the numerator of MABU (SPEC section 2)."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


def step_traffic(shape: ModelShape, step: Step) -> Traffic:
    """Sum over all operators."""
    rows = operators(shape, step)
    return Traffic(
        sum(row.weight_bytes for row in rows),
        sum(row.kv_read_bytes for row in rows),
        sum(row.kv_write_bytes for row in rows),
        sum(row.activation_bytes for row in rows),
        sum(row.flops for row in rows),
        sum(row.launches for row in rows),
    )


def memory_needed_gb(shape: ModelShape, precision: StepPrecision, tokens_in_cache: float, devices: int = 1) -> float:
    """GB per device: weights, embeddings at 16 bits, KV of all cached tokens, and 6% for workspace."""
    head = shape.vocab_size * shape.hidden_size
    weights = shape.linear_parameters() * precision.weight_bytes + head * precision.head_bytes
    weights += 0 if shape.tied_embeddings else head * 2.0
    cache = tokens_in_cache * kv_bytes_per_token(shape, precision)
    return (weights + cache) / devices / 1e9 * 1.06
