"""AMD: amdsmi where it imports, else sysfs and KFD. Not run on a real card here: tested against fakes only.

Observed bandwidth is memory-controller activity x peak (what AMD's own RDC does): status "derived". Static peak
from KFD is ``width x mem_clk_max x transfers``, where HBM3 on MI300 transfers 4 times per reported clock.
"""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any

from sits.telemetry.peak import resolve_peak
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading
from sits.traffic.cards import find_card

_GROUPS = "add the user to the video and render groups (usermod -aG video,render USER) and log in again"
_CONTAINER = "start the container with --device /dev/kfd --device /dev/dri --group-add video --group-add render"


def read_text(path: Path) -> str | None:
    """The stripped text of a sysfs file, or None when it is missing or refused."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def import_amdsmi() -> Any | None:
    """The amdsmi module, or None. Its import prints to stdout and raises KeyError without its library."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            import amdsmi
        except Exception:
            return None
    return amdsmi


class AmdSmiCollector(BaseCollector):
    """AMD GPUs through the amdsmi Python module."""

    name = "amdsmi"
    vendor = "amd"
    min_interval_s = 0.5
    default_interval_s = 1.0

    def __init__(self, module: Any | None = None) -> None:
        super().__init__()
        self._module = module
        self._handles: dict[str, Any] = {}
        self._peaks: dict[str, Peak] = {}
        self._last_ns = 0

    def probe(self) -> list[Capability]:
        if self._module is None:
            self._module = import_amdsmi()
        if self._module is None:
            return self.unavailable(
                ("dram_bandwidth", "energy"),
                "amdsmi does not import",
                "install ROCm's amdsmi (/opt/rocm/share/amd_smi)",
            )
        try:
            self._module.amdsmi_init()
            handles = list(self._module.amdsmi_get_processor_handles())
        except Exception as error:
            return self.unavailable(("dram_bandwidth", "energy"), f"amdsmi: {error}", f"{_GROUPS}; {_CONTAINER}")
        found = []
        for index, handle in enumerate(handles):
            device = f"amd:{index}"
            self._handles[device] = handle
            self._peaks[device] = self._peak(handle)
            activity = self._activity(handle)
            if activity is None:
                found.append(
                    self.capability("dram_bandwidth", "unavailable", device, "amdsmi.umc", "umc_activity is N/A")
                )
            elif self._peaks[device].theoretical_gbps is None:
                found.append(
                    self.capability("dram_bandwidth", "unavailable", device, "amdsmi.umc", "no peak bandwidth known")
                )
            else:
                found.append(self.capability("dram_bandwidth", "derived", device, "amdsmi.umc"))
            if self._energy(handle) is None:
                found.append(self.capability("energy", "unavailable", device, "amdsmi.energy", "no energy counter"))
            else:
                found.append(self.capability("energy", "ok", device, "amdsmi.energy"))
        return found or self.unavailable(("dram_bandwidth",), "amdsmi lists no GPU", _CONTAINER)

    def _peak(self, handle: Any) -> Peak:
        assert self._module is not None
        name, gbps = "", None
        with contextlib.suppress(Exception):
            name = str(self._module.amdsmi_get_gpu_asic_info(handle).get("market_name", ""))
        with contextlib.suppress(Exception):
            value = self._module.amdsmi_get_gpu_vram_info(handle).get("vram_max_bandwidth")
            gbps = float(value) if isinstance(value, (int, float)) and value > 0 else None
        return resolve_peak(name, gbps, "amdsmi")

    def _activity(self, handle: Any) -> float | None:
        assert self._module is not None
        try:
            value = self._module.amdsmi_get_gpu_activity(handle)["umc_activity"]
        except Exception:
            return None
        return float(value) if isinstance(value, (int, float)) and 0 <= value <= 100 else None

    def _energy(self, handle: Any) -> float | None:
        assert self._module is not None
        try:
            counts = self._module.amdsmi_get_energy_count(handle)
        except Exception:
            return None
        ticks = counts.get("energy_accumulator", counts.get("power"))  # 7.x and 6.x names
        resolution = counts.get("counter_resolution", 15.259)  # microjoule per tick
        if not isinstance(ticks, (int, float)) or not isinstance(resolution, (int, float)):
            return None
        return float(ticks) * float(resolution) / 1e6

    def open(self) -> None:
        self._last_ns = time.monotonic_ns()

    def sample(self) -> list[BandwidthSample | Reading]:
        now = time.monotonic_ns()
        window, self._last_ns = now - self._last_ns, now
        found: list[BandwidthSample | Reading] = []
        for device, handle in self._handles.items():
            peak = self._peaks[device]
            activity = self._activity(handle)
            if activity is None or peak.theoretical_gbps is None:
                self.drop("umc_activity absent")
                continue
            found.append(
                BandwidthSample(
                    timestamp_ns=time.time_ns(), window_ns=window, device=device,
                    observed_gbps=activity / 100 * peak.theoretical_gbps, peak_gbps=peak.theoretical_gbps,
                    achievable_gbps=peak.achievable_gbps, observed_source="amdsmi.umc", peak_source=peak.source,
                    status="derived", reason="memory-controller activity x peak",
                )
            )  # fmt: skip
        return found

    def energy_joules(self) -> dict[str, float]:
        values = {device: self._energy(handle) for device, handle in self._handles.items()}
        return {device: value for device, value in values.items() if value is not None}

    def peaks(self) -> dict[str, Peak]:
        return dict(self._peaks)

    def close(self) -> None:
        if self._module is not None and self._handles:
            self._handles = {}
            with contextlib.suppress(Exception):
                self._module.amdsmi_shut_down()


