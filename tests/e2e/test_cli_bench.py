"""``sits bench`` and ``sits report`` as a user runs them: real processes against a scripted target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sits
from sits.spec.metrics import point_metrics
from sits.spec.result import load_records, load_result

FAST = ("--warmup", "none")
# The command runs in an empty folder, so a relative PYTHONPATH would not do.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(sits.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}


def sits_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sits", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env=ENVIRONMENT,
    )


def test_help_has_examples_and_few_flags(tmp_path: Path) -> None:
    done = sits_command("bench", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    flags = [line for line in done.stdout.splitlines() if line.lstrip().startswith("-")]
    assert len(flags) <= 26  # 25 and --help
    for name in ("--model", "--endpoint", "--concurrency", "--rate", "--slo", "--warmup", "--json", "--quick"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--model or --endpoint"),
        (["--model", "scripted:", "--endpoint", "http://127.0.0.1:9"], "not both"),
        (["--model", "scripted:speed=1"], "speed=1"),
        (["--model", "scripted:", "--input-len", "0"], "at least 1"),
        (["--model", "scripted:", "--output-len", "-4"], "at least 1"),
        (["--model", "scripted:", "--input-len", "many"], "--input-len"),
        (["--model", "scripted:", "--input-len", "8000", "--output-len", "500"], "context of 8192"),
        (["--model", "scripted:", "--concurrency", "0"], "concurrency"),
        (["--model", "scripted:", "--concurrency", "1,x"], "concurrency"),
        (["--model", "scripted:", "--requests", "0"], "at least 1"),
        (["--model", "scripted:", "--duration", "-1"], "above zero"),
        (["--model", "scripted:", "--requests", "5", "--duration", "5"], "not both"),
        (["--model", "scripted:", "--rate", "2", "--concurrency", "2"], "exclude"),
        (["--model", "scripted:", "--rate", "0"], "above zero"),
        (["--model", "scripted:", "--arrival", "poisson"], "--rate"),
        (["--model", "scripted:", "--rate", "2", "--arrival", "uniform"], "uniform"),
        (["--model", "scripted:", "--slo", "speed=5"], "speed"),
        (["--model", "scripted:", "--dataset", "missing.jsonl"], "missing.jsonl"),
        (["--model", "scripted:", "--dataset", "x.jsonl", "--input-len", "5"], "exclude"),
        (["--model", "scripted:", "--warmup", "hot"], "hot"),
        (["--model", "scripted:", "--api-key-env", "KEY"], "--endpoint"),
        (["--endpoint", "http://127.0.0.1:9", "--api-key-env", "SITS_NO_SUCH_KEY"], "SITS_NO_SUCH_KEY"),
        (["--endpoint", "http://127.0.0.1:9", "--dtype", "float16"], "--model"),
        (["--model", "scripted:", "--out", "/proc/nowhere"], "/proc/nowhere"),
        (["--model", "scripted:", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = sits_command("bench", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert not list(tmp_path.rglob("result.json"))


def test_a_run_leaves_everything_and_says_where(tmp_path: Path) -> None:
    done = sits_command(
        "bench", "--model", "scripted:ttft=10ms,itl=4ms", "--concurrency", "1,3,6", "--requests", "18", "--input-len",
        "16", "--output-len", "10", "--slo", "ttft=1s", "--out", "run", *FAST, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TLTB" in done.stdout
    assert "run/report.html" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {"result.json", "records.jsonl.gz", "report.html"}
    result = load_result(folder)
    assert result.status == "complete"
    assert [point.requests["ok"] for point in result.points] == [18, 18, 18]
    # The figures are those of the records beside them.
    records = [record for record in load_records(result, folder) if record.point == 1]
    again = point_metrics(records, concurrency=3, slo=result.slo, seed=0)
    assert again["itl.p50"] == result.points[1].metrics["itl.p50"]
    assert again["tltb"].value == pytest.approx(result.points[1].metrics["tltb"].value)

    shown = sits_command("report", "run", cwd=tmp_path)
    assert shown.returncode == 0
    assert "TLTB" in shown.stdout
    page = sits_command("report", "run", "run/result.json", "--html", "both.html", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    assert (tmp_path / "both.html").read_text().startswith("<!doctype html>")


def test_json_to_standard_output_is_only_json(tmp_path: Path) -> None:
    done = sits_command(
        "bench", "--model", "scripted:ttft=1ms,itl=1ms", "--requests", "3", "--output-len", "3", "--json", "-", *FAST,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # so short a run need not settle
    assert json.loads(done.stdout)["points"][0]["requests"]["ok"] == 3
    assert "TLTB" in done.stderr
    assert len(list((tmp_path / "sits-results").iterdir())) == 1


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    for out in ((), ("--out", "a/b"), ("--out", "mine")):
        (tmp_path / "mine").mkdir(exist_ok=True)
        done = sits_command("bench", "--model", "no-such-model", *out, cwd=tmp_path)
        assert done.returncode == 2
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]  # what was there before stays


def test_json_to_a_file(tmp_path: Path) -> None:
    done = sits_command(
        "bench", "--model", "scripted:ttft=1ms,itl=1ms", "--requests", "2", "--output-len", "2", "--json",
        "copy.json", "--out", "o", *FAST, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads((tmp_path / "o/result.json").read_text())


def test_nothing_measured_is_exit_3(tmp_path: Path) -> None:
    done = sits_command("bench", "--model", "scripted:fail=1,ttft=1ms", "--requests", "3", *FAST, cwd=tmp_path)
    assert done.returncode == 3
    assert "no data" in done.stdout


def test_not_converged_is_exit_3_and_said(tmp_path: Path) -> None:
    done = sits_command(
        "bench", "--model", "scripted:ttft=1ms,itl=1ms,drift=0.05", "--requests", "12", "--output-len", "4", *FAST,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    assert "not converged" in done.stdout
    assert "did not converge" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, number: int) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sits", "bench", "--model", "scripted:ttft=5ms,itl=2ms", "--duration", "60"),
            *("--output-len", "8", "--out", "run", "--concurrency", "2,4", "--json", "-", *FAST),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stderr is not None
    assert "opening" in process.stderr.readline()
    time.sleep(2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["status"] == "partial"
    result = load_result(tmp_path / "run")
    assert result.status == result.points[0].status == "partial"
    assert result.points[0].requests["ok"] > 20
    assert len(result.points) == 1
    assert len(load_records(result, tmp_path / "run")) >= result.points[0].requests["ok"]
    assert "Traceback" not in err


def test_secrets_in_headers_stay_out_of_the_result(tmp_path: Path) -> None:
    from sits.cli.bench_command import _command_line

    before = sys.argv
    try:
        sys.argv = ["sits", "bench", "--header", "X-Key=secret", "--header=Y=secret", "--seed", "1"]
        assert "secret" not in " ".join(_command_line())
    finally:
        sys.argv = before


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.json", None, "cannot read"),
        ("bad.json", "{", "not valid JSON"),
        ("other.json", "{}", "not a SITS result"),
    ],
)
def test_report_of_something_else(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = sits_command("report", name, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
