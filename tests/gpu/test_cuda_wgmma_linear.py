"""The wgmma INT4 linear against float64: every launch shape, epilogue and type, odd sizes, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from sits.kernels.cuda import module
from sits.kernels.cuda.small import make_dense, make_fp8
from sits.kernels.cuda.wgmma_layout import WgmmaInt4, pack, unpack
from sits.kernels.cuda.wgmma_linear import RESIDUAL, SILU_MUL, wgmma_linear
from sits.kernels.cuda.wgmma_shape import fill_stages, square_parts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not module.is_available(), reason="needs cuda-bindings, NVRTC and an sm_90 device"),
]
DEVICE = "cuda"
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 6e-3}
EPS = 1e-5


def random_weight(
    rows: int, columns: int, dtype: torch.dtype, symmetric: bool = True, group: int = 32, interleaved: bool = False
) -> WgmmaInt4:
    """Random codes; rows of very different magnitude."""
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, device=DEVICE)
    magnitude = torch.exp2(-torch.randint(0, 12, (rows, 1), device=DEVICE).float())
    scale = (torch.rand(rows, -(-columns // group), device=DEVICE) + 0.5) * 0.01 * magnitude
    scale = scale.to(dtype).float()
    minimum = None if symmetric else (-8 * scale * (torch.rand_like(scale) * 0.5 + 0.75)).to(dtype).float()
    return pack(q, scale, minimum, group, dtype, interleaved)


def dense(weight: WgmmaInt4) -> torch.Tensor:
    """[N, K] float64, rows in order."""
    q, scale, minimum = (part.double() for part in unpack(weight))
    scale, minimum = (part.repeat_interleave(32, 1)[:, : weight.columns] for part in (scale, minimum))
    return q * scale + minimum


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference).norm() / reference.norm()).item()


def poisoned(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((rows, columns), float("nan"), dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 100, 128, 129, 200, 256, 257, 300])
def test_plain(dtype: torch.dtype, symmetric: bool, batch: int) -> None:
    for rows, columns, group in [(64, 64, 32), (72, 192, 32), (1000, 320, 64), (8960, 512, 128)]:
        weight = random_weight(rows, columns, dtype, symmetric, group)
        x = torch.randn(batch, columns, dtype=dtype, device=DEVICE)
        bias = torch.randn(rows, dtype=dtype, device=DEVICE)
        y = poisoned(batch, rows, dtype)
        wgmma_linear(weight, x, y, bias=bias)
        assert relative_error(y, x.double() @ dense(weight).T + bias.double()) < TOLERANCE[dtype]


SHAPES = [
    (8, 1, 4, 1, 4), (8, 1, 2, 1, 4), (16, 1, 4, 2, 4), (16, 2, 2, 1, 4), (32, 2, 2, 2, 4), (64, 2, 2, 2, 2),
    (64, 2, 2, 3, 2), (64, 2, 2, 1, 2), (96, 2, 1, 2, 2), (128, 2, 1, 2, 1), (128, 1, 2, 2, 2), (192, 2, 1, 2, 1),
    (256, 2, 1, 1, 1), (256, 2, 1, 2, 1), (256, 2, 1, 3, 1),
]  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("sizes", SHAPES)
def test_every_launch_shape_over_several_rounds(sizes: tuple[int, ...], late: bool) -> None:
    shape = fill_stages(*sizes, late=late)
    weight = random_weight(64 * 301, 1024, torch.float16)
    x = torch.randn(sizes[0] - 1, 1024, dtype=torch.float16, device=DEVICE)
    y = poisoned(x.shape[0], weight.rows, torch.float16)
    for _ in range(3):
        wgmma_linear(weight, x, y, shape=shape)
    assert relative_error(y, x.double() @ dense(weight).T) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("batch", [1, 8, 13, 16, 40, 64, 128, 200, 256, 300, 511, 512])
def test_chain_of_residual_norm_and_silu(dtype: torch.dtype, symmetric: bool, batch: int) -> None:
    """down (residual add, gain, squares) -> gate_up (row scale, silu * up): what two halves of a layer do."""
    hidden, inner = 576, 1088
    down = random_weight(hidden, inner, dtype, symmetric)
    gate_up = random_weight(2 * inner, hidden, dtype, symmetric, interleaved=True)
    x = torch.randn(batch, inner, dtype=dtype, device=DEVICE)
    residual = torch.randn(batch, hidden, dtype=dtype, device=DEVICE)
    gain = torch.rand(hidden, dtype=dtype, device=DEVICE) + 0.5
    summed = residual.double() + x.double() @ dense(down).T
    gained = poisoned(batch, hidden, dtype)
    squares = torch.full((batch, square_parts(hidden)), float("nan"), device=DEVICE)
    wgmma_linear(down, x, residual, epilogue=RESIDUAL, next_gain=gain, gained=gained, squares_out=squares)
    assert relative_error(residual, summed) < TOLERANCE[dtype]
    assert relative_error(gained, residual.double() * gain.double()) < TOLERANCE[dtype]
    assert relative_error(squares.sum(1), (residual.double() ** 2).sum(1)) < 1e-5

    y = poisoned(batch, inner, dtype)
    wgmma_linear(gate_up, gained, y, epilogue=SILU_MUL, squares_in=squares, eps=EPS)
    normed = gained.double() * torch.rsqrt(squares.double().sum(1, keepdim=True) / hidden + EPS)
    gate, up = (normed @ dense(gate_up).T).chunk(2, dim=1)
    assert relative_error(y, torch.nn.functional.silu(gate) * up) < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
def test_dense_and_fp8_forms_and_rows_in_order(dtype: torch.dtype, symmetric: bool, interleaved: bool) -> None:
    weight = random_weight(1040, 320, dtype, symmetric, interleaved=interleaved)
    reference = dense(weight)
    error = (make_dense(weight, dtype).double() - reference).abs()
    assert (error <= reference.abs() * (2.0**-10 if dtype == torch.float16 else 2.0**-8) + 1e-9).all()
    values, scales = make_fp8(weight)
    assert relative_error(values.double() * scales.double()[:, None], reference) < 0.04
    x = torch.randn(24, 320, dtype=dtype, device=DEVICE)
    y = poisoned(24, 1040, dtype)
    wgmma_linear(weight, x, y)
    assert relative_error(y, x.double() @ reference.T) < TOLERANCE[dtype]


def test_a_scale_that_is_not_finite_spoils_its_row_only() -> None:
    q = torch.randint(0, 16, (128, 128), dtype=torch.uint8, device=DEVICE)
    scale = torch.rand(128, 4, device=DEVICE) + 0.5
    clean = torch.empty(20, 128, dtype=torch.float16, device=DEVICE)
    x = torch.randn(20, 128, dtype=torch.float16, device=DEVICE)
    wgmma_linear(pack(q, scale, None, 32, torch.float16), x, clean)
    scale[5, 2], scale[77, 0] = float("nan"), float("inf")
    y = torch.empty_like(clean)
    wgmma_linear(pack(q, scale, None, 32, torch.float16), x, y)
    spoilt = torch.zeros(128, dtype=torch.bool, device=DEVICE)
    spoilt[[5, 77]] = True
    assert not torch.isfinite(y[:, spoilt]).any()
    assert torch.equal(y[:, ~spoilt], clean[:, ~spoilt])


def test_inf_in_the_input_reaches_only_its_own_row() -> None:
    weight = random_weight(192, 256, torch.float16)
    x = torch.randn(70, 256, dtype=torch.float16, device=DEVICE)
    clean, y = (torch.empty(70, 192, dtype=torch.float16, device=DEVICE) for _ in range(2))
    wgmma_linear(weight, x, clean)
    x[33, 7] = float("inf")
    wgmma_linear(weight, x, y)
    others = torch.arange(70, device=DEVICE) != 33
    assert torch.equal(y[others], clean[others])
    assert not torch.isfinite(y[33]).any()


def test_same_result_every_time_and_under_capture() -> None:
    weight = random_weight(8192, 1024, torch.float16)
    x = torch.randn(64, 1024, dtype=torch.float16, device=DEVICE)
    first, second = (torch.empty(64, 8192, dtype=torch.float16, device=DEVICE) for _ in range(2))
    wgmma_linear(weight, x, first)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wgmma_linear(weight, x, second)
    for _ in range(20):
        second.fill_(float("nan"))
        graph.replay()
        assert torch.equal(first, second)
