"""AMD, Ascend, edge and CPU collectors against fake trees and fake commands; DCGM against a page of text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sits.telemetry.amd import AmdSmiCollector, AmdSysfsCollector
from sits.telemetry.ascend import AscendCollector
from sits.telemetry.cpu import CpuCollector
from sits.telemetry.dcgm import DcgmCollector, parse_metrics
from sits.telemetry.edge import IntelNpuCollector, RaspberryPiCollector, parse_pmic
from sits.telemetry.perf_uncore import find_events, parse_event
from sits.telemetry.samples import BandwidthSample, Capability, Reading


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def row(rows: list[Capability], metric: str) -> Capability:
    return next(found for found in rows if found.metric == metric)


DCGM = """# HELP DCGM_FI_PROF_DRAM_ACTIVE ratio of cycles
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a",modelName="NVIDIA A100-SXM4-80GB"} 0.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",modelName="NVIDIA A100-SXM4-80GB"} 2500
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 250.5
"""


def test_dcgm_scrape_becomes_bandwidth_energy_and_power():
    collector = DcgmCollector("http://exporter/metrics", get=lambda url: DCGM)
    assert row(collector.probe(), "dram_bandwidth").status == "derived"
    collector.open()
    found = collector.sample()
    window = next(item for item in found if isinstance(item, BandwidthSample))
    assert window.observed_gbps == pytest.approx(0.5 * 2039)
    assert window.peak_source == "table:A100"
    assert collector.energy_joules() == {"GPU-a": 2.5}
    assert [item.value for item in found if isinstance(item, Reading)] == [250.5]


def test_dcgm_without_profiling_fields_names_the_reason():
    rows = DcgmCollector("http://x/", get=lambda url: 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 3\n').probe()
    assert row(rows, "dram_bandwidth").status == "unavailable"
    assert "DRAM_ACTIVE" in (rows[0].reason or "")


def test_dcgm_out_of_range_value_is_dropped():
    collector = DcgmCollector("http://x/", get=lambda url: DCGM)
    collector.probe()
    collector._get = lambda url: DCGM.replace("} 0.5", "} NaN")
    assert not [item for item in collector.sample() if isinstance(item, BandwidthSample)]
    assert collector.dropped == {"out of range": 1}


def test_dcgm_nothing_listening():
    def refuse(url: str) -> str:
        raise ConnectionRefusedError

    assert "nothing answers" in (DcgmCollector("http://x/", get=refuse).probe()[0].reason or "")


def test_parse_metrics_survives_escapes_and_junk():
    rows = parse_metrics('a{x="q\\"1"} 2\nnot a line\nb 3 1700000000\n# c 4\nd{} NotANumber\n')
    assert [(name, value) for name, _, value in rows] == [("a", 2.0), ("b", 3.0)]


class FakeSmi:
    """amdsmi as it answers on an MI300X; set ``activity`` to "N/A" for a card without the counter."""

    activity: object = 40

    def amdsmi_init(self) -> None: ...
    def amdsmi_shut_down(self) -> None: ...
    def amdsmi_get_processor_handles(self) -> list[int]:
        return [7]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, str]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_vram_info(self, handle: int) -> dict[str, object]:
        return {"vram_max_bandwidth": 5325}

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, object]:
        return {"umc_activity": self.activity}

    def amdsmi_get_energy_count(self, handle: int) -> dict[str, float]:
        return {"energy_accumulator": 1_000_000, "counter_resolution": 15.259}


def test_amdsmi_activity_times_peak():
    collector = AmdSmiCollector(FakeSmi())
    assert row(collector.probe(), "dram_bandwidth").status == "derived"
    collector.open()
    window = collector.sample()[0]
    assert isinstance(window, BandwidthSample)
    assert window.observed_gbps == pytest.approx(0.4 * 5325)
    assert collector.energy_joules() == {"amd:0": pytest.approx(15.259)}


def test_amdsmi_na_is_absent_not_zero():
    module = FakeSmi()
    module.activity = "N/A"
    collector = AmdSmiCollector(module)
    assert row(collector.probe(), "dram_bandwidth").status == "unavailable"
    assert collector.sample() == []


def test_amdsmi_that_fails_to_start_names_the_groups():
    class Broken(FakeSmi):
        def amdsmi_init(self) -> None:
            raise RuntimeError("AMDSMI_STATUS_FILE_ERROR")

    refusal = AmdSmiCollector(Broken()).probe()[0]
    assert "FILE_ERROR" in (refusal.reason or "")
    assert "render" in (refusal.fix or "")


@pytest.fixture
def amd_tree(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "class/drm/card0/device/vendor": "0x1002\n",
            "class/drm/card0/device/mem_busy_percent": "37\n",
            "class/drm/card0/device/mem_info_vram_used": "1000000\n",
            "class/drm/card0/device/hwmon/hwmon3/power1_average": "301000000\n",
            "class/drm/card1/device/vendor": "0x10de\n",
            "class/kfd/kfd/topology/nodes/1/name": "AMD Instinct MI300X\n",
            "class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": (
                "heap_type 1\nsize_in_bytes 206141652992\nflags 0\nwidth 8192\nmem_clk_max 1300\n"
            ),
            "class/kfd/kfd/topology/nodes/0/mem_banks/0/properties": "heap_type 0\nwidth 64\nmem_clk_max 2400\n",
        },
    )


def test_kfd_peak_uses_four_transfers_per_clock_on_mi300(amd_tree):
    collector = AmdSysfsCollector(amd_tree)
    rows = collector.probe()
    peak = collector.peaks()["kfd:1"]
    assert peak.theoretical_gbps == pytest.approx(5324.8)  # twice what width x clock x 2 would say
    assert peak.warning is None
    assert "kfd:0" not in collector.peaks()  # system memory is not a GPU's
    assert row(rows, "dram_bandwidth").status == "unavailable"


def test_amd_sysfs_readings_are_not_bandwidth(amd_tree):
    collector = AmdSysfsCollector(amd_tree)
    collector.probe()
    readings = {item.metric: item.value for item in collector.sample() if isinstance(item, Reading)}
    assert readings == {
        "memory_busy_ratio": pytest.approx(0.37), "memory_used_bytes": 1_000_000, "power_w": pytest.approx(301),
    }  # fmt: skip
    assert not [item for item in collector.sample() if isinstance(item, BandwidthSample)]


def test_kfd_refused_by_the_device_cgroup(amd_tree, monkeypatch):
    bank = amd_tree / "class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
    real = Path.read_text

    def refuse(self: Path, *args: object, **kwargs: object) -> str:
        if self == bank:
            raise PermissionError(1, "Operation not permitted")
        return real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refuse)
    refusal = row(AmdSysfsCollector(amd_tree).probe(), "peak_bandwidth")
    assert refusal.status == "unavailable"
    assert "--device /dev/kfd" in (refusal.fix or "")


NPU_SMI = {
    "-l": "\tTotal Count                    : 1\n\tNPU ID                         : 4\n",
    "usages": "\tHBM Usage Rate(%)    : 3\n\tMemory Bandwidth Usage Rate(%) : 9\n"
    "\tHBM Bandwidth Usage Rate(%)    : 25\n",
    "power": "\tNPU Real-time Power(W)         : 93.4\n",
}


def fake_npu_smi(command: list[str]) -> str:
    return NPU_SMI[next(key for key in NPU_SMI if key in command)]


def test_npu_smi_text_becomes_bandwidth_and_power():
    collector = AscendCollector(fake_npu_smi, peak_gbps=1600)
    assert row(collector.probe(), "dram_bandwidth").status == "derived"
    collector.open()
    window, power = collector.sample()
    assert isinstance(window, BandwidthSample)
    assert window.observed_gbps == pytest.approx(400)  # the HBM rate, not the DDR one
    assert window.observed_source == "dcmi.10"
    assert isinstance(power, Reading)
    assert power.value == 93.4


def test_npu_without_any_card_says_root_in_container():
    rows = AscendCollector(lambda command: "").probe()
    assert rows[0].status == "unavailable"
    assert "root" in (rows[0].fix or "")


def test_intel_npu_busy_time_is_a_ratio_and_power_is_absent(tmp_path):
    entry = "bus/pci/drivers/intel_vpu/0000:00:0b.0/npu_busy_time_us"
    collector = IntelNpuCollector(write(tmp_path, {entry: "1000\n"}))
    rows = collector.probe()
    assert row(rows, "npu_busy").status == "ok"
    assert row(rows, "energy").status == "unavailable"
    assert collector.sample() == []  # a counter needs two readings
    begin = time.monotonic()
    time.sleep(0.02)
    write(tmp_path, {entry: "11000\n"})
    busy = collector.sample()[0]
    assert isinstance(busy, Reading)
    assert 0 < busy.value <= 0.5
    assert busy.value >= 0.010 / (time.monotonic() - begin + 1.0)


PMIC = """   3V7_WL_SW_A current(0)=0.10000000A
   DDR_VDD2_A current(2)=0.20000000A
     VDD_CORE_A current(7)=2.00000000A
   3V7_WL_SW_V volt(8)=3.70000000V
   DDR_VDD2_V volt(10)=1.10000000V
     VDD_CORE_V volt(15)=0.90000000V
      EXT5V_V volt(24)=5.10000000V
      BATT_V volt(25)=0.00000000V
