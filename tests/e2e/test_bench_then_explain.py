"""A real run, then ``sits explain`` on it: the path a user takes, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def sits(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sits", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "run"
    done = sits(
        "bench", "--model", "synthetic:smollm2-135m?layers=2", "--concurrency", 2, "--requests", 6,
        "--input-len", 32, "--output-len", 16, "--warmup", "none", "--out", folder,
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # 3: figures of a run this short need not converge
    return folder


def test_the_result_carries_required_mabu_and_reasons_for_the_rest(run):
    point = json.loads((run / "result.json").read_text())["points"][0]
    required = point["metrics"]["mabu.required"]
    assert required["value"] > 0
    observed = point["metrics"]["mabu.observed"]
    assert observed["value"] is not None or observed["reason"]


def test_the_report_shows_where_the_time_went(run):
    page = (run / "report.html").read_text()
    assert "Where the time goes" in page
    assert "waterfall of one output token" in page


def test_explain_reads_the_run_back(run):
    done = sits("explain", run, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "measured"
    assert document["waterfall"]["residual_share"] <= 0.02
    lost = [piece for piece in document["waterfall"]["pieces"] if piece["name"] == "unattributed"]
    assert sum(piece["measured_ms"] for piece in lost) <= 0.02 * document["waterfall"]["total_ms"]
    assert document["findings"]
    assert {tail["metric"] for tail in document["tails"]} == {"ttft", "itl"}
    assert all(row["request_id"].startswith("measure") for tail in document["tails"] for row in tail["slow"])


def test_wrong_input_exits_with_2_and_no_traceback(run):
    done = sits("explain", run, "--gpu", "nonsense")
    assert done.returncode == 2
    assert "Known: H200" in done.stderr
    assert "Traceback" not in done.stderr
