"""``sits explain`` as a command: predictions, runs, before and after, and what it says when it cannot."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_run import Setup, simulate

from sits.cli.explain_command import command
from sits.errors import InputError
from sits.spec.events import Event
from sits.spec.records import RequestRecord, write_records
from sits.spec.result import Environment, Figure, LoadPoint, Result, Target, load_result, save_result
from sits.traffic.profile_trace import read_trace

CARD = {
    "layers": 32, "hidden_size": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "vocab_size": 128256, "dtype": "bfloat16", "linear_precisions": {"dense": 128},
    "engine": {"device": "cuda:0", "cuda_graphs": True, "max_step_tokens": 2048},
}  # fmt: skip


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False)
    return done.stdout


def write_run(folder: Path, events: list[Event] | None, card: dict | None = None, **metrics: Figure) -> Path:
    folder.mkdir()
    kind = "embedded" if events else "endpoint"
    point = LoadPoint(index=0, mode="closed", concurrency=4, requests={"ok": 4}, metrics=metrics)
    result = Result(
        run_id="r", created="2026-12-01T00:00:00Z", status="complete", points=[point],
        target=Target(kind=kind, name="llama-3-8b", card=CARD if card is None else card),
        environment=Environment(hardware={"gpus": [{"name": "NVIDIA H200"}]}),
    )  # fmt: skip
    if events is not None:
        result.events_file = "events.jsonl.gz"
        with gzip.open(folder / "events.jsonl.gz", "wt") as file:
            file.write(json.dumps({"sits_events": 1}) + "\n")
            file.writelines(json.dumps(list(event)) + "\n" for event in events)
    records = [
        RequestRecord(
            request_id=f"r{i}", t_due=i * 1000, t_sent=i * 1000, prompt_tokens=100, output_tokens=11,
            chunk_times_ns=[10_000_000 + k * 9_000_000 for k in range(11)],
        )
        for i in range(12)
    ]  # fmt: skip
    write_records(folder / "records.jsonl.gz", records)
    save_result(result, folder)
    return folder


def test_prediction_is_marked_as_predicted_and_sums_up():
    text = invoke("--model", "llama-3-70b", "--gpu", "H200", "--weights", "int4-g32", "--batch", 16, "--context", 512)
    assert "PREDICTED, not measured" in text
    document = json.loads(invoke("--model", "llama-3-70b", "--gpu", "H200", "--weights", "int4-g32", "--json"))
    pieces = document["waterfall"]["pieces"]
    assert sum(p["predicted_ms"] for p in pieces) == pytest.approx(document["waterfall"]["total_ms"])
    assert [p["gap_ms"] for p in pieces] == sorted((p["gap_ms"] for p in pieces), reverse=True)


def test_slo_question_is_answered():
    text = invoke("--model", "llama-3-70b", "--gpu", "H100", "--slo", "itl=30ms,ttft=2s", "--prompt", 1000)
    assert "Yes (predicted)" in text
    assert "does not fit in memory" in text


def test_every_card_and_preset_predicts():
    for name in ("H100", "A100", "MI300X", "L40S", "RTX4090", "910B", "CPU", "RaspberryPi5"):
        assert "PREDICTED" in invoke("--model", "phi-3-mini", "--gpu", name)
    assert "disagree" in invoke("--model", "qwen2-57b-a14b", "--gpu", "910B")


def test_a_run_is_explained_with_its_html(tmp_path):
    run = write_run(tmp_path / "run", simulate(Setup(scheduler_ms=6.0)))
    page = tmp_path / "page.html"
    text = invoke(run, "--html", page)
    assert "First: the scheduler keeps the device waiting" in text
    assert "sum to the measured time within 0.00%" in text
    markup = page.read_text()
    assert markup.count("<svg") == 2
    assert "<script" not in markup
    assert "the scheduler keeps the device waiting" in markup


def test_ratios_of_the_point_are_shown_with_reasons(tmp_path):
    observed = Figure(value=None, unit="ratio", reason="permission")
    run = write_run(
        tmp_path / "run", simulate(Setup(requests=2)),
        **{"mabu.required": Figure(value=0.61, unit="ratio", n=3), "mabu.observed": observed},
    )  # fmt: skip
    text = invoke(run)
    assert "0.61 ratio" in text
    assert "not available (permission)" in text


def test_after_a_run_with_the_switch_predicted_stands_beside_achieved(tmp_path):
    before = write_run(tmp_path / "before", simulate(Setup()))
    card = {**CARD, "linear_precisions": {"int4-g32": 128}}
    after = write_run(tmp_path / "after", simulate(Setup(weights="int4-g32")), card)
    document = json.loads(invoke(before, "--after", after, "--json"))
    switch = document["switches"][0]
    assert "weights bf16 -> int4-g32" in switch["what"]
    assert switch["achieved_ms"] < switch["before_ms"]
    assert switch["after_ms"] == pytest.approx(switch["achieved_ms"], rel=0.15)  # the simulator follows the model


def test_an_endpoint_is_a_black_box_but_is_explained(tmp_path):
    run = write_run(tmp_path / "run", None)
    text = invoke(run, "--gpu", "H200")
    assert "no event log" in text
    assert "the endpoint is slower than this card's prediction" in text or "about as fast as predicted" in text
    bare = write_run(tmp_path / "bare", None, card={})
    assert "give --model" in invoke(bare)


def test_an_endpoints_own_queue_is_named(tmp_path):
    run = write_run(tmp_path / "run", None, **{"throughput.output": Figure(value=100.0, unit="tok/s")})
    result = load_result(run)
    result.points[0].server = {"queue_mean": 12.0, "running_mean": 7.9, "running_max": 8.0, "kv_use_max": 0.2}
    save_result(result, run)
    text = invoke(run, "--gpu", "H200")
    assert "First: the server's running batch is capped at 8" in text
    result.points[0].server["kv_use_max"] = 0.99
    save_result(result, run)
    document = json.loads(invoke(run, "--gpu", "H200", "--json"))
    assert document["findings"][0]["code"] == "kv_pool_full"
    queue = next(p for p in document["waterfall"]["pieces"] if p["name"] == "queue")
    assert queue["measured_ms"] == pytest.approx(120.0)  # Little's law: 12 waiting / 100 tokens per second


def test_wrong_input_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="nothing to explain"):
        invoke()
    with pytest.raises(InputError, match="Known: llama-3-8b"):
        invoke("--model", "nonsense")
    with pytest.raises(InputError, match="cannot read result"):
        invoke(tmp_path / "none")
    run = write_run(tmp_path / "run", simulate(Setup(requests=2)))
    with pytest.raises(InputError, match="no load point 7"):
        invoke(run, "--point", 7)


def test_a_damaged_event_log_falls_back_to_the_client(tmp_path):
    run = write_run(tmp_path / "run", simulate(Setup(requests=2)))
    (run / "events.jsonl.gz").write_bytes(b"junk")
    assert "the event log cannot be used" in invoke(run)


def test_profiler_trace_shares(tmp_path):
    events = [
        {"ph": "X", "cat": "kernel", "name": "void gemm_bf16", "ts": 0, "dur": 50},
        {"ph": "X", "cat": "kernel", "name": "flash_fwd_splitkv", "ts": 60, "dur": 20},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 85, "dur": 5},
        {"ph": "X", "cat": "kernel", "name": "rms_norm", "ts": 90, "dur": 10},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 500},
        {"ph": "M", "name": "metadata"},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    shares = read_trace(path)
    assert shares == pytest.approx(
        {"weights": 0.5, "kv": 0.2, "host_to_device": 0.05, "activations": 0.1, "launches": 0.15}
    )
    run = write_run(tmp_path / "run", simulate(Setup()))
    pieces = json.loads(invoke(run, "--trace", path, "--json"))["waterfall"]["pieces"]
    weights = next(p for p in pieces if p["name"] == "weights")
    kv = next(p for p in pieces if p["name"] == "kv")
    assert weights["how"] == "profiler"
    assert weights["measured_ms"] / kv["measured_ms"] == pytest.approx(2.5)
    path.write_text("{}")
    with pytest.raises(InputError, match="Chrome trace"):
        read_trace(path)
