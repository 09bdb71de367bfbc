"""A small share of benchmarks/gate_statistics.py: the gate neither cries wolf nor sleeps. And its stored figures."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = util.spec_from_file_location("gate_statistics", ROOT / "benchmarks" / "gate_statistics.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules["gate_statistics"] = module
    spec.loader.exec_module(module)
    return module


def test_the_same_build_is_not_flagged(benchmark: Any) -> None:
    row = benchmark.measure((1, 500), benchmark.Noise(), benchmark.Change(), 12, seed=1)
    assert row["flagged_worse"]["any"] <= 1 / 12


def test_a_slower_tail_is_flagged_and_only_the_tail(benchmark: Any) -> None:
    row = benchmark.measure((5, 500), benchmark.Noise(), benchmark.Change(itl_tail=1.1), 10, seed=2)
    assert row["flagged_worse"]["itl.p99"] >= 0.9
    assert row["flagged_worse"]["itl.typical"] == 0


def test_the_stored_figures_reach_the_bars() -> None:
    """The file in the repository is what docs/gate.md refers to; it must be a full run that reached both bars."""
    stored = json.loads((ROOT / "benchmarks" / "results" / "gate_statistics.json").read_text(encoding="utf-8"))
    assert stored["resamples"] >= 200
    assert stored["tolerance"] == 0.03
    rows = {(row["runs_a_side"], row["change"]): row["flagged_worse"] for row in stored["rows"]}
    for (_, change), flagged in rows.items():
        if change == "none":
            assert flagged["any"] <= 0.02
        if change.startswith("tail of the gaps"):
            assert flagged["itl.p99"] >= 0.95
