"""NVIDIA through dcgm-exporter: DRAM_ACTIVE on cards that have no GPM (Ampere, Ada with profiling allowed).

There is no Python package of DCGM, so this scrapes the exporter's ``/metrics`` (``SITS_DCGM_URL``, default
``http://localhost:9400/metrics``). The exporter's own default interval is 30 s: start it with ``-c 1000``.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Callable

from sits.telemetry.peak import resolve_peak
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading

URL_VARIABLE = "SITS_DCGM_URL"
DEFAULT_URL = "http://localhost:9400/metrics"
_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ACTIVE = "DCGM_FI_PROF_DRAM_ACTIVE"  # field 1005: ratio of cycles the memory interface moves data
_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"  # mJ
_POWER = "DCGM_FI_DEV_POWER_USAGE"


def parse_metrics(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Prometheus text exposition -> (name, labels, value). Lines that are not samples are skipped."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        found.append((match["name"], dict(_LABEL.findall(match["labels"] or "")), value))
    return found


def fetch(url: str, timeout_s: float = 2.0) -> str:
    """GET a metrics page as text. Raises ``OSError`` (``URLError`` is one) or ``ValueError`` for a bad URL."""
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        return response.read(8_000_000).decode("utf-8", "replace")  # type: ignore[no-any-return]


class DcgmCollector(BaseCollector):
    """Every GPU one dcgm-exporter reports."""

    name = "dcgm"
    vendor = "nvidia"
    min_interval_s = 1.0
    default_interval_s = 1.0

    def __init__(self, url: str | None = None, get: Callable[[str], str] = fetch) -> None:
        super().__init__()
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self._get = get
        self._peaks: dict[str, Peak] = {}
        self._last_ns = 0

    def _scrape(self) -> list[tuple[str, dict[str, str], float]] | None:
        try:
            return parse_metrics(self._get(self.url))
        except (OSError, ValueError):
            return None

    def probe(self) -> list[Capability]:
        rows = self._scrape()
        if rows is None:
            return self.unavailable(
                ("dram_bandwidth",),
                f"nothing answers at {self.url}",
                f"start dcgm-exporter with -c 1000 (CAP_SYS_ADMIN for profiling fields) or set {URL_VARIABLE}",
            )
        found = []
        for name, labels, _ in rows:
            device = labels.get("UUID") or labels.get("uuid") or labels.get("gpu", "?")
            if name == _ACTIVE:
                self._peaks[device] = resolve_peak(labels.get("modelName", ""))
                if self._peaks[device].theoretical_gbps is None:
                    found.append(
                        self.capability(
                            "dram_bandwidth", "unavailable", device, "dcgm.1005",
                            f"no peak bandwidth known for {labels.get('modelName', 'this card')!r}",
                        )
                    )  # fmt: skip
                else:
                    found.append(self.capability("dram_bandwidth", "derived", device, "dcgm.1005"))
            elif name == _ENERGY:
                found.append(self.capability("energy", "ok", device, "dcgm.energy"))
        if not any(row[0] == _ACTIVE for row in rows):
            found.extend(
                self.unavailable(
                    ("dram_bandwidth",),
                    f"the exporter at {self.url} answers but has no {_ACTIVE}",
                    "its profiling module did not load: consumer card, MIG or vGPU, missing CAP_SYS_ADMIN, "
                    "or Nsight holds the counters",
                )
            )
        return found

    def open(self) -> None:
        self._last_ns = time.monotonic_ns()

    def sample(self) -> list[BandwidthSample | Reading]:
        rows = self._scrape()
        now = time.monotonic_ns()
        window, self._last_ns = now - self._last_ns, now
        if rows is None:
            self.drop("scrape failed")
            return []
        found: list[BandwidthSample | Reading] = []
        for name, labels, value in rows:
            device = labels.get("UUID") or labels.get("uuid") or labels.get("gpu", "?")
            if name == _POWER:
                found.append(Reading(time.time_ns(), device, "power_w", value, "dcgm.power"))
            if name != _ACTIVE or device not in self._peaks:
                continue
            if not 0.0 <= value <= 1.0:  # NaN included
                self.drop("out of range")
                continue
            peak = self._peaks[device]
            if peak.theoretical_gbps is not None:
                found.append(
                    BandwidthSample(
                        timestamp_ns=time.time_ns(), window_ns=window, device=device,
                        observed_gbps=value * peak.theoretical_gbps, peak_gbps=peak.theoretical_gbps,
                        achievable_gbps=peak.achievable_gbps, observed_source="dcgm.1005", peak_source=peak.source,
                        status="derived", reason="the exporter averages over its own interval",
                    )
                )  # fmt: skip
        return found

    def energy_joules(self) -> dict[str, float]:
        rows = self._scrape() or []
        return {
            labels.get("UUID") or labels.get("uuid") or labels.get("gpu", "?"): value / 1000
            for name, labels, value in rows
            if name == _ENERGY
        }

    def peaks(self) -> dict[str, Peak]:
        return dict(self._peaks)
