"""DRAM traffic of a CPU from its memory-controller counters (Intel ``uncore_imc``, AMD ``amd_umc``).

Opens the counters with ``perf_event_open`` as the kernel's sysfs describes them; needs root or CAP_PERFMON.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from sits.telemetry.amd import read_text

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_ATTR_SIZE = 112  # PERF_ATTR_SIZE_VER5
_CACHE_LINE = 64
_EVENTS = ("cas_count_read", "cas_count_write", "data_reads", "data_writes", "umc_cas_cmd.rd", "umc_cas_cmd.wr")


@dataclass(frozen=True, slots=True)
class UncoreEvent:
    """One counter of one memory controller; ``bytes_per_count`` is 64 for column accesses."""

    name: str
    pmu_type: int
    config: int
    cpu: int
    bytes_per_count: float


def parse_event(text: str, formats: dict[str, str]) -> int | None:
    """``event=0x04,umask=0x03`` with the PMU's bit layout (``config:0-7``) -> the config word."""
    config = 0
    for term in text.split(","):
        key, _, value = term.strip().partition("=")
        layout = re.fullmatch(r"config:(\d+)(?:-(\d+))?", formats.get(key, ""))
        if layout is None:
            return None
        number = int(value, 0) if value else 1
        config |= number << int(layout[1])
    return config


def find_events(root: Path = Path("/sys")) -> list[UncoreEvent]:
    """Every DRAM read and write counter the kernel advertises."""
    found = []
    for pmu in sorted((root / "bus/event_source/devices").glob("*")):
        if not re.match(r"uncore_imc|amd_umc", pmu.name):
            continue
        kind = read_text(pmu / "type")
        if kind is None or not kind.isdigit():
            continue
        first_cpu = re.match(r"\d+", read_text(pmu / "cpumask") or "0")
        formats = {path.name: read_text(path) or "" for path in (pmu / "format").glob("*")}
        for name in _EVENTS:
            text = read_text(pmu / "events" / name)
            config = parse_event(text, formats) if text else None
            if config is not None:
                found.append(
                    UncoreEvent(
                        f"{pmu.name}/{name}", int(kind), config, int(first_cpu[0]) if first_cpu else 0, _CACHE_LINE
                    )
                )
        if pmu.name.startswith("amd_umc") and not (pmu / "events").is_dir():
            for label, mask in (("read", 1), ("write", 2)):  # event 0x0a, umask 1 = reads, 2 = writes
                config = 0x0A | mask << 8
                cpu = int(first_cpu[0]) if first_cpu else 0
                found.append(UncoreEvent(f"{pmu.name}/{label}", int(kind), config, cpu, _CACHE_LINE))
    return found


class UncoreCounters:
    """Open counters; ``read_bytes`` is their total since opening. Raises ``OSError`` when refused."""

    def __init__(self, events: list[UncoreEvent]) -> None:
        number = _SYSCALL.get(platform.machine())
        if number is None:
            raise OSError(38, f"perf_event_open is not wired for {platform.machine()}")
        self._open: list[tuple[int, float]] = []
        libc = ctypes.CDLL(None, use_errno=True)
        for event in events:
            attributes = struct.pack("=IIQQQQQ", event.pmu_type, _ATTR_SIZE, event.config, 0, 0, 0, 0)
            buffer = ctypes.create_string_buffer(attributes.ljust(_ATTR_SIZE, b"\0"), _ATTR_SIZE)
            handle = libc.syscall(ctypes.c_long(number), buffer, -1, event.cpu, -1, ctypes.c_ulong(0))
            if handle < 0:
                code = ctypes.get_errno()
                self.close()
                raise OSError(code, os.strerror(code))
            self._open.append((handle, event.bytes_per_count))

    def read_bytes(self) -> float:
        return sum(struct.unpack("=Q", os.read(handle, 8))[0] * size for handle, size in self._open)

    def close(self) -> None:
        for handle, _ in self._open:
            os.close(handle)
        self._open = []
