"""Greedy sampling against torch."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from sits.kernels.triton import sampling

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.mark.parametrize("rows_", [1, 7, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_argmax_finite(rows_, dtype):
    logits = torch.randn(rows_, 128256, device=DEVICE).to(dtype)
    first = [int(row.nonzero()[0]) for row in logits == logits.amax(-1, keepdim=True)]
    assert sampling.argmax_finite(logits).tolist() == first
    logits[0, 77] = logits[0, 100000] = 99.0
    assert int(sampling.argmax_finite(logits)[0]) == 77
    for bad in (float("nan"), float("inf")):
        logits[0, 128255] = bad
        assert int(sampling.argmax_finite(logits)[0]) == -1
    logits[0] = float("-inf")
    assert int(sampling.argmax_finite(logits)[0]) == -1
    logits[0, 3] = -5.0
    assert int(sampling.argmax_finite(logits)[0]) == 3
