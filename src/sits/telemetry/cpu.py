"""CPU: energy from RAPL, DRAM traffic from memory-controller counters or resctrl, where this user may read them.

In a container none of it is there as a rule; then the capability says what to mount or grant.
"""

from __future__ import annotations

import time
from pathlib import Path

from sits.telemetry.amd import read_text
from sits.telemetry.perf_uncore import UncoreCounters, find_events
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading

_RAPL_FIX = (
    "run as root, or chmod a+r /sys/class/powercap/intel-rapl*/energy_uj; "
    "in a container add -v /sys/class/powercap:/sys/class/powercap:ro"
)
_PERF_FIX = "grant CAP_PERFMON, or set kernel.perf_event_paranoid to 0 or lower"
_RESCTRL_FIX = "mount -t resctrl resctrl /sys/fs/resctrl (CPUs with memory bandwidth monitoring)"


class CpuCollector(BaseCollector):
    """The CPU packages of this host. ``peak_gbps`` is a measured read peak (see ``cpu_peak``), when known."""

    name = "cpu"
    vendor = "cpu"
    min_interval_s = 0.1
    default_interval_s = 0.5

    def __init__(self, root: Path = Path("/sys"), read_peak_gbps: float | None = None) -> None:
        super().__init__()
        self.root = root
        self.read_peak_gbps = read_peak_gbps
        self._packages: dict[str, Path] = {}
        self._wraps: dict[str, tuple[int, int]] = {}  # device -> (last raw reading, microjoules added by wraps)
        self._uncore: UncoreCounters | None = None
        self._resctrl: list[Path] = []
        self._last: tuple[int, float] | None = None
        self._can_uncore = False

    def probe(self) -> list[Capability]:
        return [*self._probe_energy(), self._probe_bandwidth()]

    def _probe_energy(self) -> list[Capability]:
        found = []
        for zone in sorted((self.root / "class/powercap").glob("intel-rapl:*")):
            name = read_text(zone / "name") or ""
            if zone.name.count(":") != 1 or not name.startswith("package"):
                continue  # sub-zones (core, dram) are inside the package, psys outside it
            device = f"cpu:{name.removeprefix('package-')}"
            value = read_text(zone / "energy_uj")
            if value is None or not value.isdigit():
                found.append(self.capability("energy", "unavailable", device, "rapl", "permission", _RAPL_FIX))
            else:
                self._packages[device] = zone
                found.append(self.capability("energy", "ok", device, "rapl"))
        return found or self.unavailable(("energy",), "no RAPL (virtual machine, container or ARM)", _RAPL_FIX)

    def _probe_bandwidth(self) -> Capability:
        events = find_events(self.root)
        reason, fix = "no memory-controller counters (virtual machine or client CPU)", _RESCTRL_FIX
        if events:
            try:
                UncoreCounters(events).close()
                self._can_uncore = True
                return self.capability("dram_bandwidth", "ok", "cpu", "perf.imc")
            except OSError as error:
                reason, fix = f"permission ({error.strerror})", _PERF_FIX
        self._resctrl = [
            path for path in (self.root / "fs/resctrl/mon_data").glob("mon_L3_*/mbm_total_bytes") if read_text(path)
        ]
        if self._resctrl:
            return self.capability("dram_bandwidth", "derived", "cpu", "resctrl.mbm", "traffic between L3 and memory")
        return self.capability("dram_bandwidth", "unavailable", "cpu", "-", reason, fix)

    def open(self) -> None:
        if self._can_uncore and self._uncore is None:
            self._uncore = UncoreCounters(find_events(self.root))
        total = self._total_bytes()
        self._last = None if total is None else (time.monotonic_ns(), total)

    def _total_bytes(self) -> float | None:
        if self._uncore is not None:
            return self._uncore.read_bytes()
        values = [read_text(path) for path in self._resctrl]
        numbers = [int(value) for value in values if value is not None and value.isdigit()]  # "Unavailable" happens
        return float(sum(numbers)) if numbers and len(numbers) == len(values) else None

    def sample(self) -> list[BandwidthSample | Reading]:
        self._unwrap()  # often enough that no wrap is missed
        if self._last is None:
            return []
        total, now = self._total_bytes(), time.monotonic_ns()
        if total is None:
            self.drop("counter unavailable")
            return []
        then, before = self._last
        self._last = (now, total)
        if total < before or now <= then:
            self.drop("counter went back")
            return []
        source = "perf.imc" if self._uncore is not None else "resctrl.mbm"
        return [
            BandwidthSample(
                timestamp_ns=time.time_ns(), window_ns=now - then, device="cpu",
                observed_gbps=(total - before) / (now - then), achievable_gbps=self.read_peak_gbps,
                observed_source=source, peak_source="measured" if self.read_peak_gbps else "none",
                status="ok" if self._uncore is not None else "derived",
            )
        ]  # fmt: skip

    def _unwrap(self) -> dict[str, float]:
        found = {}
        for device, zone in self._packages.items():
            text = read_text(zone / "energy_uj")
            if text is None or not text.isdigit():
                continue
            raw = int(text)
            last, added = self._wraps.get(device, (raw, 0))
            if raw < last:
                limit = read_text(zone / "max_energy_range_uj") or "0"
                added += int(limit) if limit.isdigit() else 0
            self._wraps[device] = (raw, added)
            found[device] = (raw + added) / 1e6
        return found

    def energy_joules(self) -> dict[str, float]:
        """Package energy since an arbitrary start, wraps at ``max_energy_range_uj`` undone."""
        return self._unwrap()

    def peaks(self) -> dict[str, Peak]:
        if self.read_peak_gbps is None:
            return {}
        return {"cpu": Peak(None, "none", self.read_peak_gbps, "measured")}

    def close(self) -> None:
        if self._uncore is not None:
            self._uncore.close()
            self._uncore = None
