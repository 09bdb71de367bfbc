"""The few NVML calls SITS needs, bound with ctypes so that nothing has to be installed.

Knows the C layout of the functions it calls (nvml.h); knows nothing of bandwidth or sampling. The library is
``libnvidia-ml.so.1`` from the driver, or whatever ``SITS_NVML_LIBRARY`` names (tests point it at a stub).
"""

from __future__ import annotations

import ctypes
import math
import os
from ctypes import Structure, byref, c_char, c_char_p, c_double, c_uint, c_ulonglong, c_void_p
from typing import Any

LIBRARY_VARIABLE = "SITS_NVML_LIBRARY"
DRAM_BANDWIDTH_UTILISATION = 10  # NVML_GPM_METRIC_DRAM_BW_UTIL: percent of the theoretical maximum
_CLOCK_MEMORY = 2
_METRIC_SLOTS = 512  # the struct grew from 210 to 477 entries under one version number; only numMetrics are read

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13

ERROR_NAMES = {
    1: "uninitialized",
    2: "invalid argument",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission",
    6: "not found",
    DRIVER_NOT_LOADED: "driver not loaded",
    12: "library not found",
    FUNCTION_NOT_FOUND: "function not found (driver too old)",
    15: "GPU is lost",
    17: "the operating system blocked the request (container or cgroup)",
    18: "driver and library versions do not match (reboot or reload the driver)",
    25: "argument version mismatch",
    999: "unknown error",
}


class NvmlError(Exception):
    """A call failed; ``code`` is the nvmlReturn_t."""

    def __init__(self, code: int, function: str):
        self.code = code
        self.function = function
        self.text = ERROR_NAMES.get(code, f"error {code}")
        super().__init__(f"{function}: {self.text}")


class _Memory(Structure):
    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class _Utilization(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class _GpmSupport(Structure):
    _fields_ = [("version", c_uint), ("supported", c_uint)]


class _MetricInfo(Structure):
    _fields_ = [("short_name", c_char_p), ("long_name", c_char_p), ("unit", c_char_p)]


class _GpmMetric(Structure):
    _fields_ = [
        ("metric_id", c_uint),
        ("status", c_uint),
        ("value", c_double),
        ("info", _MetricInfo),
    ]


class _GpmMetricsGet(Structure):
    _fields_ = [
        ("version", c_uint),
        ("count", c_uint),
        ("sample1", c_void_p),
        ("sample2", c_void_p),
        ("metrics", _GpmMetric * _METRIC_SLOTS),
    ]


class Nvml:
    """An initialised NVML. Every method raises :class:`NvmlError` with the driver's code."""

    def __init__(self) -> None:
        name = os.environ.get(LIBRARY_VARIABLE) or "libnvidia-ml.so.1"
        try:
            self._library: Any = ctypes.CDLL(name)
        except OSError:
            raise NvmlError(12, f"loading {name}") from None
        self._call("nvmlInit_v2")

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            entry = getattr(self._library, function)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, function) from None
        code = int(entry(*arguments))
        if code != 0:
            raise NvmlError(code, function)

    def shutdown(self) -> None:
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        text = (c_char * 96)()
        self._call("nvmlSystemGetDriverVersion", text, c_uint(96))
        return text.value.decode(errors="replace")

    def devices(self) -> list[c_void_p]:
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        handles = []
        for index in range(count.value):
            handle = c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
            handles.append(handle)
        return handles

    def _text(self, function: str, handle: c_void_p) -> str:
        text = (c_char * 96)()
        self._call(function, handle, text, c_uint(96))
        return text.value.decode(errors="replace")

    def name(self, handle: c_void_p) -> str:
        return self._text("nvmlDeviceGetName", handle)

    def uuid(self, handle: c_void_p) -> str:
        return self._text("nvmlDeviceGetUUID", handle)

    def _unsigned(self, function: str, handle: c_void_p, *arguments: Any) -> int:
        value = c_uint()
        self._call(function, handle, *arguments, byref(value))
        return value.value

    def peak_bandwidth_gbps(self, handle: c_void_p) -> float:
        """Bus width in bytes x maximum memory clock x 2 transfers. Holds for HBM and GDDR as NVML reports clocks."""
        width = self._unsigned("nvmlDeviceGetMemoryBusWidth", handle)
        clock_mhz = self._unsigned("nvmlDeviceGetMaxClockInfo", handle, c_uint(_CLOCK_MEMORY))
        return width / 8 * clock_mhz * 2 / 1000

    def power_watts(self, handle: c_void_p) -> float:
        return self._unsigned("nvmlDeviceGetPowerUsage", handle) / 1000

    def energy_joules(self, handle: c_void_p) -> float:
        """Since the driver was loaded (Volta and newer). Costs about 3.5 ms a call."""
        value = c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", handle, byref(value))
        return value.value / 1000

    def memory_used_bytes(self, handle: c_void_p) -> int:
        memory = _Memory(version=ctypes.sizeof(_Memory) | (2 << 24))
        self._call("nvmlDeviceGetMemoryInfo_v2", handle, byref(memory))
        return int(memory.used)

    def memory_busy_ratio(self, handle: c_void_p) -> float:
        """Share of time the memory was in use: not bandwidth."""
        rates = _Utilization()
        self._call("nvmlDeviceGetUtilizationRates", handle, byref(rates))
        return rates.memory / 100

    def mig_enabled(self, handle: c_void_p) -> bool:
        current, pending = c_uint(), c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending))
        except NvmlError:
            return False
        return current.value == 1

    def gpm_supported(self, handle: c_void_p) -> bool:
        support = _GpmSupport(version=1)
        self._call("nvmlGpmQueryDeviceSupport", handle, byref(support))
        return support.supported != 0

    def gpm_buffer(self) -> c_void_p:
        buffer = c_void_p()
        self._call("nvmlGpmSampleAlloc", byref(buffer))
        return buffer

    def gpm_free(self, buffer: c_void_p) -> None:
        self._call("nvmlGpmSampleFree", buffer)

    def gpm_take(self, handle: c_void_p, buffer: c_void_p) -> None:
        self._call("nvmlGpmSampleGet", handle, buffer)

    def gpm_dram_utilisation(self, earlier: c_void_p, later: c_void_p) -> float:
        """DRAM bandwidth between two samples in percent of theoretical; NaN when both fell into one refresh."""
        request = _GpmMetricsGet(version=1, count=1, sample1=earlier, sample2=later)
        request.metrics[0].metric_id = DRAM_BANDWIDTH_UTILISATION
        self._call("nvmlGpmMetricsGet", byref(request))
        if request.metrics[0].status != 0:
            raise NvmlError(int(request.metrics[0].status), "nvmlGpmMetricsGet")
        value = float(request.metrics[0].value)
        return value if math.isfinite(value) else math.nan
