"""What the GPU benchmarks write into their result files, as far as it needs no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("place", [["--out", "/home/someone/out"], ["--out=/home/someone/out"]])
def test_the_recorded_command_leaves_out_where_the_result_went(place):
    spec = importlib.util.spec_from_file_location("gpu_common", ROOT / "benchmarks" / "gpu" / "_common.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recorded = module.recorded_command(["decode_step.py", "--batches", "1", "16", *place, "--peer", "two words"])
    assert recorded == "python decode_step.py --batches 1 16 --peer 'two words'"
