"""How hard to press: one load level, and the options of a measurement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sits.bench.arrivals import Arrivals
from sits.errors import InputError
from sits.spec.convergence import ROUNDS, TIMING_RELATIVE


@dataclass(frozen=True, slots=True)
class Load:
    """One load level. Closed loop: ``concurrency`` callers that wait for their answer. Open loop: ``arrivals``.

    Trace: ``offsets`` (seconds after the start, ascending), one for each request. It ends after ``requests`` or
    after ``duration_s`` seconds; a trace ends with its last offset at the latest.
    """

    mode: Literal["closed", "open", "trace"]
    concurrency: int | None = None
    arrivals: Arrivals | None = None
    offsets: Sequence[float] | None = None
    requests: int | None = None
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if self.mode == "closed" and (self.concurrency is None or self.concurrency < 1):
            raise InputError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.mode == "open" and self.arrivals is None:
            raise InputError("an open loop needs an arrival process", "Give --rate")
        if self.mode == "trace" and not self.offsets:
            raise InputError("the trace holds no request")
        if self.requests is not None and self.requests < 1:
            raise InputError(f"the number of requests must be at least 1, not {self.requests}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise InputError(f"the duration must be above zero, not {self.duration_s}")
        if self.mode != "trace" and self.requests is None and self.duration_s is None:
            raise InputError("how long to measure is not given", "Give --requests or --duration")

    @property
    def label(self) -> str:
        """Short name for progress and tables."""
        if self.mode == "closed":
            return f"concurrency {self.concurrency}"
        if self.mode == "open" and self.arrivals is not None:
            return f"{self.arrivals.rate:g} req/s {self.arrivals.process}"
        return "trace"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Protocol of a measurement.

    The measured window is split into ``rounds``; while the last ones disagree by more than ``tolerance`` further
    rounds are added up to ``max_rounds``, and the window moves along: it always holds the last ``rounds``.
    """

    tolerance: float = TIMING_RELATIVE
    rounds: int = ROUNDS
    max_rounds: int = 2 * ROUNDS
    ramp: bool = True  # closed loop: a first, unmeasured wave that puts the callers out of step
    fill: bool = True  # closed loop: keep the load up until the last measured request has ended
    drain_s: float = 120.0  # how long measured requests in flight may take after sending has ended
    give_up_after: int = 100  # consecutive failures that end a point (at least 5 per caller)


@dataclass(slots=True)
class LiveState:
    """Counters that the progress display reads a few times a second; the hot path only adds to them."""

    label: str = ""
    stage: str = "start"  # warm-up | ramp | measure | drain
    started_ns: int = 0
    total: int | None = None  # requests, where known
    duration_s: float | None = None
    sent: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    in_flight: int = 0
    rounds: list[float] = field(default_factory=list)

    def begin(self, load: Load, total: int | None) -> None:
        """Start over for another load level."""
        self.label, self.total, self.duration_s = load.label, total, load.duration_s
        self.started_ns = time.monotonic_ns()
        self.sent = self.done = self.failed = self.tokens = self.in_flight = 0
