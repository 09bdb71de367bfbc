"""The measured tables of docs/telemetry.md are those of the result files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tables_are_generated_from_the_results():
    path = ROOT / "benchmarks/telemetry_tables.py"
    specification = importlib.util.spec_from_file_location("telemetry_tables", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    document = (ROOT / "docs/telemetry.md").read_text()
    assert module.with_tables(document, ROOT / "benchmarks/results") == document, f"run python {path}"
