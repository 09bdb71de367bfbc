"""Rounds of a measurement: when one is over, what it showed, and whether to go on."""

from __future__ import annotations

import math
import statistics

from sits.spec.convergence import settled, timing_convergence
from sits.spec.records import RequestRecord
from sits.spec.result import Convergence

_MOST_SAMPLES = 512  # the median of these moves by about 5% of the spread; sorting them takes 50 us


class Rounds:
    """Watches the median TPOT of each round (TTFT where answers are a single token), cheaply.

    Counts measured requests as they end. The caller closes a round by count (:meth:`due`) or by the clock.
    """

    def __init__(
        self, tolerance: float, rounds: int, max_rounds: int, requests: int | None, steady_load: bool = True
    ):
        self.tolerance, self.rounds, self.max_rounds = tolerance, rounds, max_rounds
        self.requests, self.steady_load = requests, steady_load
        self.values: list[float] = []
        self.ended = 0
        self._tpot: list[float] = []
        self._ttft: list[float] = []
        self._metric = "tpot.p50"

    @property
    def checkable(self) -> bool:
        """Is there a level to settle at, and can this many requests be split into rounds?"""
        return self.steady_load and (self.requests is None or self.requests >= self.rounds)

    @property
    def answers(self) -> int:
        """Answers seen in the present round, as far as they are counted."""
        return len(self._ttft)

    def quota(self) -> int:
        """Requests after which the present plan of rounds is complete (count mode)."""
        assert self.requests is not None
        return self._end_of(max(self.rounds, len(self.values) + 1))

    def due(self) -> bool:
        """Has the present round seen its share of requests (count mode)?"""
        return self.requests is not None and self.ended >= self._end_of(len(self.values) + 1)

    def _end_of(self, index: int) -> int:
        """Requests ended after ``index`` rounds; further rounds are as large as the planned ones."""
        assert self.requests is not None
        if not self.checkable:
            return self.requests
        if index <= self.rounds:
            return math.ceil(self.requests * index / self.rounds)
        return self.requests + (index - self.rounds) * math.ceil(self.requests / self.rounds)

    def add(self, record: RequestRecord) -> None:
        """Count a measured request that ended."""
        self.ended += 1
        times = record.chunk_times_ns
        if record.status != "ok" or not times or len(self._ttft) >= _MOST_SAMPLES:
            return
        self._ttft.append(times[0] / 1e6)
        if len(times) > 1:
            # Tokens after the first chunk; where the count is not known, chunks stand for tokens.
            tokens = record.output_tokens * (len(times) - 1) / len(times) if record.output_tokens else len(times) - 1
            self._tpot.append((times[-1] - times[0]) / 1e6 / max(1.0, tokens))

    def close(self) -> bool:
        """End the round. True when the measurement is complete: settled, or out of rounds, or nothing answers."""
        samples = self._tpot or self._ttft
        if not self._tpot and self._ttft:
            self._metric = "ttft.p50"
        self.values.append(statistics.median(samples) if samples else math.nan)
        self._tpot, self._ttft = [], []
        if not self.checkable:
            return True
        if len(self.values) < self.rounds:
            return False
        if all(math.isnan(value) for value in self.values):
            return True
        return len(self.values) >= self.max_rounds or settled(
            self.values, absolute=None, relative=self.tolerance, rounds=self.rounds
        )

    def verdict(self) -> Convergence:
        """The convergence entry of the result."""
        if not self.checkable:
            few = f"{self.requests} requests make no {self.rounds} rounds"
            detail = few if self.steady_load else "the load itself changes with time"
            return Convergence(metric=self._metric, status="not_checked", detail=detail)
        seen = [value for value in self.values if not math.isnan(value)]
        if len(seen) < len(self.values):
            return Convergence(
                metric=self._metric, status="not_converged", rounds=seen, detail="a round had no successful request"
            )
        return timing_convergence(self._metric, seen, self.tolerance, self.rounds)
