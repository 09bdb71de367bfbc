"""INT4 weights times e4m3 rows on wgmma, against float64 of the same 8-bit numbers. Odd sizes, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from sits.kernels.cuda import module, rows
from sits.kernels.cuda.small import make_fp8
from sits.kernels.cuda.wgmma_layout import WgmmaInt4, e4m3_order, pack
from sits.kernels.cuda.wgmma_linear import RESIDUAL, SILU_MUL, wgmma_linear
from sits.kernels.cuda.wgmma_shape import fill_stages
from sits.kernels.testing import empty_cache, paged_batch, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not module.is_available(), reason="needs cuda-bindings, NVRTC and an sm_90 device"),
]
DEVICE = "cuda"
BOUND = 6e-3  # the tensor cores' own sums of 32 products, weights that lie half way between two codes, 16 bits of y


def random_weight(
    rows: int, columns: int, dtype: torch.dtype, symmetric: bool = True, interleaved: bool = False
) -> WgmmaInt4:
    """Random codes; rows of very different magnitude."""
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, device=DEVICE)
    magnitude = torch.exp2(-torch.randint(0, 12, (rows, 1), device=DEVICE).float())
    scale = ((torch.rand(rows, -(-columns // 32), device=DEVICE) + 0.5) * 0.01 * magnitude).to(dtype).float()
    minimum = None if symmetric else (-8 * scale * (torch.rand_like(scale) * 0.5 + 0.75)).to(dtype).float()
    return pack(q, scale, minimum, 32, dtype, interleaved)


def rounded(weight: WgmmaInt4) -> torch.Tensor:
    """[N, K] float64: the weight as e4m3 with a scale a row, what the kernel multiplies by."""
    values, scales = make_fp8(weight)
    return values.double() * scales.double()[:, None]


def quantised(batch: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random rows as the kernel takes them, their scales, and their value in float64."""
    x = torch.randn(batch, columns, dtype=dtype, device=DEVICE)
    q, scale = rows.quantize(x, silu=False)
    ordered, same = rows.quantize(x, silu=False, e4m3_order=True)
    assert torch.equal(scale, same)
    assert torch.equal(ordered.view(torch.uint8), e4m3_order(q).view(torch.uint8))
    return ordered, scale, q.double() * scale.double()[:, None]


def poisoned(batch: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((batch, columns), float("nan"), dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("batch", [17, 33, 64, 65, 100, 128, 129, 200, 256, 257, 300, 512])
def test_plain(dtype: torch.dtype, symmetric: bool, batch: int) -> None:
    for count, columns in [(64, 128), (72, 384), (1000, 640), (8960, 512)]:
        weight = random_weight(count, columns, dtype, symmetric)
        x, scale, value = quantised(batch, columns, dtype)
        bias = torch.randn(count, dtype=dtype, device=DEVICE)
        y = poisoned(batch, count, dtype)
        wgmma_linear(weight, x, y, bias=bias, x_scale=scale)
        assert relative_error(y, value @ rounded(weight).T + bias.double()) < BOUND


SHAPES = [
    (32, 2, 2, 2, 4), (64, 2, 2, 2, 2), (64, 2, 2, 3, 2), (96, 2, 1, 2, 2), (128, 2, 1, 2, 2), (128, 1, 2, 2, 2),
    (192, 2, 1, 2, 2), (256, 2, 1, 1, 2), (256, 2, 1, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sizes", SHAPES)
def test_every_launch_shape_over_several_rounds_and_always_the_same(sizes: tuple[int, ...], late: bool) -> None:
    shape = fill_stages(*sizes, late=late, e4m3=True)
    weight = random_weight(64 * 301, 1024, torch.float16)
    x, scale, value = quantised(sizes[0] - 1, 1024, torch.float16)
    first, y = (poisoned(x.shape[0], weight.rows, torch.float16) for _ in range(2))
    wgmma_linear(weight, x, first, x_scale=scale, shape=shape)
    assert relative_error(first, value @ rounded(weight).T) < BOUND
    for _ in range(10):
        y.fill_(float("nan"))
        wgmma_linear(weight, x, y, x_scale=scale, shape=shape)
        assert torch.equal(y, first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [40, 128, 256, 300])
def test_residual_and_silu(dtype: torch.dtype, batch: int) -> None:
    hidden, inner = 640, 1152
    down, gate_up = random_weight(hidden, inner, dtype), random_weight(2 * inner, hidden, dtype, interleaved=True)
    x, scale, value = quantised(batch, inner, dtype)
    residual = torch.randn(batch, hidden, dtype=dtype, device=DEVICE)
    summed = residual.double() + value @ rounded(down).T
    wgmma_linear(down, x, residual, epilogue=RESIDUAL, x_scale=scale)
    assert relative_error(residual, summed) < BOUND
    x, scale, value = quantised(batch, hidden, dtype)
    y = poisoned(batch, inner, dtype)
    wgmma_linear(gate_up, x, y, epilogue=SILU_MUL, x_scale=scale)
    gate, up = (value @ rounded(gate_up).T).chunk(2, dim=1)
    assert relative_error(y, torch.nn.functional.silu(gate) * up) < 2 * BOUND


def test_nan_in_a_row_or_a_scale_stays_visible() -> None:
    q = torch.randint(0, 16, (128, 128), dtype=torch.uint8, device=DEVICE)
    scales = torch.rand(128, 4, device=DEVICE) + 0.5
    x, scale, _ = quantised(70, 128, torch.float16)
    clean, y = (poisoned(70, 128, torch.float16) for _ in range(2))
    wgmma_linear(pack(q, scales, None, 32, torch.float16), x, clean, x_scale=scale)
    assert torch.isfinite(clean).all()
    scales[5, 2] = float("nan")
    wgmma_linear(pack(q, scales, None, 32, torch.float16), x, y, x_scale=scale)
    others = torch.arange(128, device=DEVICE) != 5
    assert torch.isnan(y[:, 5]).all()
    assert torch.equal(y[:, others], clean[:, others])
    x.view(torch.uint8)[33, 7] = 0x7F  # NaN in e4m3
    wgmma_linear(pack(q, scales.nan_to_num(1.0), None, 32, torch.float16), x, y, x_scale=scale)
    assert torch.isnan(y[33]).all()
    assert torch.isfinite(y[32]).all()


@pytest.mark.parametrize("rows", [40, 256])
def test_a_decode_step_differs_from_the_exact_one_by_the_rounding(rows: int, monkeypatch) -> None:
    from sits.models.fused_decode import FusedDecoder
    from sits.models.loading import load_model

    name = "synthetic:llama-3-8b?layers=2"
    model = load_model(name, dtype="bfloat16", device=DEVICE, quantization="int4-g32").model
    batch = paged_batch([70] * rows, [1] * rows, 16, DEVICE)
    tokens = torch.randint(0, 100_000, (rows,), device=DEVICE)
    logits = {}
    for mode in ("exact", "fp8"):
        monkeypatch.setenv("SITS_INT4_DECODE", mode)
        cache = [empty_cache(batch, 8, 128, torch.bfloat16) for _ in range(2)]
        torch.manual_seed(0)
        for pair in cache:
            for tensor in pair:
                tensor.normal_()
        with torch.inference_mode():
            logits[mode] = FusedDecoder(model).forward(tokens, batch, cache)
    error = relative_error(logits["fp8"], logits["exact"])
    assert 1e-4 < error < 0.15
