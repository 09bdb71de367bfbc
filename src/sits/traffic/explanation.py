"""What ``sits explain`` found, as plain data: the text, the JSON and the HTML are three views of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LABELS = {
    "weights": "reading weights",
    "kv": "reading and writing KV",
    "compute": "compute beyond memory time",
    "activations": "activations, norms, sampling",
    "communication": "communication between devices",
    "launches": "launch gaps (device waits for the next kernel)",
    "step_overhead": "per-step overhead (input copies, sampling, host)",
    "host_to_device": "copies between host and device",
    "prepare": "host to device (preparing the step's inputs)",
    "scheduler": "scheduler (between steps)",
    "prefill_interference": "others' prefill in the same step",
    "preemption": "preemption (waiting and recomputing)",
    "not_scheduled": "running but left out of the step",
    "queue": "waiting in queue",
    "execution": "engine step (not split: no shapes or no card)",
    "prefill": "own prefill",
    "delivery": "delivery to the client",
    "unattributed": "not attributed",
    "client_gap": "time per token as the client saw it",
}


@dataclass(slots=True)
class Piece:
    """One bar of the waterfall, in ms per output token. ``limit_ms`` is this piece at the roofline, 0 for waiting."""

    name: str
    measured_ms: float | None
    limit_ms: float
    predicted_ms: float | None = None
    how: str = ""  # event log | regression | model | profiler | by subtraction
    detail: str = ""
    title: str = ""  # in place of the usual label

    @property
    def label(self) -> str:
        return self.title or LABELS.get(self.name, self.name)

    @property
    def gap_ms(self) -> float:
        """How much above its limit: what could be won at most."""
        value = self.measured_ms if self.measured_ms is not None else self.predicted_ms
        return (value or 0.0) - self.limit_ms

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "label": self.label, "gap_ms": self.gap_ms}


@dataclass(slots=True)
class Waterfall:
    """Pieces that sum to ``total_ms`` (``residual_share`` says how well), the largest gap first."""

    total_ms: float
    pieces: list[Piece]
    tokens: int = 0
    limit_ms: float | None = None
    predicted_ms: float | None = None

    @property
    def residual_share(self) -> float:
        """|sum of the pieces - total| / total."""
        values = [piece.measured_ms if piece.measured_ms is not None else piece.predicted_ms for piece in self.pieces]
        return abs(sum(value or 0.0 for value in values) - self.total_ms) / self.total_ms if self.total_ms else 0.0

    def sort(self) -> Waterfall:
        self.pieces.sort(key=lambda piece: -piece.gap_ms)
        return self

    def to_dict(self) -> dict[str, Any]:
        return {
            "total_ms": self.total_ms,
            "limit_ms": self.limit_ms,
            "predicted_ms": self.predicted_ms,
            "tokens": self.tokens,
            "residual_share": self.residual_share,
            "pieces": [piece.to_dict() for piece in self.pieces],
        }


@dataclass(slots=True)
class Finding:
    """One named cause with its evidence; ``cost_ms`` per output token ranks it. ``code`` is stable for tools."""

    code: str
    title: str
    evidence: str
    cost_ms: float
    advice: str = ""


@dataclass(slots=True)
class SlowRequest:
    """A request (or token) behind a percentile: how long, in which phase most, and why."""

    request_id: str
    value_ms: float
    phase: str
    cause: str
    phases_ms: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Tail:
    """A percentile and what is behind it. ``shares`` splits the mean time of the slow ones by phase."""

    metric: str  # ttft | itl
    p50_ms: float
    p99_ms: float
    count: int
    shares: dict[str, float] = field(default_factory=dict)
    slow: list[SlowRequest] = field(default_factory=list)


@dataclass(slots=True)
class Switch:
    """One thing to change, with its predicted effect and price. ``gain`` is the share of step time won."""

    code: str
    what: str
    how: str  # the flag or setting
    before_ms: float
    after_ms: float
    price: str
    throughput_gain: float = 0.0
    basis: str = "predicted"
    achieved_ms: float | None = None  # from a second run with the switch on

    @property
    def gain(self) -> float:
        return 1.0 - self.after_ms / self.before_ms if self.before_ms > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain}


@dataclass(slots=True)
class Explanation:
    """Everything, for one load point of a run or for a predicted step."""

    kind: str  # measured | predicted
    subject: str
    model: str
    card: str
    step: dict[str, Any] = field(default_factory=dict)  # batch, context, precision, devices
    waterfall: Waterfall | None = None
    findings: list[Finding] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    capacity: list[dict[str, Any]] = field(default_factory=list)
    scorecard: dict[str, Any] = field(default_factory=dict)
    roofline: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, Any] = field(default_factory=dict)  # mabu.required, mabu.observed, traffic_efficiency
    notes: list[str] = field(default_factory=list)
    basis: str = ""  # where the efficiencies come from

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "explanation": 1,
            "kind": self.kind,
            "subject": self.subject,
            "model": self.model,
            "card": self.card,
            "step": self.step,
            "waterfall": self.waterfall.to_dict() if self.waterfall else None,
            "findings": [asdict(finding) for finding in self.findings],
            "tails": [asdict(tail) for tail in self.tails],
            "switches": [switch.to_dict() for switch in self.switches],
            "capacity": self.capacity,
            "scorecard": self.scorecard,
            "roofline": self.roofline,
            "ratios": self.ratios,
            "notes": self.notes,
            "basis": self.basis,
        }
