"""The table in docs/quantization.md is the one its result file gives."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_documented_quality_is_the_measured_one():
    path = ROOT / "benchmarks" / "quality_table.py"
    spec = importlib.util.spec_from_file_location("quality_table", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    result = json.loads(module.RESULT.read_text())
    assert module.render(page, result) == page
    # What the page claims in words.
    rows = {row["case"]: row for row in result["rows"]}
    lossless = rows["int4-g32-float rtn"]["texts"].values()
    assert all(figures["kl"] < 1e-5 for figures in lossless)
