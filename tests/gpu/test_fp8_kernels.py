"""Row kernels that leave e4m3 and FP8 products: against float64, outputs from a pool full of NaN."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from sits.kernels import fp8_product
from sits.kernels.cuda import rows
from sits.kernels.fp8 import quantize_rows
from sits.kernels.fp8_product import Sums
from sits.kernels.fp8_rows import add_rms_norm_fp8, quantize_fp8, scale_sums
from sits.kernels.testing import relative_error
from sits.kernels.triton import activation, norm

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


ROWS = [1, 3, 16, 33, 128, 129, 200, 257, 512]


@pytest.mark.parametrize("count", ROWS)
def test_unscaled_product(count):
    q, scale = quantize_rows(torch.randn(count, 1040, device=DEVICE) * torch.rand(count, 1, device=DEVICE))
    weight, weight_scale = quantize_rows(torch.randn(2064, 1040, device=DEVICE) * 0.05)
    sums = fp8_product.unscaled_product(q, scale, weight, weight_scale)
    assert sums.values.dtype == torch.bfloat16
    bare = q.double() @ weight.double().T
    close(sums.values, bare, 8e-3)
    wanted = bare * scale.double()[:, None] * weight_scale.double()
    for dtype in (torch.float16, torch.bfloat16):
        bias = randn(2064, dtype=dtype)
        again = fp8_product.unscaled_product(q, scale, weight, weight_scale)
        close(scale_sums(again, bias, dtype), wanted + bias.double(), 8e-3)


def test_the_largest_sums_fit():
    """In size: tensor cores drop bits of a sum that only grows, a few per cent of it."""
    q = torch.full((130, 28672), 448.0, device=DEVICE).to(torch.float8_e4m3fn)
    one = torch.ones(130, device=DEVICE)
    sums = fp8_product.unscaled_product(q, one, q[:128].contiguous(), one[:128])
    close(sums.values, torch.full((130, 128), 448.0 * 448 * 28672, device=DEVICE), 0.1)


def random_sums(count, columns):
    """Larger than fp16 holds; in a pool of NaN, as are the results."""
    values = (torch.randn(count, columns, device=DEVICE) * 1e6).bfloat16()
    return Sums(values, torch.rand(count, device=DEVICE) * 1e-3 + 1e-4, torch.rand(columns, device=DEVICE) * 1e-2)


def exact(sums):
    return sums.values.double() * sums.row_scale.double()[:, None] * sums.column_scale.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["chosen", "triton"])
@pytest.mark.parametrize(("count", "columns"), [(1, 8192), (130, 8192), (257, 576), (3, 5128), (2, 8), (5, 35)])
def test_sums_into_a_norm(count, columns, kind, dtype):
    sums, residual, gain = (
        random_sums(count, columns),
        randn(count, columns, dtype=dtype),
        randn(columns, dtype=dtype),
    )
    if kind == "chosen":
        q, scale, summed = add_rms_norm_fp8(sums, residual, gain, 1e-5)
    else:
        q, scale, summed = norm.add_rms_norm_fp8(sums.values, residual, gain, 1e-5, sums.scales)
    assert summed.dtype == dtype
    total = exact(sums) + residual.double()
    close(summed, total, BOUND[dtype] / 2)
    same = (summed == total.to(dtype)).float().mean()
    assert same > 0.9  # one rounding: two would move about half of them
    wanted = normed(summed, gain).to(dtype)
    close(q.double() * scale.double()[:, None], wanted, 4e-2)
    close(scale, wanted.abs().amax(-1) / 448, 2 * BOUND[dtype])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("count", "columns"), [(1, 8192), (257, 576), (5, 35)])
def test_a_bf16_product_beside_a_residual_of_the_model(count, columns, dtype):
    x, residual = randn(count, columns, dtype=torch.bfloat16), randn(count, columns, dtype=dtype)
    gain = randn(columns, dtype=dtype)
    q, scale, summed = add_rms_norm_fp8(x, residual, gain, 1e-5)
    assert torch.equal(summed, (x.float() + residual.float()).to(dtype))
    close(q.double() * scale.double()[:, None], normed(summed, gain), 4e-2)


@pytest.mark.parametrize("kind", ["chosen", "triton"])
@pytest.mark.parametrize(("count", "columns"), [(1, 28672), (256, 28672), (130, 1536), (3, 5128), (2, 8), (5, 35)])
def test_sums_into_silu(count, columns, kind):
    sums = random_sums(count, 2 * columns)
    gate, up = exact(sums).chunk(2, -1)
    activated = torch.nn.functional.silu(gate) * up
    if kind == "chosen":
        q, scale = quantize_fp8(sums, silu=True)
    else:
        q, scale = activation.quantize_fp8(sums.values, True, sums.scales)
    close(q.double() * scale.double()[:, None], activated, 4e-2)
    close(scale, activated.abs().amax(-1) / 448, 2 * BOUND[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("count", "columns"), [*((rows, 10240) for rows in ROWS), (257, 576), (3, 5128), (5, 35)])
def test_scaled_sums(count, columns, biased, dtype):
    sums = random_sums(count, columns)
    bias = randn(columns, dtype=dtype) if biased else None
    wanted = exact(sums) + (0 if bias is None else bias.double())
    through_triton = activation.scale_sums(sums.values, *sums.scales, bias, dtype)
    out = scale_sums(sums, bias, dtype)  # may write into the sums
    for result in (out, through_triton):
        assert result.dtype == dtype
        close(result, wanted, BOUND[dtype] / 2)
        assert (result == wanted.to(dtype)).float().mean() > 0.9


@pytest.mark.parametrize("columns", [8192, 35])
def test_bad_values_in_sums_stay_visible(columns):
    sums, ones = random_sums(5, 2 * columns), torch.ones(2 * columns, device=DEVICE, dtype=torch.bfloat16)
    sums.values[1, 5], sums.values[2, 6], sums.values[3] = float("nan"), float("inf"), 0
    sums.row_scale[4] = float("inf")  # of a token with an Inf
    zeros = torch.zeros(5, 2 * columns, device=DEVICE, dtype=torch.bfloat16)
    for q, scale in (quantize_fp8(sums, silu=True), add_rms_norm_fp8(sums, zeros, ones, 1e-5)[:2]):
        finite = (q.float() * scale[:, None]).isfinite().all(-1)
        assert finite.tolist() == [True, False, False, True, False]
        assert not q[3].float().any()
    scaled = scale_sums(sums, None, torch.bfloat16)
    assert scaled.isfinite().all(-1).tolist() == [True, False, False, True, False]
    assert not scaled[3].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_fused_forward_is_the_plain_one_on_both_sides_of_each_threshold(dtype):
    """But for e4m3 codes that another last bit moves: 2 to 8 % of the logits of random weights, on a CPU too."""
    from sits.kernels.testing import empty_cache, fill_cache, paged_batch
    from sits.models.loading import load_model

    name = "synthetic:llama-3-8b?layers=2"
    model = load_model(name, dtype=dtype, device=DEVICE, quantization="fp8").model
    for layer in model.layers:  # as Qwen2 has it
        layer.qkv_proj.bias = torch.randn(layer.qkv_proj.out_features, device=DEVICE).to(model.dtype)
    fused_forward = model.fused_fp8
    assert fused_forward is not None
    for tokens in (1, 128, 200, 600):
        batch = paged_batch([20] * tokens, [1] * tokens, 16, DEVICE)
        ids = torch.randint(0, 100_000, (tokens,), device=DEVICE)
        logits = []
        for model.fused_fp8 in (fused_forward, None):
            torch.manual_seed(1)  # the same caches for both
            caches = [empty_cache(batch, 8, 128, model.dtype) for _ in range(2)]
            for cache in (cache for pair in caches for cache in pair):
                fill_cache(cache, batch, [20] * tokens, model.dtype)
            with torch.inference_mode():
                logits.append(model.forward(ids, batch, caches, torch.arange(tokens, device=DEVICE)))
        close(logits[0], logits[1], 0.15)
