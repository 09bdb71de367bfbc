"""``sits bench --endpoint`` as a user runs it, against the mock: exit codes, files, faults, signals."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sits.bench.http import health, probe
from sits.bench.mock.process import mock_process
from sits.cli.main import cli, run
from sits.spec.records import read_records
from sits.spec.result import load_result

FAST = ("--warmup", "none", "--input-len", "16", "--output-len", "8", "--seed", "3")


@pytest.fixture(scope="module")
def url():
    with mock_process("ttft=2,itl=1") as address:
        yield address


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """No two seconds of calibration in each test, and no verdict that depends on what else this machine runs."""
    monkeypatch.setattr("sits.cli.bench_endpoint.SHORT_CALIBRATION_S", 0.1)
    monkeypatch.setattr("sits.cli.bench_endpoint.CALIBRATION_S", 0.1)
    monkeypatch.setattr(health, "CPU_LIMIT", 1e9)
    monkeypatch.setattr(health, "SLIP_SHARE", 1e9)
    monkeypatch.setattr(probe, "_PAUSES_S", (0.0, 0.0))


def bench(url, folder, *flags):
    return run(cli, "sits", ["bench", "--endpoint", url, "--out", str(folder), *FAST, *flags])


def test_closed_loop_result_has_everything(url, tmp_path, capsys):
    code = bench(url, tmp_path, "--concurrency", "2,4", "--requests", "24", "--slo", "ttft=5s,itl=1s")
    assert code in (0, 3)  # 3: a busy machine need not settle
    result = load_result(tmp_path)
    assert result.target.kind == "endpoint"
    assert result.target.url == url
    assert result.target.card["tokens_per_word"] > 0
    assert [point.requests["ok"] for point in result.points] >= [24, 24]
    for point in result.points:
        assert point.metrics["attainment"].value == 1.0
        assert point.client.verdict == "ok"
        assert {"overhead_p99_ms", "cpu_ms_per_request", "max_events_per_s"} <= set(point.client.calibration)
        assert point.client.loop_lag_p99_ms is not None
        assert point.server["timeline"]
        assert point.server["output_tokens"] > 0
    records = read_records(tmp_path / "records.jsonl.gz")
    assert all(r.t_due <= r.t_sent <= r.t_end for r in records)
    assert (tmp_path / "report.html").exists()
    assert "tok/s" in capsys.readouterr().out


def test_open_loop_checks_its_arrivals(url, tmp_path):
    assert bench(url, tmp_path, "--rate", "200", "--requests", "120") in (0, 3)
    (point,) = load_result(tmp_path).points
    assert point.arrivals.process == "poisson"
    assert point.arrivals.achieved_rate > 0
    assert point.arrivals.ks_p_value is not None
    assert point.client.slip_p99_ms is not None


def test_client_bound_run_is_invalid_and_exits_4(url, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(health, "CPU_LIMIT", 0.0)
    assert bench(url, tmp_path, "--concurrency", "4", "--requests", "30") == 4
    (point,) = load_result(tmp_path).points
    assert point.status == "invalid"
    assert point.client.verdict == "client_bound"
    assert "of a core" in point.client.advice
    assert "INVALID" in capsys.readouterr().out


def test_server_that_fails_every_measured_request_exits_3(tmp_path, capsys):
    with mock_process("http_500,after=2,ttft=1,itl=0") as url:  # the two requests of the probe are answered
        assert bench(url, tmp_path, "--requests", "9") == 3
    (point,) = load_result(tmp_path).points
    assert point.status == "no_data"
    assert point.errors == {"http_500": 9}
    assert point.metrics["error_rate"].value == 1.0
    assert point.metrics["ttft.p50"].value is None
    assert "scripted failure" in (tmp_path / "report.html").read_text() or "http_500" in capsys.readouterr().out


def test_unreachable_server_exits_2_and_writes_nothing(tmp_path, capsys):
    assert bench("http://127.0.0.1:9", tmp_path / "out") == 2
    assert "Is the server running" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.json"))


def test_search_finds_the_slots_of_the_server(tmp_path):
    with mock_process("ttft=5,itl=2", slots=4) as url:
        scenario = tmp_path / "s.yaml"
        scenario.write_text("load: {search: {over: concurrency, limit: 64, attainment: 0.9, precision: 0.3}}\n")
        # A request takes about 20 ms; a queued one waits that long again before its first token.
        flags = ("-f", str(scenario), "--slo", "ttft=13ms", "--requests", "40")
        assert bench(url, tmp_path / "out", *flags) in (0, 3)
    search = load_result(tmp_path / "out").search
    assert search["outcome"] in ("found", "never_passed")
    assert search["lowest_failing"] <= 16
    assert len(search["steps"]) >= 2


def test_trace_conversation_and_mix_scenarios(url, tmp_path):
    (tmp_path / "t.jsonl").write_text(
        "".join(
            json.dumps({"timestamp": 20 * k, "input_length": 600, "output_length": 4, "hash_ids": [0, k]}) + "\n"
            for k in range(12)
        )
    )
    scenarios = {
        "trace": "workload: {trace: {file: t.jsonl, speed: 2}}\n",
        "conversation": "workload: {conversation: {turns: 3, user_len: 8, output_len: 4, think_ms: 5}}\n"
        "load: {concurrency: 2, requests: 6}\n",
        "mix": "workload:\n  mix:\n    short: {weight: 2, input_len: 8, output_len: 4}\n"
        "    talk: {weight: 1, conversation: {turns: 2, user_len: 8, output_len: 4, think_ms: '0'}}\n"
        "load: {concurrency: 2, requests: 12}\n",
    }
    points = {}
    for name, text in scenarios.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text("warmup: none\ncalibration_s: 0\n" + text)
        out = tmp_path / name
        assert run(cli, "sits", ["bench", "--endpoint", url, "-f", str(file), "--out", str(out)]) in (0, 3), name
        (points[name],) = load_result(out).points
        assert points[name].requests["error"] == 0
    assert points["trace"].mode == "trace"
    assert points["trace"].requests["ok"] == 12
    assert points["trace"].server["prefix_hit_rate"] > 0.5  # equal hash ids were equal text
    talk = [r for r in read_records(tmp_path / "conversation" / "records.jsonl.gz") if r.phase == "measure"]
    assert {record.turn for record in talk} == {0, 1, 2}
    assert all(record.text is None for record in talk)
    by_turn = {turn: [r.prompt_tokens for r in talk if r.turn == turn] for turn in (0, 1, 2)}
    assert max(by_turn[0]) < min(by_turn[1]) <= max(by_turn[1]) < min(by_turn[2])
    assert set(points["mix"].parts) == {"short", "talk"}


def test_flags_win_over_the_scenario(url, tmp_path):
    scenario = tmp_path / "s.yaml"
    scenario.write_text("load: {rate: 50, arrival: constant, duration_s: 60}\nslo: {ttft: 9s}\nseed: 9\n")
    code = bench(url, tmp_path / "out", "-f", str(scenario), "--concurrency", "3", "--requests", "9")
    assert code in (0, 3)
    result = load_result(tmp_path / "out")
    assert [point.concurrency for point in result.points] == [3]
    assert result.slo == {"ttft_ms": 9000.0}
    assert result.seed == 3


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--rate", "max"), "objectives"),
        (("-f", "chta"), "'chat'"),
        (("--rate", "1", "--concurrency", "1"), "exclude"),
        (("--rate", "max", "--slo", "ttft=1s", "--quick"), "cannot search"),
        (("--header", "Host=x"), "set by the client"),
    ],
)
def test_wrong_usage_exits_2(url, tmp_path, capsys, flags, expected):
    assert bench(url, tmp_path / "out", *flags) == 2
    assert expected in capsys.readouterr().err


def test_init_and_schema_print_and_leave(capsys):
    assert run(cli, "sits", ["bench", "--init", "chat"]) == 0
    assert "conversation:" in capsys.readouterr().out
    assert run(cli, "sits", ["bench", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False


def test_at_most_25_flags():
    command = cli.get_command(None, "bench")
    assert len(command.params) <= 25


def start(url, folder, *flags):
    command = [sys.executable, "-m", "sits.cli.main", "bench", "--endpoint", url, "--out", str(folder), *FAST, *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for(path, process, seconds=20):
    """Until the measurement is under way: the calibration line is on stderr, then a moment."""
    line = ""
    while "calibrating" not in line:
        line = process.stderr.readline()
        assert line or process.poll() is None
    time.sleep(1.6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_keeps_what_was_measured(url, tmp_path, number):
    process = start(url, tmp_path, "--concurrency", "2", "--duration", "60", "--quick")
    wait_for(tmp_path, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    result = load_result(tmp_path)
    assert result.status == "partial"
    assert "partial" in out


def test_endpoint_dying_mid_run_keeps_what_was_measured(tmp_path):
    with mock_process("ttft=2,itl=1") as url:
        process = start(url, tmp_path, "--concurrency", "2", "--duration", "60", "--quick")
        wait_for(tmp_path, process)
    out, err = process.communicate(timeout=40)
    assert process.returncode == 3, (out, err)
    result = load_result(tmp_path)
    assert result.status == "partial"
    point = result.points[0]
    assert point.requests["ok"] > 0
    assert point.metrics["ttft.p50"].value > 0
    assert any("failures in a row" in note for note in point.notes)


def full_disk(monkeypatch, folder, nothing=False):
    """Writing into ``folder`` (or anywhere) fails as on a full disk, from the records on."""
    real = os.replace

    def replace(source, target):
        if nothing or str(target).startswith(str(folder)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_full_disk_moves_the_result_elsewhere(url, tmp_path, monkeypatch, capsys):
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    full_disk(monkeypatch, tmp_path / "out")
    assert bench(url, tmp_path / "out", "--requests", "6") == 1
    captured = capsys.readouterr()
    assert "No space left" in captured.err
    assert "TTFT" in captured.out  # the scorecard is printed all the same
    (found,) = elsewhere.glob("sits-*/result.json")
    assert load_result(found).points[0].requests["ok"] >= 6
    assert not list((tmp_path / "out").iterdir())  # nothing half-written


def test_no_disk_at_all_still_prints_the_scorecard(url, tmp_path, monkeypatch, capsys):
    full_disk(monkeypatch, tmp_path, nothing=True)
    assert bench(url, tmp_path / "out", "--requests", "6") == 1
    captured = capsys.readouterr()
    assert "only the scorecard" in captured.err
    assert "TTFT" in captured.out
