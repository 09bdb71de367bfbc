"""The highest load that still meets an SLO: doubling until it fails, then bisection, with intervals.

A load level passes when the share of requests that meet every objective reaches the wanted attainment. The verdict
uses the Wilson interval of that share: clearly above passes, clearly below fails; in between the level is measured
once more, twice as long, and then decided by its value and marked as uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sits.bench.arrivals import Arrivals
from sits.bench.load import Load
from sits.errors import InputError
from sits.spec.result import LoadPoint

Verdict = Literal["pass", "fail", "unsure"]
MOST_PROBES = 40


@dataclass(slots=True)
class Search:
    """Gives one load level after another; :meth:`next_load` gets the points measured so far.

    ``over``: ``rate`` (open loop, ``arrival`` process) or ``concurrency`` (closed loop, whole numbers).
    ``precision`` is the relative width of the bracket at which the search ends.
    """

    over: Literal["rate", "concurrency"]
    slo: dict[str, float]
    start: float = 1.0
    limit: float = 4096.0
    precision: float = 0.05
    attainment: float = 0.99
    arrival: str = "poisson"
    requests: int | None = None
    duration_s: float | None = None
    passed: float | None = None
    failed: float | None = None
    _level: float = 0.0
    _repeated: bool = False
    _seen: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    ended: str = ""

    def __post_init__(self) -> None:
        if not self.slo:
            raise InputError("a search needs objectives", "Give --slo, for example --slo ttft=500ms,itl=50ms")
        if not 0 < self.start <= self.limit:
            raise InputError(f"a search must start above zero and below its limit, not {self.start}..{self.limit}")
        if not 0 < self.attainment < 1 or not 0.001 <= self.precision <= 1:
            raise InputError("attainment must be between 0 and 1, precision between 0.001 and 1")

    def next_load(self, points: Sequence[LoadPoint]) -> Load | None:
        """The next level to measure, or None when the search is over."""
        if self.ended:
            return None
        if len(points) == self._seen:
            self._level = self.start
            return self._load(self._level)
        self._seen = len(points)
        point = points[-1]
        if point.status in ("invalid", "partial"):
            self.ended = "client_bound" if point.status == "invalid" else "stopped"
            self._note(point, "unsure")
            return None
        verdict = judge(point, self.attainment)
        self._note(point, verdict)
        if verdict == "unsure" and not self._repeated:
            self._repeated = True
            return self._load(self._level, longer=True)
        self._repeated = False
        share = _attainment(point)
        if verdict == "pass" or (verdict == "unsure" and share is not None and share >= self.attainment):
            self.passed = max(self._level, self.passed or 0.0)
        else:
            self.failed = min(self._level, self.failed if self.failed is not None else math.inf)
        return self._advance()

    def summary(self) -> dict[str, Any]:
        """For ``Result.search``: the answer, its bracket and every step."""
        return {
            "over": self.over,
            "objectives": self.slo,
            "attainment": self.attainment,
            "precision": self.precision,
            "highest_passing": self.passed,
            "lowest_failing": self.failed,
            "outcome": self.ended or "stopped",
            "steps": self.steps,
        }

    def _advance(self) -> Load | None:
        if len(self.steps) >= MOST_PROBES:
            self.ended = "too_many_steps"
            return None
        if self.failed is None:
            assert self.passed is not None
            if self.passed >= self.limit:
                self.ended = "never_failed"
                return None
            return self._go(min(self.limit, 2 * self.passed))
        low, high = self.passed, self.failed
        if low is None:
            floor = 1.0 if self.over == "concurrency" else self.start / 64
            if high <= floor:
                self.ended = "never_passed"
                return None
            return self._go(max(floor, high / 2))
        close = high - low <= 1 if self.over == "concurrency" else False
        if close or high / low <= 1 + self.precision:
            self.ended = "found"
            return None
        return self._go(math.sqrt(low * high))

    def _go(self, level: float) -> Load:
        if self.over == "concurrency":
            level = float(round(level))
            if self.passed is not None and self.failed is not None:
                level = min(max(level, self.passed + 1), self.failed - 1)
        self._level = level
        return self._load(level)

    def _load(self, level: float, longer: bool = False) -> Load:
        factor = 2 if longer else 1
        requests = self.requests * factor if self.requests is not None else None
        seconds = self.duration_s * factor if self.duration_s is not None else None
        if self.over == "concurrency":
            self._level = max(1.0, float(round(level)))
            return Load("closed", concurrency=int(self._level), requests=requests, duration_s=seconds)
        arrivals = Arrivals.parse(self.arrival, level)
        return Load("open", arrivals=arrivals, requests=requests, duration_s=seconds)

    def _note(self, point: LoadPoint, verdict: Verdict) -> None:
        figure = point.metrics.get("attainment")
        row: dict[str, Any] = {"level": self._level, "point": point.index, "verdict": verdict}
        if figure is not None:
            row |= {"attainment": figure.value, "ci_low": figure.ci_low, "ci_high": figure.ci_high, "n": figure.n}
        self.steps.append(row)


def judge(point: LoadPoint, attainment: float) -> Verdict:
    """Does a level meet the objectives often enough? No data fails."""
    figure = point.metrics.get("attainment")
    if figure is None or figure.value is None or point.status == "no_data":
        return "fail"
    if figure.ci_low is not None and figure.ci_low >= attainment:
        return "pass"
    if figure.ci_high is not None and figure.ci_high < attainment:
        return "fail"
    # All requests passing is as good as this sample can be: asking for more would never end for small samples.
    return "pass" if figure.value >= 1.0 and figure.n >= 20 else "unsure"


def _attainment(point: LoadPoint) -> float | None:
    figure = point.metrics.get("attainment")
    return figure.value if figure is not None else None
