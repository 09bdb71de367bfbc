"""Huawei Ascend: ``libdcmi.so`` through ctypes, or the text of ``npu-smi``. Tested against fakes only.

``dcmi_get_device_utilization_rate`` type 10 is HBM bandwidth in percent (type 5 on parts without HBM). The vendor
warns of attack throttling: one reader, once a second.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from sits.telemetry.peak import resolve_peak
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading

LIBRARY_VARIABLE = "SITS_DCMI_LIBRARY"
_HBM_BANDWIDTH = 10
_MEMORY_BANDWIDTH = 5
_ROOT_ONLY = "DCMI in a container needs root and the device nodes (/dev/davinci*, /dev/davinci_manager)"
_PERCENT = re.compile(r"(HBM Bandwidth Usage Rate|Memory Bandwidth Usage Rate)\s*\(%\)\s*:\s*(\d+)")
_POWER = re.compile(r"(?:NPU Real-time Power|Power Dissipation)\s*\(W\)\s*:\s*([\d.]+)")
_CHIP = re.compile(r"NPU ID\s*:\s*(\d+)")


class Dcmi:
    """The calls we need of ``libdcmi.so``. Raises ``OSError`` when it cannot be loaded or started."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(os.environ.get(LIBRARY_VARIABLE) or "libdcmi.so")
        code = int(self._library.dcmi_init())
        if code != 0:
            raise OSError(code, f"dcmi_init failed with {code}")

    def cards(self) -> list[int]:
        count, ids = ctypes.c_int(), (ctypes.c_int * 64)()
        if self._library.dcmi_get_card_list(ctypes.byref(count), ids, 64) != 0:
            return []
        return [int(ids[index]) for index in range(count.value)]

    def bandwidth_percent(self, card: int) -> tuple[float, int] | None:
        """(percent, type) of the first memory-bandwidth type the card answers, or None."""
        for kind in (_HBM_BANDWIDTH, _MEMORY_BANDWIDTH):
            rate = ctypes.c_uint()
            code = self._library.dcmi_get_device_utilization_rate(card, 0, kind, ctypes.byref(rate))
            if code == 0 and rate.value <= 100:
                return float(rate.value), kind
        return None

    def power_watts(self, card: int) -> float | None:
        tenths = ctypes.c_int()
        if self._library.dcmi_get_device_power_info(card, 0, ctypes.byref(tenths)) != 0:
            return None
        return tenths.value / 10


class NpuSmi:
    """The same through the command, for hosts without the library in reach."""

    def __init__(self, run: Callable[[list[str]], str]) -> None:
        self._run = run

    def cards(self) -> list[int]:
        return [int(value) for value in _CHIP.findall(self._run(["npu-smi", "info", "-l"]))]

    def bandwidth_percent(self, card: int) -> tuple[float, int] | None:
        text = self._run(["npu-smi", "info", "-t", "usages", "-i", str(card)])
        rates = {name: float(value) for name, value in _PERCENT.findall(text)}
        if "HBM Bandwidth Usage Rate" in rates:
            return rates["HBM Bandwidth Usage Rate"], _HBM_BANDWIDTH
        if "Memory Bandwidth Usage Rate" in rates:
            return rates["Memory Bandwidth Usage Rate"], _MEMORY_BANDWIDTH
        return None

    def power_watts(self, card: int) -> float | None:
        match = _POWER.search(self._run(["npu-smi", "info", "-t", "power", "-i", str(card)]))
        return float(match[1]) if match else None


def run_command(command: list[str]) -> str:
    """Standard output of a short command, or "" when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


class AscendCollector(BaseCollector):
    """All Ascend cards of this host. ``peak_gbps`` must be given or known: public figures for 910B disagree."""

    name = "ascend"
    vendor = "ascend"
    min_interval_s = 1.0
    default_interval_s = 1.0

    def __init__(self, run: Callable[[list[str]], str] | None = None, peak_gbps: float | None = None) -> None:
        super().__init__()
        self._run = run
        self._peak = Peak(peak_gbps, "given") if peak_gbps else resolve_peak("Ascend 910B")
        self._reader: Dcmi | NpuSmi | None = None
        self._cards: list[int] = []
        self._last_ns = 0

    def probe(self) -> list[Capability]:
        try:
            self._reader = Dcmi()
        except (OSError, AttributeError):
            if self._run is None and shutil.which("npu-smi") is None:
                return self.unavailable(
                    ("dram_bandwidth",),
                    "neither libdcmi.so nor npu-smi is here",
                    f"install the Ascend driver; {_ROOT_ONLY}",
                )
            self._reader = NpuSmi(self._run or run_command)
        self._cards = self._reader.cards()
        if not self._cards:
            return self.unavailable(("dram_bandwidth",), "the driver lists no NPU", _ROOT_ONLY)
        found = []
        for card in self._cards:
            device = f"npu:{card}"
            reading = self._reader.bandwidth_percent(card)
            if reading is None:
                found.append(
                    self.capability(
                        "dram_bandwidth", "unavailable", device, "dcmi", "no bandwidth type answers", _ROOT_ONLY
                    )
                )
            else:
                found.append(
                    self.capability("dram_bandwidth", "derived", device, f"dcmi.{reading[1]}", self._peak.warning)
                )
            if self._reader.power_watts(card) is not None:
                found.append(self.capability("power", "ok", device, "dcmi.power"))
        return found

    def open(self) -> None:
        self._last_ns = time.monotonic_ns()

    def sample(self) -> list[BandwidthSample | Reading]:
        if self._reader is None:
            return []
        now = time.monotonic_ns()
        window, self._last_ns = now - self._last_ns, now
        found: list[BandwidthSample | Reading] = []
        for card in self._cards:
            device = f"npu:{card}"
            reading = self._reader.bandwidth_percent(card)
            if reading is None or self._peak.theoretical_gbps is None:
                self.drop("no reading")
            else:
                percent, kind = reading
                found.append(
                    BandwidthSample(
                        timestamp_ns=time.time_ns(), window_ns=window, device=device,
                        observed_gbps=percent / 100 * self._peak.theoretical_gbps,
                        peak_gbps=self._peak.theoretical_gbps, observed_source=f"dcmi.{kind}",
                        peak_source=self._peak.source, status="derived", reason=self._peak.warning,
                    )
                )  # fmt: skip
            power = self._reader.power_watts(card)
            if power is not None:
                found.append(Reading(time.time_ns(), device, "power_w", power, "dcmi.power"))
        return found

    def peaks(self) -> dict[str, Peak]:
        return {f"npu:{card}": self._peak for card in self._cards}
