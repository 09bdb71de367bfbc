"""What a collector hands over: bandwidth samples, plain readings and capabilities.

A platform without a counter yields no sample: its :class:`Capability` says why and how to fix it. Nothing in this
room ever turns "unknown" into 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

Status = Literal["ok", "derived", "estimated", "unavailable"]


@dataclass(frozen=True, slots=True)
class BandwidthSample:
    """DRAM traffic of one device over one window (SPEC section 2). Rates in GB/s (1e9 bytes per second).

    ``model_required_gbps`` is filled in by whoever knows the model; ``peak_gbps`` is the theoretical peak and
    ``achievable_gbps`` the best a plain read reached. ``status`` is about ``observed_gbps``.
    """

    timestamp_ns: int  # time.time_ns() at the end of the window: the join key with traces
    window_ns: int  # length, by the monotonic clock
    device: str
    observed_gbps: float | None = None
    model_required_gbps: float | None = None
    peak_gbps: float | None = None
    achievable_gbps: float | None = None
    observed_source: str = "none"  # nvml.gpm | dcgm.1005 | amdsmi.umc | dcmi.10 | resctrl.mbm | none
    required_source: str = "none"  # vllm.mfu | sglang.mfu | model_card | none
    peak_source: str = "none"  # driver | amdsmi | kfd | table:<card> | measured | none
    status: Status = "ok"
    reason: str | None = None

    def with_required(self, gbps: float | None, source: str) -> BandwidthSample:
        """The same window with what the model had to move filled in."""
        return replace(self, model_required_gbps=gbps, required_source=source if gbps is not None else "none")

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, for ``LoadPoint.bandwidth``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reading:
    """One gauge or counter that is not bandwidth: power, memory in use, "memory busy".

    ``memory_busy_ratio`` is the share of *time* the memory was in use; it is not bandwidth and is never MABU
    (measured on an H200: 100% busy at 88% of the bandwidth, 55% at 44%).
    """

    timestamp_ns: int
    device: str
    metric: str  # power_w | memory_used_bytes | memory_busy_ratio | throttled | npu_busy_ratio
    value: float
    source: str
    status: Status = "ok"


@dataclass(frozen=True, slots=True)
class Capability:
    """What one collector can measure here. ``reason`` and ``fix`` are set unless the status is "ok"."""

    collector: str
    vendor: str
    metric: str  # dram_bandwidth | energy | power | peak_bandwidth | memory_busy | ...
    status: Status
    device: str = "-"
    source: str = "-"
    reason: str | None = None
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory bandwidth of a device in GB/s: theoretical, where it came from, and what a read reached."""

    theoretical_gbps: float | None
    source: str
    achievable_gbps: float | None = None
    achievable_source: str = "none"
    warning: str | None = None


class Collector(Protocol):
    """One vendor interface. ``probe`` runs once; ``sample`` and ``energy_joules`` must not raise.

    ``dropped`` counts windows thrown away, by reason (``nan``, ``error``, ...).
    """

    name: str
    vendor: str
    min_interval_s: float  # the vendor's floor; faster is refused
    default_interval_s: float
    dropped: dict[str, int]

    def probe(self) -> list[Capability]:
        """What can be read here, and for the rest why not and what to do. Never raises."""
        ...

    def open(self) -> None:
        """Prepare for sampling. Only called when ``probe`` found something."""
        ...

    def sample(self) -> list[BandwidthSample | Reading]:
        """Everything new since the last call; a failed field is simply absent."""
        ...

    def energy_joules(self) -> dict[str, float]:
        """Energy counter per device in joules, read now; empty where there is none."""
        ...

    def peaks(self) -> dict[str, Peak]:
        """Peak bandwidth per device."""
        ...

    def close(self) -> None:
        """Release everything. Safe to call twice."""
        ...


class BaseCollector:
    """Defaults for collectors that lack a part: no energy, no peaks, nothing to open."""

    name = "base"
    vendor = "-"
    min_interval_s = 1.0
    default_interval_s = 1.0

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def probe(self) -> list[Capability]:
        return []

    def open(self) -> None:
        return None

    def sample(self) -> list[BandwidthSample | Reading]:
        return []

    def energy_joules(self) -> dict[str, float]:
        return {}

    def peaks(self) -> dict[str, Peak]:
        return {}

    def close(self) -> None:
        return None

    def capability(
        self,
        metric: str,
        status: Status,
        device: str = "-",
        source: str = "-",
        reason: str | None = None,
        fix: str | None = None,
    ) -> Capability:
        return Capability(self.name, self.vendor, metric, status, device, source, reason, fix)

    def unavailable(self, metrics: tuple[str, ...], reason: str, fix: str | None = None) -> list[Capability]:
        """The same refusal for several metrics."""
        return [self.capability(metric, "unavailable", reason=reason, fix=fix) for metric in metrics]
