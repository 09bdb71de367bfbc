"""The small-batch tensor-core linear against float64: odd shapes, poisoned outputs."""

from __future__ import annotations

import pytest
import torch

from sits.kernels.cuda import module
from sits.kernels.cuda.decode_linear import Shape, decode_linear, default_shape
from sits.kernels.cuda.int4_layout import PackedInt4, pack_int4, unpack_int4
from sits.kernels.cuda.small import EMBED_PARTS, embed, make_dense

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not module.is_available(), reason="needs cuda-bindings, NVRTC and an sm_90 device"),
]
DEVICE = "cuda"
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


def random_int4(rows: int, columns: int, dtype: torch.dtype, minimum: bool, interleaved: bool = False) -> PackedInt4:
    groups = -(-columns // 32)
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, device=DEVICE)
    scale = (torch.rand(rows, groups, device=DEVICE) + 0.5) * 0.01
    low = torch.randn(rows, groups, device=DEVICE) * 0.02 if minimum else None
    return pack_int4(q, scale, low, 32, dtype, interleaved)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 9, 16])
def test_plain(dtype: torch.dtype, minimum: bool, batch: int) -> None:
    for rows, columns in [(64, 256), (1000, 200), (2056, 1032), (512, 8192)]:
        weight = random_int4(rows, columns, dtype, minimum)
        x = torch.randn(batch, columns, dtype=dtype, device=DEVICE)
        bias = torch.randn(rows, dtype=dtype, device=DEVICE)
        y = torch.full((batch, rows), float("nan"), dtype=dtype, device=DEVICE)
        decode_linear(weight, x, y, bias=bias)
        reference = x.double() @ unpack_int4(weight).double().T + bias.double()
        assert relative_error(y, reference) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 3, 8, 16])
@pytest.mark.parametrize("shape", [Shape(1, 4, 4, 4), Shape(2, 8, 4, 1), Shape(4, 4, 2, 1)])
def test_norm_from_partial_sums_of_squares(dtype: torch.dtype, batch: int, shape: Shape) -> None:
    weight = random_int4(528, 1024, dtype, False)
    x = torch.randn(batch, 1024, dtype=dtype, device=DEVICE)
    squares = torch.rand(batch, 37, device=DEVICE) * 100
    y = torch.full((batch, 528), float("nan"), dtype=dtype, device=DEVICE)
    decode_linear(weight, x, y, squares_in=squares, eps=1e-5, shape=shape)
    scale = torch.rsqrt(squares.double().sum(1, keepdim=True) / 1024 + 1e-5)
    assert relative_error(y, (x.double() @ unpack_int4(weight).double().T) * scale) < TOLERANCE[dtype]


def test_inf_in_the_input_reaches_only_its_own_row() -> None:
    weight = random_int4(64, 256, torch.float16, False)
    x = torch.randn(3, 256, dtype=torch.float16, device=DEVICE)
    clean = torch.empty(3, 64, dtype=torch.float16, device=DEVICE)
    decode_linear(weight, x, clean, shape=default_shape(3, 64))
    x[1, 7] = float("inf")
    y = torch.empty_like(clean)
    decode_linear(weight, x, y)
    assert torch.equal(y[[0, 2]], clean[[0, 2]])
    assert not torch.isfinite(y[1]).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_dense_form_and_rows_in_order(dtype: torch.dtype, minimum: bool, interleaved: bool) -> None:
    weight = random_int4(1008, 328, dtype, minimum, interleaved)
    dense = make_dense(weight, dtype)
    torch.testing.assert_close(dense.float(), unpack_int4(weight), rtol=1e-2, atol=1e-4)
    x = torch.randn(3, 328, dtype=dtype, device=DEVICE)
    y = torch.full((3, 1008), float("nan"), dtype=dtype, device=DEVICE)
    decode_linear(weight, x, y)
    assert relative_error(y, x.double() @ unpack_int4(weight).double().T) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_embed(dtype: torch.dtype) -> None:
    table = torch.randn(100, 1000, dtype=dtype, device=DEVICE)
    gain = torch.rand(1000, dtype=dtype, device=DEVICE)
    tokens = torch.tensor([5, 99, 0], device=DEVICE)
    residual, gained, squares = embed(tokens, table, gain)
    assert torch.equal(residual, table[tokens])
    torch.testing.assert_close(gained, table[tokens] * gain)
    assert squares.shape == (3, EMBED_PARTS)
    torch.testing.assert_close(squares.sum(1), table[tokens].float().pow(2).sum(1))
