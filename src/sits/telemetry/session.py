"""What ``sits bench`` wraps around a load point: start, stop, and the figures of the window between.

Knows collectors and the three ratios; knows nothing of a model: the caller says how many bytes the steps of the
window required (see :mod:`sits.traffic`), or points at an engine that exports its own estimate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sits.telemetry.discover import probe_all, usable
from sits.telemetry.sampler import Sampler
from sits.telemetry.samples import BandwidthSample, Capability, Collector, Peak, Reading

_IDLE_SHARE = 0.01
_LAG_NS = (
    150_000_000  # GPM is late by up to this (measured): what follows a change of load still shows the one before
)
_FEW_WINDOWS = 3
FLAG_ABOVE = 1.10  # required over observed beyond this: cache reuse, or the required estimate is wrong


@dataclass(slots=True)
class TelemetryWindow:
    """Everything measured between ``start`` and ``stop``. A figure that could not be measured is None."""

    started_ns: int = 0
    duration_s: float = 0.0
    samples: list[BandwidthSample] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    energy_j: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    cpu_share: float | None = None
    missed_deadlines: int = 0
    reasons: dict[str, str] = field(default_factory=dict)  # metric -> why it is absent

    def observed_by_device(self) -> dict[str, float]:
        """Time-weighted mean of the windows of each device that worked; idle neighbours are left out.

        A device counts as working from 1% of its peak. Where none does, all are kept: then the run was idle.
        """
        means: dict[str, float] = {}
        for device in {sample.device for sample in self.samples}:
            rows = [s for s in self.samples if s.device == device and s.observed_gbps is not None]
            length = sum(row.window_ns for row in rows)
            if length > 0:
                moved = sum((row.observed_gbps or 0.0) * row.window_ns for row in rows)
                means[device] = moved / length
        working = {d: rate for d, rate in means.items() if rate >= _IDLE_SHARE * self._peak_of(d)}
        return working or means

    def _peak_of(self, device: str) -> float:
        peak = self.peaks.get(device)
        return (peak.theoretical_gbps if peak else None) or 0.0

    def observed_gbps(self) -> float | None:
        """Sum over the devices that worked (one model may span several)."""
        means = self.observed_by_device()
        return sum(means.values()) if means else None

    def peak_gbps(self) -> float | None:
        """Sum of theoretical peaks of the devices that worked, else of all devices; None when one is unknown."""
        active = set(self.observed_by_device()) or set(self.peaks)
        values = [self._peak_of(device) for device in active]
        return sum(values) if values and all(values) else None

    def energy_total_j(self) -> float | None:
        return sum(self.energy_j.values()) if self.energy_j else None

    def figures(
        self, required_bytes: float | None, output_tokens: int, required_source: str = "model_card",
        peak_gbps: float | None = None,
    ) -> dict[str, dict[str, Any]]:  # fmt: skip
        """``mabu.required``, ``mabu.observed``, ``traffic_efficiency``, ``energy_per_token`` as Figure fields.

        ``required_bytes`` is what all steps of the window had to move. ``peak_gbps`` stands in where no device
        told one (a measured CPU peak). Each value is null with a reason when a part is missing.
        """
        peak = self.peak_gbps() or peak_gbps
        observed = self.observed_gbps()
        count = len(self.samples)
        required = required_bytes / self.duration_s / 1e9 if required_bytes and self.duration_s > 0 else None
        no_peak = None if peak else "peak bandwidth of this device is unknown"
        no_required = None if required is not None else "no model card with shapes and no engine estimate"
        no_observed = None if observed is not None else self.reasons.get("dram_bandwidth", "no bandwidth counter")
        energy = self.energy_total_j()
        return {
            "mabu.required": _figure(
                required / peak if required is not None and peak else None, "ratio", output_tokens,
                no_required or no_peak,
            ),
            "mabu.observed": _figure(
                observed / peak if observed is not None and peak else None, "ratio", count, no_observed or no_peak
            ),
            "traffic_efficiency": _figure(
                required / observed if required is not None and observed else None, "ratio", count,
                no_required or no_observed,
            ),
            "energy_per_token": _figure(
                energy / output_tokens if energy is not None and output_tokens > 0 else None, "J/token",
                output_tokens,
                self.reasons.get("energy", "no energy counter") if energy is None else "no output tokens",
            ),
        }  # fmt: skip

    def notes(self, required_bytes: float | None) -> list[str]:
        """Warnings a reader of the three ratios needs."""
        found = [peak.warning for peak in self.peaks.values() if peak.warning]
        observed = self.observed_gbps()
        if required_bytes and self.duration_s > 0:
            required = required_bytes / self.duration_s / 1e9
            if observed and required / observed > FLAG_ABOVE:
                found.append(
                    f"required traffic is {required / observed:.2f}x the observed: "
                    "cache reuse, or the estimate is wrong"
                )
            limits = [peak.achievable_gbps for peak in self.peaks.values() if peak.achievable_gbps]
            if limits and required > sum(limits) * 1.02:
                found.append("required traffic is above what a plain read achieves here: the estimate is wrong")
        for reason, count in self.dropped.items():
            found.append(f"{count} telemetry windows dropped ({reason})")
        return found

    def rows(self, required_bytes: float | None = None, source: str = "model_card") -> list[dict[str, Any]]:
        """The samples for ``LoadPoint.bandwidth``; the required rate is the window's mean."""
        devices = max(1, len({sample.device for sample in self.samples}))
        mean = None
        if required_bytes and self.duration_s > 0:
            mean = required_bytes / self.duration_s / 1e9 / devices
        return [sample.with_required(mean, source).to_dict() for sample in self.samples]


