"""NVIDIA through NVML: DRAM bandwidth from GPM (Hopper and newer), energy, power, memory.

``observed = DRAM utilisation / 100 x peak`` agreed with moved bytes to 0.3% over one second and about 3% over
100-250 ms on an H200. Two samples closer than 100 ms may fall into one refresh: NaN, and then every other field
of that window is a false 0. Such a window is dropped and counted.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from sits.telemetry import nvml_library
from sits.telemetry.nvml_library import Nvml, NvmlError
from sits.telemetry.peak import resolve_peak
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading

GPM_FLOOR_S = 0.1  # nvml.h: the gap between two samples should be greater than 100 ms
_SLOW_READINGS_EVERY_S = 1.0  # power, memory: once a second is enough

_FIXES = {
    12: "install the NVIDIA driver, or start the container with --gpus all",
    nvml_library.DRIVER_NOT_LOADED: "load the kernel module: modprobe nvidia (nvidia-smi should list the card)",
    nvml_library.NO_PERMISSION: "run as a user who may read GPU counters: set NVreg_RestrictProfilingToAdminUsers=0 "
    "for the nvidia module, or add CAP_SYS_ADMIN to the container",
    17: "the container's device cgroup hides the GPU: start it with --gpus all",
    18: "the loaded kernel module and the library differ: reboot, or reload the nvidia module",
    nvml_library.FUNCTION_NOT_FOUND: "update the NVIDIA driver (GPM came with driver 525)",
}
_NO_GPM = (
    "this card has no GPM counters (Hopper and newer have)",
    "run dcgm-exporter with -c 1000 and set SITS_DCGM_URL to its /metrics: it reads DRAM_ACTIVE on older cards",
)
_MIG = (
    "MIG is on: the per-instance counter's denominator is not documented, so no GB/s can be derived from it",
    "turn MIG off (nvidia-smi -mig 0), or use dcgm-exporter's DCGM_FI_PROF_DRAM_ACTIVE per instance",
)


@dataclass(slots=True)
class _Device:
    handle: Any
    name: str
    uuid: str
    peak: Peak
    gpm: bool = False
    earlier: Any = None
    later: Any = None
    taken_ns: int = 0
    slow_ns: int = 0
    absent: set[str] = field(default_factory=set)  # readings this device refused once: not asked again


class NvmlCollector(BaseCollector):
    """All NVIDIA devices of this host."""

    name = "nvml"
    vendor = "nvidia"
    min_interval_s = GPM_FLOOR_S
    default_interval_s = 0.25

    def __init__(self) -> None:
        super().__init__()
        self._nvml: Nvml | None = None
        self._devices: list[_Device] = []
        self.driver = ""

    def probe(self) -> list[Capability]:
        try:
            nvml = self._connect()
        except NvmlError as error:
            reason = {12: "no NVIDIA library", nvml_library.DRIVER_NOT_LOADED: "driver_not_loaded"}.get(error.code)
            text = f"{reason} ({error})" if reason else str(error)
            return self.unavailable(("dram_bandwidth", "energy", "power"), text, _FIXES.get(error.code))
        if not self._devices:
            return self.unavailable(("dram_bandwidth", "energy"), "the driver is loaded but lists no GPU", _FIXES[17])
        found = []
        for device in self._devices:
            found.append(self._probe_bandwidth(nvml, device))
            found.append(self._probe_call("energy", device, "nvml.energy_counter", nvml.energy_joules))
            found.append(self._probe_call("power", device, "nvml.power", nvml.power_watts))
            peak = device.peak
            found.append(
                self.capability(
                    "peak_bandwidth", "ok" if peak.source == "driver" else "derived", device.uuid, peak.source,
                    peak.warning,
                )
                if peak.theoretical_gbps is not None
                else self.capability("peak_bandwidth", "unavailable", device.uuid, reason="neither driver nor table")
            )  # fmt: skip
        return found

    def _connect(self) -> Nvml:
        if self._nvml is None:
            nvml = Nvml()
            self.driver = nvml.driver_version()
            for handle in nvml.devices():
                name = nvml.name(handle)
                try:
                    driver_gbps: float | None = nvml.peak_bandwidth_gbps(handle)
                except NvmlError:
                    driver_gbps = None  # unified-memory parts report no bus
                self._devices.append(_Device(handle, name, nvml.uuid(handle), resolve_peak(name, driver_gbps)))
            self._nvml = nvml
        return self._nvml

    def _probe_bandwidth(self, nvml: Nvml, device: _Device) -> Capability:
        if nvml.mig_enabled(device.handle):
            return self.capability("dram_bandwidth", "unavailable", device.uuid, "nvml.gpm", *_MIG)
        try:
            if not nvml.gpm_supported(device.handle):
                return self.capability("dram_bandwidth", "unavailable", device.uuid, "nvml.gpm", *_NO_GPM)
            buffer = nvml.gpm_buffer()
            try:
                nvml.gpm_take(device.handle, buffer)
            finally:
                nvml.gpm_free(buffer)
        except NvmlError as error:
            reason = "permission" if error.code == nvml_library.NO_PERMISSION else error.text
            if error.code in (nvml_library.NOT_SUPPORTED, nvml_library.FUNCTION_NOT_FOUND):
                return self.capability("dram_bandwidth", "unavailable", device.uuid, "nvml.gpm", *_NO_GPM)
            return self.capability(
                "dram_bandwidth",
                "unavailable",
                device.uuid,
                "nvml.gpm",
                f"{reason} ({error})",
                _FIXES.get(error.code),
            )
        if device.peak.theoretical_gbps is None:
            return self.capability(
                "dram_bandwidth", "unavailable", device.uuid, "nvml.gpm", "utilisation without a known peak bandwidth"
            )
        device.gpm = True
        return self.capability("dram_bandwidth", "ok", device.uuid, "nvml.gpm")

    def _probe_call(self, metric: str, device: _Device, source: str, call: Any) -> Capability:
        try:
            call(device.handle)
        except NvmlError as error:
            device.absent.add(metric)
            return self.capability(metric, "unavailable", device.uuid, source, error.text, _FIXES.get(error.code))
        return self.capability(metric, "ok", device.uuid, source)

    def open(self) -> None:
        nvml = self._connect()
        for device in self._devices:
            if device.gpm and device.earlier is None:
                device.earlier, device.later = nvml.gpm_buffer(), nvml.gpm_buffer()
                nvml.gpm_take(device.handle, device.earlier)
                device.taken_ns = time.monotonic_ns()

    def sample(self) -> list[BandwidthSample | Reading]:
        found: list[BandwidthSample | Reading] = []
        for device in self._devices:
            if device.gpm and device.earlier is not None:
                window = self._window(device)
                if window is not None:
                    found.append(window)
            now = time.monotonic_ns()
            if now - device.slow_ns >= _SLOW_READINGS_EVERY_S * 1e9:
                device.slow_ns = now
                found.extend(self._slow(device))
        return found

    def _window(self, device: _Device) -> BandwidthSample | None:
        assert self._nvml is not None
        try:
            self._nvml.gpm_take(device.handle, device.later)
            now = time.monotonic_ns()
            percent = self._nvml.gpm_dram_utilisation(device.earlier, device.later)
        except NvmlError as error:
            self.drop(error.text)
            return None
        length = now - device.taken_ns
        device.earlier, device.later, device.taken_ns = device.later, device.earlier, now
        if math.isnan(percent):
            self.drop("nan")
            return None
        peak = device.peak
        assert peak.theoretical_gbps is not None
        return BandwidthSample(
            timestamp_ns=time.time_ns(),
            window_ns=length,
            device=device.uuid,
            observed_gbps=percent / 100 * peak.theoretical_gbps,
            peak_gbps=peak.theoretical_gbps,
            achievable_gbps=peak.achievable_gbps,
            observed_source="nvml.gpm",
            peak_source=peak.source,
        )

    def _slow(self, device: _Device) -> list[Reading]:
        assert self._nvml is not None
        calls = {
            "power_w": self._nvml.power_watts,
            "memory_used_bytes": self._nvml.memory_used_bytes,
            "memory_busy_ratio": self._nvml.memory_busy_ratio,
        }
        found = []
        for metric, call in calls.items():
            if metric in device.absent:
                continue
            try:
                value = float(call(device.handle))
            except NvmlError:
                device.absent.add(metric)  # probed once; a part that lacks it will lack it next second too
                continue
            found.append(Reading(time.time_ns(), device.uuid, metric, value, f"nvml.{metric}"))
        return found

    def energy_joules(self) -> dict[str, float]:
        found = {}
        for device in self._devices:
            if self._nvml is None or "energy" in device.absent:
                continue
            try:
                found[device.uuid] = self._nvml.energy_joules(device.handle)
            except NvmlError:
                device.absent.add("energy")
        return found

    def peaks(self) -> dict[str, Peak]:
        return {device.uuid: device.peak for device in self._devices}

    def names(self) -> dict[str, str]:
        """Device id -> product name."""
        return {device.uuid: device.name for device in self._devices}

    def close(self) -> None:
        if self._nvml is None:
            return
        for device in self._devices:
            for buffer in (device.earlier, device.later):
                if buffer is not None:
                    self._nvml.gpm_free(buffer)
        self._devices = []
        nvml, self._nvml = self._nvml, None
        nvml.shutdown()
