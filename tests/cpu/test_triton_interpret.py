"""The Triton kernels under Triton's interpreter, against float64 or the plain PyTorch reference.

The interpreter is chosen when the kernels are imported, so these tests run in a process of their own. It gets bf16
wrong, so only float32 and float16 are used here; the GPU tests cover the rest.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("part", ["elementwise", "rope", "decode", "fused", "sampling", "draw", "int4", "rounding"])
def test_interpreted(part):
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    script = Path(__file__).parent / "triton_interpret_checks.py"
    done = subprocess.run(
        [sys.executable, str(script), part], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