def settled(samples: list[BandwidthSample], started_ns: int) -> list[BandwidthSample]:
    """Without the windows that began before the counter could show this load; all of them where there are few."""
    found = []
    for device in sorted({sample.device for sample in samples}):
        rows = [sample for sample in samples if sample.device == device]
        late = [row for row in rows if row.timestamp_ns - row.window_ns >= started_ns + _LAG_NS]
        found += late if len(rows) > _FEW_WINDOWS else rows
    return sorted(found, key=lambda sample: sample.timestamp_ns)


def timed_rows(rows: list[dict[str, Any]], started_ns: int) -> list[dict[str, Any]]:
    """Sample rows with ``s``: seconds since a monotonic moment, for plots beside other timelines."""
    wall = time.time_ns() - time.monotonic_ns()
    return [{**row, "s": round((row["timestamp_ns"] - wall - started_ns) / 1e9, 3)} for row in rows]


def _figure(value: float | None, unit: str, count: int, reason: str | None) -> dict[str, Any]:
    return {
        "value": value,
        "unit": unit,
        "n": count if value is not None else 0,
        "reason": None if value is not None else reason,
    }


class TelemetrySession:
    """``start`` and ``stop`` around each load point. Works, and says so, where nothing is readable."""

    def __init__(self, collectors: list[Collector] | None = None, periods: dict[str, float] | None = None) -> None:
        self._given = collectors
        self._periods = periods
        self._probed: list[tuple[Collector, list[Capability]]] | None = None
        self._sampler: Sampler | None = None
        self._energy: dict[str, float] = {}
        self._wall_ns = 0
        self._begin_ns = 0

    def capabilities(self) -> list[Capability]:
        if self._probed is None:
            self._probed = probe_all(self._given)
        return [row for _, rows in self._probed for row in rows]

    def start(self) -> None:
        """Begin a window: energy is read last, so that only the load lies between the two readings."""
        self.capabilities()
        assert self._probed is not None
        chosen = usable(self._probed)
        devices = len({row.device for _, rows in self._probed for row in rows if row.status != "unavailable"})
        self._sampler = Sampler(chosen, self._periods, devices=devices)
        self._sampler.start()
        self._energy = self._sampler.energy()
        self._wall_ns, self._begin_ns = time.time_ns(), time.monotonic_ns()

    def samples(self) -> list[BandwidthSample]:
        """Windows so far of the running session."""
        return self._sampler.samples(self._wall_ns) if self._sampler is not None else []

    def stop(self) -> TelemetryWindow:
        """End the window. Energy is read first. Returns an empty window when ``start`` was never called."""
        if self._sampler is None:
            return TelemetryWindow(reasons=self._reasons())
        duration = (time.monotonic_ns() - self._begin_ns) / 1e9
        energy = self._sampler.energy()
        ended = time.time_ns()
        peaks = {}
        for collector in self._sampler.collectors:
            peaks.update(collector.peaks())
        reasons = self._reasons()
        sampler, self._sampler = self._sampler, None
        sampler.stop()
        self._probed = None  # closed collectors are probed afresh for the next window
        window = TelemetryWindow(
            started_ns=self._wall_ns,
            duration_s=duration,
            samples=settled(sampler.samples(self._wall_ns, ended), self._wall_ns),
            readings=sampler.readings(),
            energy_j={d: energy[d] - before for d, before in self._energy.items() if energy.get(d, -1) >= before},
            peaks=peaks,
            dropped=sampler.dropped(),
            cpu_share=sampler.cpu_share,
            missed_deadlines=sampler.missed_deadlines,
        )
        if not window.samples:
            window.reasons["dram_bandwidth"] = reasons.get("dram_bandwidth", "no window was long enough")
        if not window.energy_j:
            window.reasons["energy"] = reasons.get("energy", "no energy counter")
        return window

    def _reasons(self) -> dict[str, str]:
        """Why a metric is absent: the refusal of a device that is here, else the CPU's, else the first."""
        found: dict[str, tuple[int, str]] = {}
        for row in self.capabilities():
            rank = 2 if row.device not in ("-", "cpu") else 1 if row.collector == "cpu" else 0
            if row.status == "unavailable" and row.reason and rank >= found.get(row.metric, (-1, ""))[0]:
                found[row.metric] = (rank, row.reason) if rank or row.metric not in found else found[row.metric]
        return {metric: reason for metric, (_, reason) in found.items()}