"""


def test_pmic_power_is_the_sum_over_paired_rails():
    assert parse_pmic(PMIC) == (pytest.approx(0.1 * 3.7 + 0.2 * 1.1 + 2.0 * 0.9), 3)
    assert parse_pmic("") is None


def test_raspberry_pi_readings():
    collector = RaspberryPiCollector(lambda command: PMIC if "pmic_read_adc" in command else "throttled=0x50005\n")
    assert row(collector.probe(), "power").status == "derived"
    readings = {item.metric: item.value for item in collector.sample() if isinstance(item, Reading)}
    assert readings["power_w"] == pytest.approx(2.39)
    assert readings["throttled"] == 1.0


def test_rapl_energy_survives_a_wrap_and_skips_subzones(tmp_path):
    zone = "class/powercap/intel-rapl:0"
    files = {
        f"{zone}/name": "package-0", f"{zone}/energy_uj": "900000", f"{zone}/max_energy_range_uj": "1000000",
        f"{zone}:0/name": "core", f"{zone}:0/energy_uj": "5",
    }  # fmt: skip
    collector = CpuCollector(write(tmp_path, files))
    assert row(collector.probe(), "energy").status == "ok"
    before = collector.energy_joules()
    write(tmp_path, {f"{zone}/energy_uj": "100000"})
    after = collector.energy_joules()
    assert set(after) == {"cpu:0"}
    assert after["cpu:0"] - before["cpu:0"] == pytest.approx(0.2)  # 0.1 J to the wrap and 0.1 J after it


def test_unreadable_rapl_is_a_permission_reason(tmp_path):
    root = write(tmp_path, {"class/powercap/intel-rapl:0/name": "package-0"})
    (root / "class/powercap/intel-rapl:0/energy_uj").mkdir()  # reading it fails even for root
    refusal = row(CpuCollector(root).probe(), "energy")
    assert (refusal.status, refusal.reason) == ("unavailable", "permission")
    assert "powercap" in (refusal.fix or "")


def test_resctrl_counts_bytes(tmp_path):
    name = "fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes"
    collector = CpuCollector(write(tmp_path, {name: "1000"}), read_peak_gbps=25.0)
    assert row(collector.probe(), "dram_bandwidth").source == "resctrl.mbm"
    collector.open()
    write(tmp_path, {name: "2001000"})
    time.sleep(0.005)
    window = collector.sample()[0]
    assert isinstance(window, BandwidthSample)
    assert window.observed_gbps == pytest.approx(2_000_000 / window.window_ns)
    assert window.achievable_gbps == 25.0
    write(tmp_path, {name: "Unavailable"})
    assert collector.sample() == []
    assert collector.dropped == {"counter unavailable": 1}


def test_uncore_event_encoding(tmp_path):
    assert parse_event("event=0x04,umask=0x03", {"event": "config:0-7", "umask": "config:8-15"}) == 0x304
    assert parse_event("nonsense=1", {"event": "config:0-7"}) is None
    pmu = "bus/event_source/devices/uncore_imc_0"
    root = write(
        tmp_path,
        {
            f"{pmu}/type": "13", f"{pmu}/cpumask": "0,28", f"{pmu}/format/event": "config:0-7",
            f"{pmu}/format/umask": "config:8-15", f"{pmu}/events/cas_count_read": "event=0x04,umask=0x03",
        },
    )  # fmt: skip
    event = find_events(root)[0]
    assert (event.pmu_type, event.config, event.cpu, event.bytes_per_count) == (13, 0x304, 0, 64)
