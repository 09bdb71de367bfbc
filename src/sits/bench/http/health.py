"""Could the load generator keep up? Loop lag and CPU through a load level, and the verdict from them.

The limits: schedule slip p99 over 5% of the gated latency, CPU over 80% of a core in any of our processes, or more
events than 80% of what the calibration reached. Beyond them the figures describe the client, not the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sits.bench.timer import PreciseTimer
from sits.spec.records import RequestRecord
from sits.spec.result import ClientHealth, LoadPoint

SLIP_SHARE = 0.05
CPU_LIMIT = 0.8
SLIP_FLOOR_MS = 0.25  # below this a slip is the resolution of the machine, whatever the latency
LAG_PERIOD_NS = 10_000_000


class LoopWatch:
    """Wakes every 10 ms and notes how late it was, and the CPU time used so far. Costs about 0.2% of a core."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.late: list[int] = []
        self.cpu: list[float] = []
        self._timer: PreciseTimer | None = None
        self._due = 0

    def start(self) -> None:
        """Begin anew on the running loop."""
        self.stop()
        self.at, self.late, self.cpu = [], [], []
        self._timer = PreciseTimer()
        self._due = time.monotonic_ns() + LAG_PERIOD_NS
        self._timer.call_at_ns(self._due, self._tick)

    def stop(self) -> None:
        """End; what was noted stays."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _tick(self) -> None:
        now = time.monotonic_ns()
        self.at.append(now)
        self.late.append(now - self._due)
        self.cpu.append(time.process_time())
        self._due = max(self._due + LAG_PERIOD_NS, now + LAG_PERIOD_NS // 2)
        if self._timer is not None:
            self._timer.call_at_ns(self._due, self._tick)

    def within(self, start_ns: int, end_ns: int) -> tuple[float | None, float | None]:
        """(lag p99 in ms, CPU as a share of one core) between two times; None without samples."""
        at = np.asarray(self.at)
        inside = np.flatnonzero((at >= start_ns) & (at <= end_ns))
        if len(inside) < 2:
            return None, None
        first, last = inside[0], inside[-1]
        late = np.asarray(self.late)[inside] / 1e6
        share = (self.cpu[last] - self.cpu[first]) / ((self.at[last] - self.at[first]) / 1e9)
        return float(np.percentile(late, 99)), float(share)


class HealthObserver:
    """An observer of load levels that fills :class:`ClientHealth` and declares a client-bound level invalid.

    ``workers(start_ns, end_ns)`` gives ``(lag p99 ms, CPU share)`` of each worker process, where there are any.
    """

    def __init__(
        self,
        calibration: dict[str, float] | None = None,
        slo: dict[str, float] | None = None,
        workers: Callable[[int, int], list[tuple[float | None, float | None]]] | None = None,
        cores: int = 1,
    ):
        self.calibration = calibration or {}
        self.slo = slo or {}
        self._workers = workers
        self._cores = cores
        self._watch = LoopWatch()

    async def begin(self, load: Any) -> None:
        """Start watching."""
        self._watch.start()

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        """Judge the level."""
        self._watch.stop()
        end_ns = point.started_ns + round(point.duration_s * 1e9)
        processes = [self._watch.within(point.started_ns, end_ns)]
        if self._workers is not None:
            with contextlib.suppress(asyncio.CancelledError):
                processes += self._workers(point.started_ns, end_ns)
        lags = [lag for lag, _ in processes if lag is not None]
        shares = [share for _, share in processes if share is not None]
        health = point.client
        health.calibration = self.calibration
        health.loop_lag_p99_ms = max(lags, default=None)
        health.cpu_share = max(shares, default=None)
        reasons = self._reasons(point, health)
        health.verdict = "client_bound" if reasons else ("ok" if shares else "unknown")
        if reasons:
            health.advice = "; ".join(reasons) + f". {self._remedy(health)}"
            point.notes.append(f"INVALID, the load generator was the bottleneck: {health.advice}")
            if point.status in ("complete", "not_converged"):
                point.status = "invalid"

    def _reasons(self, point: LoadPoint, health: ClientHealth) -> list[str]:
        reasons = []
        gated = gated_latency_ms(point, self.slo)
        slip = health.slip_p99_ms
        if slip is not None and gated is not None and slip > max(SLIP_FLOOR_MS, SLIP_SHARE * gated):
            reasons.append(f"requests left up to {slip:.2f} ms late (p99), over 5% of {gated:.2f} ms")
        if health.cpu_share is not None and health.cpu_share > CPU_LIMIT:
            reasons.append(f"a load generator process used {health.cpu_share:.0%} of a core")
        capacity = self.calibration.get("max_events_per_s")
        figure = point.metrics.get("throughput.output")
        if capacity and figure is not None and figure.value is not None:
            events = figure.value / max(1.0, point.tokens_per_chunk)
            if self._workers is None and events > CPU_LIMIT * capacity:
                reasons.append(
                    f"{events:.0f} events/s, over 80% of the {capacity:.0f} this machine's client can take"
                )
        return reasons

    def _remedy(self, health: ClientHealth) -> str:
        if health.cpu_share is not None and health.cpu_share < 0.5:
            return "The client itself was mostly idle: something else uses this machine's cores"
        if self._workers is None and self._cores > 1:
            return "Use more client processes (target.workers in a scenario), or lower the load"
        return "Lower the load, or run the load generator on a machine of its own with more cores"


def gated_latency_ms(point: LoadPoint, slo: dict[str, float]) -> float | None:
    """The latency that is judged: the tightest TTFT or end-to-end objective, else the measured TTFT p99."""
    wanted = [slo[name] for name in ("ttft_ms", "e2e_ms") if name in slo]
    figure = point.metrics.get("ttft.p99")
    if wanted:
        return min(wanted)
    return figure.value if figure is not None else None
