"""Which collectors work on this host, and the table of what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sits.telemetry.amd import AmdSmiCollector, AmdSysfsCollector
from sits.telemetry.ascend import AscendCollector
from sits.telemetry.cpu import CpuCollector
from sits.telemetry.dcgm import DcgmCollector
from sits.telemetry.edge import IntelNpuCollector, RaspberryPiCollector
from sits.telemetry.nvml import NvmlCollector
from sits.telemetry.samples import Capability, Collector


def all_collectors() -> list[Collector]:
    """One of each kind, unprobed."""
    return [
        NvmlCollector(),
        DcgmCollector(),
        AmdSmiCollector(),
        AmdSysfsCollector(),
        AscendCollector(),
        IntelNpuCollector(),
        RaspberryPiCollector(),
        CpuCollector(),
    ]


def probe_all(collectors: Iterable[Collector] | None = None) -> list[tuple[Collector, list[Capability]]]:
    """Probe every collector; one that misbehaves becomes an "unavailable" row, never an exception."""
    found: list[tuple[Collector, list[Capability]]] = []
    for collector in collectors if collectors is not None else all_collectors():
        try:
            rows = collector.probe()
        except Exception as error:
            rows = [
                Capability(collector.name, collector.vendor, "probe", "unavailable", reason=f"probe failed: {error}")
            ]
        found.append((collector, rows))
    return found


def usable(probed: Sequence[tuple[Collector, list[Capability]]]) -> list[Collector]:
    """Collectors with at least one working metric. Where NVML has true bandwidth, DCGM would count it twice."""
    chosen = []
    gpm = any(
        row.metric == "dram_bandwidth" and row.status == "ok"
        for collector, rows in probed
        if collector.name == "nvml"
        for row in rows
    )
    smi = any(row.status != "unavailable" for collector, rows in probed if collector.name == "amdsmi" for row in rows)
    for collector, rows in probed:
        if (collector.name == "dcgm" and gpm) or (collector.name == "amd-sysfs" and smi):
            continue
        if any(row.status != "unavailable" for row in rows):
            chosen.append(collector)
    return chosen
