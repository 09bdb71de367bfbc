"""Telemetry as Prometheus text exposition (version 0.0.4), without a client library.

A figure that is not available has no line at all: absent, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sits.telemetry.samples import BandwidthSample, Reading

_HELP = {
    "sits_memory_bandwidth_observed_bytes_per_second": ("gauge", "DRAM traffic from hardware counters."),
    "sits_memory_bandwidth_required_bytes_per_second": ("gauge", "Bytes the model had to move, from its shapes."),
    "sits_memory_bandwidth_peak_bytes_per_second": ("gauge", "Theoretical peak of the device."),
    "sits_mabu_required_ratio": ("gauge", "Required bytes over peak bytes: the article's MABU."),
    "sits_mabu_observed_ratio": ("gauge", "Observed bytes over peak bytes."),
    "sits_traffic_efficiency_ratio": ("gauge", "Required over observed bytes; below 1 is extra traffic."),
    "sits_power_watts": ("gauge", "Power draw."),
    "sits_memory_used_bytes": ("gauge", "Device memory in use."),
    "sits_memory_busy_ratio": ("gauge", "Share of time the memory was in use. Not bandwidth, not MABU."),
    "sits_sample_dropped_total": ("counter", "Telemetry windows thrown away, by reason."),
    "sits_sampler_cpu_seconds_total": ("counter", "CPU time the sampler thread used."),
}
_READINGS = {
    "power_w": "sits_power_watts",
    "memory_used_bytes": "sits_memory_used_bytes",
    "memory_busy_ratio": "sits_memory_busy_ratio",
}


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value:.12g}" if inside else f"{name} {value:.12g}"


def write_metrics(
    samples: Iterable[BandwidthSample],
    readings: Iterable[Reading] = (),
    dropped: Mapping[str, int] | None = None,
    cpu_seconds: float | None = None,
) -> str:
    """The newest window of each device as Prometheus text, with a HELP and TYPE line per family."""
    lines: dict[str, list[str]] = {}

    def add(name: str, labels: Mapping[str, str], value: float | None) -> None:
        if value is not None and math.isfinite(value):
            lines.setdefault(name, []).append(_line(name, labels, value))

    newest = {sample.device: sample for sample in sorted(samples, key=lambda sample: sample.timestamp_ns)}
    for device, sample in newest.items():
        labels = {"device": device, "source": sample.observed_source}
        observed, required, peak = sample.observed_gbps, sample.model_required_gbps, sample.peak_gbps
        add("sits_memory_bandwidth_observed_bytes_per_second", labels, None if observed is None else observed * 1e9)
        add(
            "sits_memory_bandwidth_required_bytes_per_second",
            {"device": device, "source": sample.required_source},
            None if required is None else required * 1e9,
        )
        add(
            "sits_memory_bandwidth_peak_bytes_per_second",
            {"device": device, "source": sample.peak_source},
            None if peak is None else peak * 1e9,
        )
        only = {"device": device}
        add("sits_mabu_required_ratio", only, required / peak if required is not None and peak else None)
        add("sits_mabu_observed_ratio", only, observed / peak if observed is not None and peak else None)
        add("sits_traffic_efficiency_ratio", only, required / observed if required is not None and observed else None)
    latest = {(r.device, r.metric): r for r in sorted(readings, key=lambda reading: reading.timestamp_ns)}
    for (device, metric), reading in latest.items():
        if metric in _READINGS:
            add(_READINGS[metric], {"device": device, "source": reading.source}, reading.value)
    for key, count in (dropped or {}).items():
        collector, _, reason = key.partition(":")
        add("sits_sample_dropped_total", {"collector": collector, "reason": reason}, float(count))
    add("sits_sampler_cpu_seconds_total", {}, cpu_seconds)
    text = []
    for name, rows in lines.items():
        kind, help_text = _HELP[name]
        text += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *rows]
    return "\n".join(text) + "\n" if text else ""
