"""Milliseconds of a step from its traffic: the roofline (a limit) and a prediction with fitted efficiencies.

Per operator: memory time = bytes / (read peak x share reached), compute time = FLOPs / (dense rate x share
reached), combined by a p-norm (p -> infinity is the roofline's max, p = 1 no overlap at all); plus a fixed cost per
kernel launch, per step and per sequence. The shares and costs are :class:`Efficiency`, fitted on measured results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from sits.traffic.cards import HardwareCard
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import COMMUNICATION, KV, OTHER, WEIGHTS, Operator, Step, operators
from sits.traffic.precision import math_of

_WIDE_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What kernels reach of a card. Shares are of the achievable read bandwidth and of the dense math rate.

    Keys of the two dictionaries: int4, fp8, int8, bf16, fp32 (weight families), attention, elementwise. ``int4_wide``
    is INT4 in steps of many tokens, where engines widen the weights first and then run at the FP8 or BF16 rate.
    """

    bandwidth: dict[str, float] = field(
        default_factory=lambda: {"int4": 0.85, "fp8": 0.9, "int8": 0.85, "bf16": 0.95, "fp32": 0.95,
                                 "attention": 0.75, "elementwise": 1.5}
    )  # fmt: skip
    compute: dict[str, float] = field(
        default_factory=lambda: {"int4": 0.55, "int4_wide": 0.55, "fp8": 0.6, "int8": 0.55, "bf16": 0.7, "fp32": 0.7,
                                 "attention": 0.45, "elementwise": 0.1}
    )  # fmt: skip
    overlap: float = 2.0  # p of the p-norm between memory and compute time
    matrix_launch_us: float = 3.0  # ramp and tail of one weight-reading kernel
    other_launch_us: float = 2.0
    step_us: float = 300.0  # once per step: scheduling, input copies, sampling, output copy
    sequence_us: float = 2.0  # per sequence and step
    eager_launch_us: float = 6.0  # what one launch costs without graphs, where the host is the limit
    origin: str = "default shares (not fitted)"

    def of_bandwidth(self, family: str) -> float:
        return self.bandwidth.get(family, 0.8)

    def of_compute(self, family: str) -> float:
        return self.compute.get(family, 0.5)


# A CPU has no launch ramp but pays interpreter and dispatch time per operator.
CPU_EFFICIENCY = Efficiency(
    bandwidth={
        "int4": 0.45,
        "int8": 0.5,
        "fp8": 0.3,
        "bf16": 0.8,
        "fp32": 0.85,
        "attention": 0.5,
        "elementwise": 2.0,
    },
    compute={
        "int4": 0.15,
        "int4_wide": 0.3,
        "int8": 0.2,
        "fp8": 0.1,
        "bf16": 0.35,
        "fp32": 0.5,
        "attention": 0.2,
        "elementwise": 0.1,
    },
    matrix_launch_us=15.0,
    other_launch_us=15.0,
    step_us=500.0,
    sequence_us=30.0,
    eager_launch_us=15.0,
    origin="CPU shares seen with PyTorch operators (not fitted)",
)


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator's times in ms: its two roofline sides, the limit (their max) and the prediction."""

    operator: Operator
    memory_ms: float
    compute_ms: float
    limit_ms: float
    predicted_ms: float  # without launches
    launch_ms: float


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """A step's limit and prediction in ms, with the operators behind them. ``step_ms`` includes everything."""

    rows: tuple[OperatorTime, ...]
    fixed_ms: float
    origin: str

    @property
    def limit_ms(self) -> float:
        """Nothing on this card can be faster with this traffic: every operator at its roofline, no overheads."""
        return sum(row.limit_ms for row in self.rows)

    @property
    def launch_ms(self) -> float:
        return sum(row.launch_ms for row in self.rows)

    @property
    def step_ms(self) -> float:
        return sum(row.predicted_ms for row in self.rows) + self.launch_ms + self.fixed_ms

    def pieces(self) -> dict[str, float]:
        """The waterfall's pieces in ms; they sum to ``step_ms``.

        Weights and KV are memory time; compute is what an operator takes beyond its memory time.
        """
        found = {"weights": 0.0, "kv": 0.0, "compute": 0.0, "activations": 0.0, "communication": 0.0}
        for row in self.rows:
            memory = min(row.memory_ms, row.predicted_ms)
            key = {WEIGHTS: "weights", KV: "kv", OTHER: "activations", COMMUNICATION: "communication"}
            found[key[row.operator.kind]] += memory
            found["compute"] += row.predicted_ms - memory
        found["launches"] = self.launch_ms
        found["step_overhead"] = self.fixed_ms
        return found

    def limit_pieces(self) -> dict[str, float]:
        """The same pieces at the roofline; they sum to ``limit_ms``."""
        found = {"weights": 0.0, "kv": 0.0, "compute": 0.0, "activations": 0.0, "communication": 0.0}
        for row in self.rows:
            key = {WEIGHTS: "weights", KV: "kv", OTHER: "activations", COMMUNICATION: "communication"}
            if row.operator.kind == COMMUNICATION:
                found["communication"] += row.limit_ms
                continue
            share = row.operator.bytes and min(1.0, row.limit_ms and self._memory_share(row))
            found[key[row.operator.kind]] += row.limit_ms * share
            found["compute"] += row.limit_ms * (1 - share)
        return found

    @staticmethod
    def _memory_share(row: OperatorTime) -> float:
        return min(1.0, row.memory_ms / row.limit_ms) if row.limit_ms else 0.0


