"""Ascend through ctypes against a C stub of libdcmi."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sits.telemetry.ascend import AscendCollector
from sits.telemetry.samples import BandwidthSample, Reading

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build the stub library")


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "libdcmi.so"
    source = Path(__file__).with_name("dcmi_stub.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(target), str(source)], check=True)
    monkeypatch.setenv("SITS_DCMI_LIBRARY", str(target))


def test_hbm_and_other_memory_are_read_by_their_own_type(stub):
    collector = AscendCollector(peak_gbps=1000)
    assert {row.status for row in collector.probe() if row.metric == "dram_bandwidth"} == {"derived"}
    collector.open()
    found = collector.sample()
    windows = [item for item in found if isinstance(item, BandwidthSample)]
    assert [(w.device, w.observed_gbps, w.observed_source) for w in windows] == [
        ("npu:0", pytest.approx(400), "dcmi.10"), ("npu:1", pytest.approx(250), "dcmi.5"),
    ]  # fmt: skip
    assert [(r.device, r.value) for r in found if isinstance(r, Reading)] == [("npu:0", pytest.approx(93.4))]


def test_a_library_that_refuses_to_start_falls_back_to_the_command(stub, monkeypatch):
    monkeypatch.setenv("SITS_STUB_DCMI_FAILS", "1")
    asked = []

    def run(command: list[str]) -> str:
        asked.append(command)
        return ""

    rows = AscendCollector(run).probe()
    assert asked[0][0] == "npu-smi"
    assert rows[0].status == "unavailable"
