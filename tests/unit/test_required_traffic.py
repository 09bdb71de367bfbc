"""Required bytes of a load level, and the three ratios and energy in a load point."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sits.bench.http.server_metrics import parse_metrics, summarise
from sits.cli.bench_telemetry import TelemetryObserver
from sits.spec.records import RequestRecord
from sits.spec.result import LoadPoint
from sits.telemetry.engine_counters import required_gbps, required_samples
from sits.telemetry.samples import BandwidthSample, Peak
from sits.telemetry.session import TelemetryWindow
from sits.traffic.model_shape import get_shape
from sits.traffic.operators import Step, step_traffic
from sits.traffic.precision import StepPrecision
from sits.traffic.required import mean_in_flight, required_bytes


def record(prompt: int, output: int, due: int = 0, gap: int = 10) -> RequestRecord:
    return RequestRecord(
        request_id="r", t_due=due, t_sent=due, prompt_tokens=prompt, output_tokens=output,
        chunk_times_ns=[gap * (k + 1) for k in range(output)],
    )  # fmt: skip


def test_required_bytes_equal_the_sum_over_the_steps():
    """One request alone: a prefill step and n - 1 decode steps, summed one by one."""
    shape, precision = get_shape("llama-3-8b"), StepPrecision("int4-g32", "fp8")
    total = step_traffic(shape, Step((), ((100, 0),), precision)).bytes
    for k in range(1, 20):
        total += step_traffic(shape, Step.decode(1, 100 + k - 1, precision)).bytes
    assert required_bytes(shape, precision, [record(100, 20)], steps=20) == pytest.approx(total, rel=0.02)


def test_steps_are_estimated_from_concurrency_when_unknown():
    rows = [record(100, 50) for _ in range(8)]  # eight at once
    assert mean_in_flight(rows) == pytest.approx(8)
    assert mean_in_flight([record(1, 5, due=1000 * i) for i in range(4)]) == 1
    shape, precision = get_shape("llama-3-8b"), StepPrecision()
    counted = required_bytes(shape, precision, rows, steps=50)
    estimated = required_bytes(shape, precision, rows)
    assert counted is not None
    assert estimated == pytest.approx(counted, rel=0.2)
    assert required_bytes(shape, precision, []) is None


class Session:
    """A session whose window is given."""

    def __init__(self, window: TelemetryWindow) -> None:
        self.window = window

    def start(self) -> None: ...

    def stop(self) -> TelemetryWindow:
        return self.window


class Client:
    """An embedded client that made ten steps."""

    def __init__(self, card: dict) -> None:
        self.llm = SimpleNamespace(card=card)
        self.steps = 0

    async def snapshot(self) -> dict[str, float]:
        self.steps += 10
        return {"steps": float(self.steps)}


CARD = {
    "layers": 32, "hidden_size": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "vocab_size": 128256, "dtype": "bfloat16", "device": "cuda:0",
}  # fmt: skip


def observe(card: dict, window: TelemetryWindow) -> LoadPoint:
    observer = TelemetryObserver(Client(card), Session(window))  # type: ignore[arg-type]
    point = LoadPoint(index=0, mode="closed")

    async def run() -> None:
        await observer.begin(None)  # type: ignore[arg-type]
        await observer.end(point, [record(100, 10)])

    asyncio.run(run())
    return point


def test_a_load_point_gets_three_ratios_and_energy():
    sample = BandwidthSample(1, 100, "GPU-1", 200.0, None, 4814.0)
    window = TelemetryWindow(0, 1.0, [sample], energy_j={"GPU-1": 50.0}, peaks={"GPU-1": Peak(4814.0, "driver")})
    point = observe(CARD, window)
    required = required_bytes(get_shape("llama-3-8b"), StepPrecision(), [record(100, 10)], steps=10)
    assert required is not None
    assert point.metrics["mabu.required"].value == pytest.approx(required / 1e9 / 4814)
    assert point.metrics["mabu.observed"].value == pytest.approx(200 / 4814)
    assert point.metrics["traffic_efficiency"].value == pytest.approx(required / 1e9 / 200)
    assert point.metrics["energy_per_token"].value == 5.0
    assert point.bandwidth[0]["model_required_gbps"] == pytest.approx(required / 1e9)
    assert point.bandwidth[0]["required_source"] == "model_card"


def test_nothing_readable_gives_reasons_and_no_zero():
    window = TelemetryWindow(0, 1.0, reasons={"dram_bandwidth": "permission", "energy": "no RAPL"})
    point = observe({"device": "cuda:0"}, window)
    assert {figure.value for figure in point.metrics.values()} == {None}
    assert point.metrics["mabu.observed"].reason == "permission"
    assert point.metrics["energy_per_token"].reason == "no RAPL"


def test_a_cpu_is_held_against_its_measured_read_peak(monkeypatch):
    monkeypatch.setattr("sits.telemetry.cpu_peak.measure_read_peak", lambda *_: {"best_gbps": 25.0})
    point = observe({**CARD, "device": "cpu"}, TelemetryWindow(0, 1000.0))
    assert point.metrics["mabu.required"].value is not None
    assert any("25.0 GB/s" in note for note in point.notes)


PAGE = """vllm:estimated_read_bytes_per_gpu_total{engine="0"} %d
vllm:estimated_write_bytes_per_gpu_total{engine="0"} %d
"""


def test_vllm_estimates_become_required_samples():
    first, second = (parse_metrics(PAGE % pair) for pair in ((1_000_000_000, 0), (3_000_000_000, 500_000_000)))
    timeline = [{"s": 0.0, **first}, {"s": 0.5, **second}, {"s": 1.0, **first}]  # the server restarted at the end
    samples = required_samples(timeline, started_ns=0)
    assert [sample.model_required_gbps for sample in samples] == [pytest.approx(5.0)]
    assert samples[0].required_source == "vllm.mfu"
    assert samples[0].observed_gbps is None  # an estimate is never an observation
    growth = summarise([(0.0, first), (0.5, second)])
    assert required_gbps(growth, 0.5) == (pytest.approx(5.0), "vllm.mfu")
    assert required_gbps({}, 0.5) is None
