"""docs/performance.md holds what the result files hold, and every figure of the README has a file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_performance_page_is_generated_from_the_result_files() -> None:
    script = ROOT / "benchmarks" / "make_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + "run: python benchmarks/make_tables.py"


def test_every_result_file_the_readme_names_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"benchmarks/results/[\w.-]+\.json", text))
    missing = sorted(name for name in named if not (ROOT / name).is_file())
    assert not missing
