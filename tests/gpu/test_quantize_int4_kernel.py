"""Rounding to INT4 and packing on the device give the very codes, scales and words of the plain CPU code."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from sits.errors import InputError
from sits.kernels.cuda import wgmma_layout
from sits.kernels.registry import select
from sits.quant.int4 import ZERO_KINDS, Int4Codes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("zero", ZERO_KINDS)
@pytest.mark.parametrize("shape", [(1, 32), (257, 576), (64, 8192), (5, 100)])
def test_same_codes_as_on_the_cpu(shape, zero, dtype):
    weight = torch.randn(shape) * torch.logspace(-3, 2, shape[0]).unsqueeze(1)
    weight[0, :32] = 0
    weight = weight.to(dtype)
    stored = torch.float16 if dtype == torch.float32 else dtype
    ours, wanted = (Int4Codes.from_dense(w, 32, zero, stored) for w in (weight.cuda(), weight))
    for mine, theirs in zip((ours.q, ours.scale, ours.minimum), (wanted.q, wanted.scale, wanted.minimum)):
        assert torch.equal(mine.cpu(), theirs)


def test_the_kernel_is_what_runs():
    assert select("round_groups_int4", "cuda", group_size=32, columns=64).name == "triton"


@pytest.mark.parametrize("shape", [(8, 8), (1000, 72), (57344, 512)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_packing_on_the_device_gives_the_words_of_the_cpu(shape, interleaved):
    rows, columns = -(-shape[0] // 16) * 16 if interleaved else shape[0], shape[1] * 8
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    scale = torch.rand(rows, -(-columns // 32)).half().float()
    packed = [wgmma_layout.pack(q.to(d), scale.to(d), None, 32, torch.float16, interleaved) for d in ("cuda", "cpu")]
    assert torch.equal(packed[0].blocks.cpu(), packed[1].blocks)
    assert torch.equal(packed[0].row_factor.cpu(), packed[1].row_factor)


def test_faults_are_named():
    weight = torch.randn(8, 64, device="cuda")
    weight[7, 63] = float("nan")
    with pytest.raises(InputError, match="NaN or Inf"):
        Int4Codes.from_dense(weight)
    with pytest.raises(InputError, match="overflow"):
        Int4Codes.from_dense(torch.full((1, 32), 1e7, device="cuda"))
