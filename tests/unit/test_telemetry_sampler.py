"""The sampler loop, discovery, the text exposition and the doctor command on a machine with nothing."""

from __future__ import annotations

import json
import os
import time

import pytest
from click.testing import CliRunner

from sits.cli.doctor_telemetry import command
from sits.telemetry.discover import probe_all, usable
from sits.telemetry.peak import resolve_peak
from sits.telemetry.prometheus_text import write_metrics
from sits.telemetry.sampler import Sampler
from sits.telemetry.samples import BandwidthSample, BaseCollector, Capability, Peak, Reading
from sits.telemetry.session import TelemetrySession, TelemetryWindow, settled


class Fake(BaseCollector):
    """A collector that does what the test says; ``work_s`` is how long one sample takes, on or off the CPU."""

    name = "fake"
    vendor = "test"
    min_interval_s = 0.01
    default_interval_s = 0.02

    def __init__(self, work_s: float = 0.0, burn: bool = False, broken: bool = False) -> None:
        super().__init__()
        self.work_s, self.burn, self.broken, self.closed = work_s, burn, broken, 0

    def probe(self) -> list[Capability]:
        if self.broken:
            raise RuntimeError("vendor surprise")
        return [self.capability("dram_bandwidth", "ok", "d")]

    def sample(self) -> list[BandwidthSample | Reading]:
        if self.broken:
            raise RuntimeError("vendor surprise")
        until = time.thread_time() + self.work_s
        while self.burn and time.thread_time() < until:
            pass
        if not self.burn:
            time.sleep(self.work_s)
        return [BandwidthSample(time.time_ns(), 1, "d", 10.0, None, 100.0)]

    def close(self) -> None:
        self.closed += 1


def test_a_slow_collector_skips_deadlines_and_counts_them():
    sampler = Sampler([Fake(work_s=0.07)])
    sampler.start()
    while len(sampler.samples()) < 2:
        time.sleep(0.02)
    sampler.stop()
    assert sampler.missed_deadlines >= 3  # a period of 20 ms, 70 ms of work


def test_a_collector_that_raises_is_counted_and_the_loop_goes_on():
    broken, good = Fake(broken=True), Fake()
    broken.name = "broken"
    sampler = Sampler([broken, good])
    sampler.start()
    while not sampler.samples():
        time.sleep(0.02)
    sampler.stop()
    assert any("vendor surprise" in reason for reason in sampler.dropped())


def test_stop_twice_and_the_sampler_reports_its_own_cost():
    collector = Fake()
    sampler = Sampler([collector])
    sampler.start()
    while sampler.wall_seconds < 0.06:
        time.sleep(0.02)
    sampler.stop()
    sampler.stop()
    assert collector.closed == 1
    assert sampler.cpu_share is not None
    assert sampler.cpu_share > 0


def test_cpu_bound_doubles_the_periods():
    sampler = Sampler([Fake(work_s=0.015, burn=True)], {"fake": 0.03})
    sampler.start()
    begin = time.monotonic()
    while not sampler.slowed and time.monotonic() - begin < 20:
        time.sleep(0.05)
    sampler.stop()
    assert sampler.slowed >= 1


def test_fork_leaves_the_child_without_a_half_dead_thread():
    sampler = Sampler([Fake()])
    sampler.start()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"y" if sampler._thread is None else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"y"
    sampler.stop()
    os.close(read)
    os.close(write)


def test_probe_failure_is_a_row():
    collector = Fake(broken=True)
    rows = probe_all([collector])[0][1]
    assert rows[0].status == "unavailable"
    assert "vendor surprise" in (rows[0].reason or "")
    assert usable(probe_all([collector])) == []


def test_dcgm_is_left_out_where_gpm_works():
    nvml, dcgm = Fake(), Fake()
    nvml.name, dcgm.name = "nvml", "dcgm"
    assert usable(probe_all([nvml, dcgm])) == [nvml]


def test_peak_prefers_the_driver_and_warns_when_the_table_disagrees():
    assert resolve_peak("NVIDIA H200", 4814.3).warning is None
    doubted = resolve_peak("AMD Instinct MI300X", 2662.4)  # width x clock x 2 on a part that needs 4
    assert doubted.theoretical_gbps == 2662.4
    assert "5325" in (doubted.warning or "")
    assert resolve_peak("NVIDIA L40S").source == "table:L40S"
    assert resolve_peak("No Such Card") == Peak(None, "none")
    assert resolve_peak("No Such Card", measured_gbps=25.0).achievable_gbps == 25.0


def test_text_exposition_has_no_line_for_what_is_absent():
    text = write_metrics([BandwidthSample(2, 1, "GPU-1", 50.0, 40.0, 100.0), BandwidthSample(1, 1, "GPU-1", 1.0)])
    assert 'sits_mabu_required_ratio{device="GPU-1"} 0.4' in text
    assert 'sits_traffic_efficiency_ratio{device="GPU-1"} 0.8' in text
    assert text.count("sits_mabu_observed_ratio{") == 1  # only the newest window
    absent = write_metrics([BandwidthSample(1, 1, "cpu", 5.0)], dropped={"nvml:nan": 3})
    assert "mabu" not in absent
    assert 'sits_sample_dropped_total{collector="nvml",reason="nan"} 3' in absent
    assert write_metrics([]) == ""


def test_label_values_are_escaped():
    assert 'device="a\\"b\\\\c\\nd"' in write_metrics([BandwidthSample(1, 1, 'a"b\\c\nd', 5.0)])


def test_idle_neighbour_is_left_out_of_observed_and_peak():
    rows = [BandwidthSample(1, 10, "a", 60.0), BandwidthSample(2, 30, "a", 20.0), BandwidthSample(2, 40, "b", 0.1)]
    window = TelemetryWindow(samples=rows, peaks={"a": Peak(100.0, "driver"), "b": Peak(100.0, "driver")})
    assert window.observed_gbps() == pytest.approx(30.0)  # weighted by window length
    assert window.peak_gbps() == 100.0


def test_windows_that_still_show_the_load_before_are_left_out():
    rows = [BandwidthSample(250_000_000 * k, 250_000_000, "a", float(k)) for k in range(1, 6)]
    assert [row.observed_gbps for row in settled(rows, 0)] == [2.0, 3.0, 4.0, 5.0]  # the first began at 0
    assert settled(rows[:2], 0) == rows[:2]  # too few to choose from


def test_session_where_nothing_is_readable():
    session = TelemetrySession([BaseCollector()])
    session.start()
    window = session.stop()
    figures = window.figures(1e9, 100)
    assert {figure["value"] for figure in figures.values()} == {None}
    assert all(figure["reason"] for figure in figures.values())
    assert TelemetrySession([BaseCollector()]).stop().samples == []  # stop without start


def test_doctor_telemetry_works_with_nothing_and_exits_zero():
    done = CliRunner().invoke(command, ["--no-measure", "--json"])
    assert done.exit_code == 0
    rows = json.loads(done.stdout)["capabilities"]
    assert {row["collector"] for row in rows} >= {"nvml", "dcgm", "amdsmi", "ascend", "cpu"}
    assert all(row["reason"] for row in rows if row["status"] == "unavailable")
    assert CliRunner().invoke(command, ["--no-measure"]).exit_code == 0