def roofline_ms(operator: Operator, card: HardwareCard) -> tuple[float, float]:
    """(memory ms, compute ms) of one operator at the card's achievable read bandwidth and dense math rate."""
    memory = operator.bytes / (card.achievable_gbps * 1e9) * 1e3
    family = "bf16" if operator.family in ("attention", "elementwise") else math_of(operator.family)
    compute = operator.flops / card.math_rate("fp32" if operator.family == "elementwise" else family) * 1e3
    return memory, compute


def predict_step(
    shape: ModelShape, step: Step, card: HardwareCard, efficiency: Efficiency | None = None, graphs: bool = True
) -> StepPrediction:
    """Predict one step on one card (or ``step.devices`` of them, tensor parallel).

    ``graphs=False`` adds the host's launch cost: without graphs a small model waits for Python.
    """
    chosen = efficiency or default_efficiency(card)
    found = []
    for operator in operators(shape, step):
        memory, compute = roofline_ms(operator, card)
        slow_memory = memory / chosen.of_bandwidth(operator.family)
        wide = operator.family == "int4" and step.tokens >= _WIDE_TOKENS
        slow_compute = compute / chosen.of_compute("int4_wide" if wide else operator.family)
        predicted = _norm(slow_memory, slow_compute, chosen.overlap)
        each = chosen.matrix_launch_us if operator.kind == WEIGHTS else chosen.other_launch_us
        launch = operator.launches * each / 1e3
        if not graphs:  # the host issues launches one by one; what the device does meanwhile is hidden
            launch = max(launch, operator.launches * chosen.eager_launch_us / 1e3 - predicted)
        found.append(OperatorTime(operator, slow_memory, slow_compute, max(memory, compute), predicted, launch))
    if step.devices > 1:
        found.append(_all_reduce(shape, step, card))
    fixed = (chosen.step_us + chosen.sequence_us * step.rows) / 1e3
    return StepPrediction(tuple(found), fixed, chosen.origin)


def _norm(first: float, second: float, p: float) -> float:
    """p-norm of two non-negative numbers, stable for large p."""
    largest, smallest = max(first, second), min(first, second)
    if largest == 0.0:
        return 0.0
    return largest * (1.0 + (smallest / largest) ** p) ** (1.0 / p)


def _all_reduce(shape: ModelShape, step: Step, card: HardwareCard) -> OperatorTime:
    """Two all-reduces a layer of [tokens, hidden]: 2 (n-1)/n of the data over the link, plus a latency each."""
    count = 2 * shape.layers
    data = step.tokens * shape.hidden_size * step.precision.activation_bytes
    moved = 2.0 * (step.devices - 1) / step.devices * data
    if card.link_gbps <= 0:
        each = math.inf
    else:
        each = moved / (card.link_gbps * 1e9 * 0.75) * 1e3 + card.link_latency_us / 1e3
    operator = Operator("all_reduce", COMMUNICATION, "communication", launches=count)
    total = count * each
    return OperatorTime(operator, total, 0.0, total, total, 0.0)


def default_efficiency(card: HardwareCard) -> Efficiency:
    """Fitted parameters where they exist (see :mod:`sits.traffic.fitted`), else plain defaults."""
    from sits.traffic.fitted import efficiency_for

    return efficiency_for(card)


def scaled(efficiency: Efficiency, origin: str) -> Efficiency:
    """The same shares under another origin text (a transfer to another card)."""
    return replace(efficiency, origin=origin)
