"""Edge devices: the Intel NPU's sysfs and the Raspberry Pi 5's power chip. Tested against fakes only.

Neither has a bandwidth counter: the NPU reports busy time and memory, the Pi the current of its supply rails.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from sits.telemetry.amd import read_text
from sits.telemetry.ascend import run_command
from sits.telemetry.peak import resolve_peak
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading

_RAIL = re.compile(r"^\s*(\w+?)_(A|V)\s+(?:current|volt)\(\d+\)=([\d.]+)[AV]", re.MULTILINE)


class IntelNpuCollector(BaseCollector):
    """``/sys/bus/pci/drivers/intel_vpu``: busy time (kernel 6.11), memory (6.15). No power, no bandwidth."""

    name = "intel-npu"
    vendor = "intel"
    min_interval_s = 1.0  # the kernel's recommended read period
    default_interval_s = 1.0

    def __init__(self, root: Path = Path("/sys")) -> None:
        super().__init__()
        self.root = root
        self._devices: dict[str, Path] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def probe(self) -> list[Capability]:
        folder = self.root / "bus/pci/drivers/intel_vpu"
        if not folder.is_dir():
            return self.unavailable(
                ("npu_busy",), "no Intel NPU driver (intel_vpu)", "load intel_vpu (kernel 6.6 or newer)"
            )
        found = []
        for entry in sorted(folder.glob("*:*:*.*")):
            device = f"intel-npu:{entry.name}"
            busy = read_text(entry / "npu_busy_time_us")
            if busy is None or not busy.isdigit():
                found.append(
                    self.capability(
                        "npu_busy", "unavailable", device, reason="no npu_busy_time_us", fix="use kernel 6.11"
                    )
                )
                continue
            self._devices[device] = entry
            found.append(self.capability("npu_busy", "ok", device, "ivpu.busy_time"))
            found.append(
                self.capability(
                    "dram_bandwidth", "unavailable", device, reason="the NPU driver has no bandwidth counter"
                )
            )
            found.append(
                self.capability(
                    "energy", "unavailable", device, reason="the NPU driver has no power counter",
                    fix="package RAPL minus its idle baseline is an estimate",
                )
            )  # fmt: skip
        return found or self.unavailable(("npu_busy",), "the intel_vpu driver has no device")

    def sample(self) -> list[BandwidthSample | Reading]:
        found: list[BandwidthSample | Reading] = []
        for device, folder in self._devices.items():
            now, text = time.monotonic_ns(), read_text(folder / "npu_busy_time_us")
            if text is not None and text.isdigit():
                busy_us = int(text)
                if device in self._last:
                    then, before = self._last[device]
                    if now > then and busy_us >= before:
                        ratio = (busy_us - before) * 1000 / (now - then)
                        found.append(Reading(time.time_ns(), device, "npu_busy_ratio", ratio, "ivpu.busy_time"))
                self._last[device] = (now, busy_us)
            memory = read_text(folder / "npu_memory_utilization")
            if memory is not None and memory.isdigit():
                found.append(Reading(time.time_ns(), device, "memory_used_bytes", int(memory), "ivpu.memory"))
        return found


def parse_pmic(text: str) -> tuple[float, int] | None:
    """``vcgencmd pmic_read_adc`` -> (watts over rails that have both current and voltage, number of rails)."""
    rails: dict[str, dict[str, float]] = {}
    for name, kind, value in _RAIL.findall(text):
        rails.setdefault(name, {})[kind] = float(value)
    pairs = [rail["A"] * rail["V"] for rail in rails.values() if "A" in rail and "V" in rail]
    return (sum(pairs), len(pairs)) if pairs else None


class RaspberryPiCollector(BaseCollector):
    """Raspberry Pi 5: power of the PMIC rails (USB, HAT and NVMe loads on 5 V are not in it), throttling bits."""

    name = "raspberry-pi"
    vendor = "arm"
    min_interval_s = 0.5  # each reading starts a process
    default_interval_s = 1.0

    def __init__(self, run: Callable[[list[str]], str] | None = None) -> None:
        super().__init__()
        self._run = run
        self._here = False

    def probe(self) -> list[Capability]:
        if self._run is None and shutil.which("vcgencmd") is None:
            return self.unavailable(("power",), "vcgencmd is not here (not a Raspberry Pi)")
        self._run = self._run or run_command
        if parse_pmic(self._run(["vcgencmd", "pmic_read_adc"])) is None:
            return self.unavailable(
                ("power",), "vcgencmd reports no PMIC rails", "a Raspberry Pi 5 and membership of the video group"
            )
        self._here = True
        return [
            self.capability(
                "power", "derived", "pi", "pmic", "sum of the PMIC rails; 5 V loads (USB, HAT, NVMe) excluded"
            ),
            self.capability("dram_bandwidth", "unavailable", "pi", reason="no bandwidth counter on this part"),
        ]

    def sample(self) -> list[BandwidthSample | Reading]:
        if not self._here or self._run is None:
            return []
        found: list[BandwidthSample | Reading] = []
        power = parse_pmic(self._run(["vcgencmd", "pmic_read_adc"]))
        if power is None:
            self.drop("no rails")
        else:
            found.append(Reading(time.time_ns(), "pi", "power_w", power[0], "pmic", "derived"))
        match = re.search(r"throttled=0x([0-9a-fA-F]+)", self._run(["vcgencmd", "get_throttled"]))
        if match:
            now_bits = int(match[1], 16) & 0xF  # bits 0-3: under-voltage, capped, throttled, soft limit, right now
            found.append(Reading(time.time_ns(), "pi", "throttled", float(now_bits != 0), "vcgencmd"))
        return found

    def peaks(self) -> dict[str, Peak]:
        return {"pi": resolve_peak("Raspberry Pi 5")} if self._here else {}
