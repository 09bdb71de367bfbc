"""The real ctypes path against a C stub of NVML: every way a driver can refuse, and the numbers when it does not."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from sits.telemetry.nvml import NvmlCollector
from sits.telemetry.sampler import Sampler
from sits.telemetry.samples import BandwidthSample, Capability, Reading
from sits.telemetry.session import TelemetrySession

PEAK = 6016 / 8 * 3201 * 2 / 1000  # GB/s

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build the stub library")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(target), str(source), "-lm"], check=True)
    return target


@pytest.fixture
def stub(library: Path, monkeypatch: pytest.MonkeyPatch):
    def choose(mode: str, percent: float = 50.0) -> NvmlCollector:
        monkeypatch.setenv("SITS_NVML_LIBRARY", str(library))
        monkeypatch.setenv("SITS_STUB_MODE", mode)
        monkeypatch.setenv("SITS_STUB_DRAM", str(percent))
        return NvmlCollector()

    return choose


def row(rows: list[Capability], metric: str) -> Capability:
    return next(found for found in rows if found.metric == metric)


def one_window(collector: NvmlCollector) -> list[BandwidthSample | Reading]:
    collector.probe()
    collector.open()
    time.sleep(0.002)
    try:
        return collector.sample()
    finally:
        collector.close()


def test_bandwidth_is_utilisation_times_the_drivers_peak(stub):
    found = one_window(stub("ok", 43.6))
    window = next(item for item in found if isinstance(item, BandwidthSample))
    assert window.observed_gbps == pytest.approx(0.436 * PEAK)
    assert window.peak_gbps == pytest.approx(4814.3, abs=0.1)
    assert (window.observed_source, window.peak_source, window.status) == ("nvml.gpm", "driver", "ok")
    assert window.window_ns > 1_000_000


def test_memory_busy_is_a_reading_and_never_bandwidth(stub):
    found = one_window(stub("ok", 10.0))
    busy = next(item for item in found if isinstance(item, Reading) and item.metric == "memory_busy_ratio")
    window = next(item for item in found if isinstance(item, BandwidthSample))
    assert busy.value == 1.0
    assert window.observed_gbps == pytest.approx(0.1 * PEAK)  # 100% busy did not become 100% bandwidth


def test_nan_window_is_dropped_and_counted(stub):
    collector = stub("nan")
    found = one_window(collector)
    assert not [item for item in found if isinstance(item, BandwidthSample)]
    assert collector.dropped == {"nan": 1}


@pytest.mark.parametrize(
    ("mode", "reason", "fix"),
    [
        ("no_gpm", "no GPM", "dcgm-exporter"),
        ("no_permission", "permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("mig", "MIG is on", "-mig 0"),
    ],
)
def test_missing_bandwidth_is_absent_with_reason_and_fix(stub, mode, reason, fix):
    collector = stub(mode)
    refusal = row(collector.probe(), "dram_bandwidth")
    assert refusal.status == "unavailable"
    assert reason in (refusal.reason or "")
    assert fix in (refusal.fix or "")
    assert row(collector.probe(), "energy").status == "ok"  # the rest of the card still works
    collector.open()
    assert not [item for item in collector.sample() if isinstance(item, BandwidthSample)]
    collector.close()


def test_no_driver_is_a_reason_not_an_exception(stub):
    rows = stub("no_driver").probe()
    assert {found.status for found in rows} == {"unavailable"}
    assert "driver_not_loaded" in (rows[0].reason or "")
    assert "modprobe" in (rows[0].fix or "")


def test_no_library_is_a_reason_not_an_exception(monkeypatch, tmp_path):
    monkeypatch.setenv("SITS_NVML_LIBRARY", str(tmp_path / "nothing.so"))
    rows = NvmlCollector().probe()
    assert {found.status for found in rows} == {"unavailable"}
    assert "no NVIDIA library" in (rows[0].reason or "")


def test_energy_is_the_counters_difference(stub):
    collector = stub("ok")
    collector.probe()
    outer = time.monotonic()
    first = collector.energy_joules()["GPU-stub"]
    inner = time.monotonic()
    time.sleep(0.02)
    inner = time.monotonic() - inner
    second = collector.energy_joules()["GPU-stub"]
    outer = time.monotonic() - outer
    assert 100 * inner - 0.01 <= second - first <= 100 * outer + 0.01  # the stub draws 100 W


def test_card_without_energy_counter_reports_absence(stub):
    collector = stub("no_energy")
    assert row(collector.probe(), "energy").status == "unavailable"
    assert collector.energy_joules() == {}


def test_sampler_keeps_the_floor_and_collects(stub):
    collector = stub("ok", 80.0)
    collector.probe()
    sampler = Sampler([collector], {"nvml": 0.001})  # below the 100 ms floor: raised to it
    sampler.start()
    while not sampler.samples():
        time.sleep(0.02)
    sampler.stop()
    windows = sampler.samples()
    assert all(window.window_ns >= 90_000_000 for window in windows)
    assert all(window.observed_gbps == pytest.approx(0.8 * PEAK) for window in windows)


def test_session_gives_the_three_ratios_and_energy(stub):
    session = TelemetrySession([stub("ok", 50.0)], {"nvml": 0.1})
    session.start()
    while not session.samples():
        time.sleep(0.02)
    window = session.stop()
    required = 0.4 * PEAK * 1e9 * window.duration_s
    figures = window.figures(required, output_tokens=10)
    assert figures["mabu.required"]["value"] == pytest.approx(0.4)
    assert figures["mabu.observed"]["value"] == pytest.approx(0.5)
    assert figures["traffic_efficiency"]["value"] == pytest.approx(0.8)
    assert figures["energy_per_token"]["value"] == pytest.approx(window.energy_j["GPU-stub"] / 10)
    assert window.energy_j["GPU-stub"] >= 100 * window.duration_s - 0.01  # read outside the timed window
    assert window.rows(required)[0]["model_required_gbps"] == pytest.approx(0.4 * PEAK)


def test_session_without_permission_says_why_and_gives_no_zero(stub):
    session = TelemetrySession([stub("no_permission")])
    session.start()
    window = session.stop()
    figure = window.figures(1e12, output_tokens=10)["mabu.observed"]
    assert figure["value"] is None
    assert "permission" in figure["reason"]


def test_required_above_observed_is_flagged(stub):
    session = TelemetrySession([stub("ok", 10.0)], {"nvml": 0.1})
    session.start()
    while not session.samples():
        time.sleep(0.02)
    window = session.stop()
    notes = window.notes(0.2 * PEAK * 1e9 * window.duration_s)
    assert any("2.00x the observed" in note for note in notes)
