"""Row kernels that leave e4m3 and FP8 products: against float64, outputs from a pool full of NaN."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from sits.kernels import fp8_product
from sits.kernels.cuda import rows
from sits.kernels.fp8 import quantize_rows
from sits.kernels.testing import relative_error

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BOUND = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
hopper = pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="written for Hopper")


@pytest.fixture(autouse=True)
def _poisoned_pool():
    poison = [torch.full((1 << size,), float("nan"), device=DEVICE) for size in (12, 16, 20, 24)]
    del poison


def randn(*shape, dtype):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def close(actual, wanted, bound):
    error = relative_error(actual, wanted)
    assert error <= bound, f"relative error {error:.3g} > {bound:.3g}"


def same_codes(q, scale, values):
    """Codes and scales are those of ``quantize_rows``, but for a rounding of the scale's last bit."""
    wanted, wanted_scale = quantize_rows(values)
    close(scale, wanted_scale, 1e-6)
    assert (q.view(torch.uint8) != wanted.view(torch.uint8)).float().mean() < 2e-3
    close(q.double() * scale.double()[:, None], wanted.double() * wanted_scale.double()[:, None], 4e-3)


def normed(total, gain):
    wide = total.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gain.double()


@hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize(("count", "columns"), [(1, 8192), (257, 576), (3, 5128), (2, 8)])
def test_norm_rows(count, columns, chunks, dtype):
    x, residual = (randn(count, columns, dtype=dtype) for _ in range(2))
    gain = randn(columns, dtype=dtype)
    out, _, summed = rows.norm(x, residual, gain, 1e-5, False, chunks)
    assert torch.equal(summed, x + residual)
    close(out, normed(summed, gain), BOUND[dtype])
    q, scale, again = rows.norm(x, residual, gain, 1e-5, True, chunks)
    assert torch.equal(again, summed)
    same_codes(q, scale, out)
    alone, _, itself = rows.norm(x, None, gain, 1e-5, False, chunks)
    assert itself is x
    close(alone, normed(x, gain), BOUND[dtype])
    same_codes(*rows.norm(x, None, gain, 1e-5, True, chunks)[:2], alone)


@hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("chunks", [2, 7])
@pytest.mark.parametrize(("count", "columns"), [(1, 14336), (130, 1536), (3, 5128)])
def test_silu_and_quantised_rows(count, columns, chunks, dtype):
    gate_up = randn(count, 2 * columns, dtype=dtype) * 3
    gate, up = gate_up.chunk(2, -1)
    activated = torch.nn.functional.silu(gate.double()).to(dtype).double() * up.double()
    q, scale = rows.quantize(gate_up, True, chunks)
    close(q.double() * scale.double()[:, None], activated, 4e-2)
    close(scale, activated.abs().amax(-1) / 448, 2 * BOUND[dtype])
    same_codes(*rows.quantize(gate, False, chunks), gate)  # strided rows


@hopper
def test_rows_of_zeros_nan_and_inf():
    x = randn(4, 8192, dtype=torch.bfloat16)
    x[1, 5], x[2, 6], x[3] = float("nan"), float("inf"), 0
    q, scale = rows.quantize(x, False)
    finite = (q.float() * scale[:, None]).isfinite()
    assert finite[0].all()
    assert not finite[1].all()
    assert not finite[2].all()
    assert torch.equal(q[3].float(), torch.zeros(8192, device=DEVICE))
    out = rows.norm(x, None, torch.ones(8192, device=DEVICE, dtype=x.dtype), 1e-5, False)[0]
    assert out[0].isfinite().all()
    assert out[1].isnan().all()
    assert not out[2].isfinite().all()


@pytest.mark.parametrize("count", [1, 3, 16, 128, 257])
def test_scaled_product(count):
    q, scale = quantize_rows(torch.randn(count, 1024, device=DEVICE) * torch.rand(count, 1, device=DEVICE))
    weight, weight_scale = quantize_rows(torch.randn(2048, 1024, device=DEVICE) * 0.05)
    wanted = q.double() @ weight.double().T * scale.double()[:, None] * weight_scale.double()
    for dtype in (torch.float16, torch.bfloat16):
        close(fp8_product.scaled_product(q, scale, weight, weight_scale, dtype), wanted, 8e-3)
