"""One thread per host that asks every collector for its samples on a deadline loop.

No drift: the next deadline is the last one plus the period; deadlines missed are skipped and counted. The thread's
own CPU time is measured and bounded: above ``cpu_limit`` of a core per device, all periods double. Energy is read
by :meth:`Sampler.energy` at the exact borders of a phase, not by the loop.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable

from sits.telemetry.samples import BandwidthSample, Collector, Reading

_ALL: weakref.WeakSet[Sampler] = weakref.WeakSet()


class Sampler:
    """Runs collectors that ``probe`` found usable. Start it around the load only: allocation is not the workload.

    ``periods`` overrides a collector's period in seconds; never below its floor.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        periods: dict[str, float] | None = None,
        cpu_limit: float = 0.01,
        devices: int = 1,
        keep: int = 200_000,
    ) -> None:
        self.collectors = list(collectors)
        self._periods = {
            collector.name: max(
                collector.min_interval_s, (periods or {}).get(collector.name, collector.default_interval_s)
            )
            for collector in self.collectors
        }
        self._limit = cpu_limit * max(1, devices)
        self._samples: deque[BandwidthSample] = deque(maxlen=keep)
        self._readings: deque[Reading] = deque(maxlen=keep)
        self._stop = threading.Event()
        self._lock = threading.Lock()  # vendor libraries ask for one reader at a time
        self._thread: threading.Thread | None = None
        self.missed_deadlines = 0
        self.cpu_seconds = 0.0
        self.wall_seconds = 0.0
        self.slowed = 0  # times all periods were doubled to stay within the CPU bound
        _ALL.add(self)

    def start(self) -> None:
        """Open the collectors and begin. A second call does nothing."""
        if self._thread is not None:
            return
        for collector in list(self.collectors):
            try:
                collector.open()
            except Exception as error:
                self._note(collector, error)
                self.collectors.remove(collector)
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="sits-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close the collectors. Safe to call twice."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(timeout=10)
        self._thread = None
        for collector in self.collectors:
            with self._lock:
                try:
                    collector.close()
                except Exception as error:
                    self._note(collector, error)

    def energy(self) -> dict[str, float]:
        """Energy counters of every device now, in joules: call at a phase's first and last moment."""
        found: dict[str, float] = {}
        for collector in self.collectors:
            with self._lock:
                try:
                    found.update(collector.energy_joules())
                except Exception as error:
                    self._note(collector, error)
        return found

    def samples(self, since_ns: int = 0, until_ns: int | None = None) -> list[BandwidthSample]:
        """Bandwidth windows that ended in the interval (wall-clock ns)."""
        end = until_ns if until_ns is not None else 1 << 63
        return [sample for sample in list(self._samples) if since_ns <= sample.timestamp_ns <= end]

    def readings(self, metric: str | None = None) -> list[Reading]:
        return [reading for reading in list(self._readings) if metric is None or reading.metric == metric]

    def dropped(self) -> dict[str, int]:
        """Windows thrown away, ``collector:reason`` -> count."""
        return {
            f"{collector.name}:{reason}": count
            for collector in self.collectors
            for reason, count in collector.dropped.items()
        }

    @property
    def cpu_share(self) -> float | None:
        """Share of one core this thread used, or None when it did not run long enough to say."""
        return self.cpu_seconds / self.wall_seconds if self.wall_seconds >= 0.05 else None

    @staticmethod
    def _note(collector: Collector, error: Exception) -> None:
        reason = f"error: {error}"[:120]
        collector.dropped[reason] = collector.dropped.get(reason, 0) + 1

    def _run(self) -> None:
        begin_cpu, begin = time.thread_time(), time.monotonic()
        due = {collector.name: begin + self._periods[collector.name] for collector in self.collectors}
        while due:
            wait = min(due.values()) - time.monotonic()
            if self._stop.wait(max(0.0, wait)):
                break
            now = time.monotonic()
            for collector in self.collectors:
                if due[collector.name] > now:
                    continue
                self._sample(collector)
                period = self._periods[collector.name]
                due[collector.name] += period
                behind = time.monotonic() - due[collector.name]
                if behind > 0:
                    skipped = int(behind / period) + 1
                    self.missed_deadlines += skipped
                    due[collector.name] += skipped * period
            self.cpu_seconds, self.wall_seconds = time.thread_time() - begin_cpu, time.monotonic() - begin
            if self.wall_seconds > 2 * 2**self.slowed and self.cpu_seconds / self.wall_seconds > self._limit:
                self.slowed += 1
                self._periods = {name: 2 * period for name, period in self._periods.items()}
        self.cpu_seconds, self.wall_seconds = time.thread_time() - begin_cpu, time.monotonic() - begin

    def _sample(self, collector: Collector) -> None:
        with self._lock:
            try:
                found = collector.sample()
            except Exception as error:  # the protocol forbids it; a vendor library may still surprise
                self._note(collector, error)
                return
        for item in found:
            if isinstance(item, BandwidthSample):
                self._samples.append(item)
            else:
                self._readings.append(item)

    def _after_fork(self) -> None:
        self._thread = None  # threads do not survive a fork: the child starts its own if it wants one
        self._lock = threading.Lock()
        self._stop = threading.Event()


def _reset_after_fork() -> None:
    for sampler in list(_ALL):
        sampler._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