class AmdSysfsCollector(BaseCollector):
    """AMD GPUs without any library: KFD topology for the peak, ``mem_busy_percent`` as memory busy, hwmon power.

    ``mem_busy_percent`` is time, not bandwidth, so no bandwidth is claimed from it.
    """

    name = "amd-sysfs"
    vendor = "amd"
    min_interval_s = 0.5
    default_interval_s = 1.0

    def __init__(self, root: Path = Path("/sys")) -> None:
        super().__init__()
        self.root = root
        self._cards: dict[str, Path] = {}
        self._peaks: dict[str, Peak] = {}

    def probe(self) -> list[Capability]:
        found = []
        for card in sorted((self.root / "class/drm").glob("card[0-9]*")):
            if read_text(card / "device/vendor") != "0x1002" or "-" in card.name:
                continue
            device = f"amd:{card.name}"
            self._cards[device] = card / "device"
            busy = read_text(card / "device/mem_busy_percent")
            status = "ok" if busy is not None else "unavailable"
            found.append(
                self.capability(
                    "memory_busy", "ok", device, "amdgpu.mem_busy_percent", "share of time, not bandwidth"
                )
                if status == "ok"
                else self.capability("memory_busy", "unavailable", device, reason="no mem_busy_percent", fix=_GROUPS)
            )
            found.append(
                self.capability(
                    "dram_bandwidth", "unavailable", device, reason="sysfs has no bandwidth counter",
                    fix="install ROCm's amdsmi: it reads umc_activity",
                )
            )  # fmt: skip
        found.extend(self._probe_topology())
        if not found:
            return self.unavailable(("dram_bandwidth", "memory_busy"), "no AMD GPU in sysfs", _CONTAINER)
        return found

    def _probe_topology(self) -> list[Capability]:
        found = []
        nodes = self.root / "class/kfd/kfd/topology/nodes"
        for node in sorted(nodes.glob("*"), key=lambda path: path.name):
            name = read_text(node / "name") or ""
            for bank in sorted(node.glob("mem_banks/*/properties")):
                try:
                    text = bank.read_text(encoding="utf-8")
                except OSError as error:
                    reason = f"KFD refused {bank.parent.name} of node {node.name}: {error.strerror}"
                    found.append(
                        self.capability(
                            "peak_bandwidth", "unavailable", f"kfd:{node.name}", "kfd", reason, _CONTAINER
                        )
                    )
                    continue
                fields = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
                try:
                    width, clock = int(fields["width"]), int(fields["mem_clk_max"])
                    heap = int(fields["heap_type"])
                except (KeyError, ValueError):
                    continue
                if heap not in (1, 2) or width <= 0 or clock <= 0:  # 1, 2: local memory of a GPU
                    continue
                card = find_card(name)
                transfers = card.memory_clock_multiplier if card else 2
                device = f"kfd:{node.name}"
                self._peaks[device] = resolve_peak(name, width / 8 * clock * transfers / 1000, "kfd")
                found.append(self.capability("peak_bandwidth", "derived", device, "kfd", self._peaks[device].warning))
        return found

    def sample(self) -> list[BandwidthSample | Reading]:
        found: list[BandwidthSample | Reading] = []
        for device, folder in self._cards.items():
            for metric, pattern, scale, source in (
                ("memory_busy_ratio", "mem_busy_percent", 0.01, "amdgpu.mem_busy_percent"),
                ("memory_used_bytes", "mem_info_vram_used", 1.0, "amdgpu.vram_used"),
                ("power_w", "hwmon/*/power1_average", 1e-6, "amdgpu.hwmon"),
            ):
                for path in sorted(folder.glob(pattern))[:1]:
                    text = read_text(path)
                    if text is not None and text.isdigit():
                        found.append(Reading(time.time_ns(), device, metric, int(text) * scale, source))
        return found

    def peaks(self) -> dict[str, Peak]:
        return dict(self._peaks)
