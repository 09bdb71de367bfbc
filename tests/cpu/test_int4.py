"""INT4 codes and packing: exact for every shape, and bit-equal to the compressed-tensors library."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.errors import InputError
from sits.quant.int4 import ZERO_KINDS, Int4Codes
from sits.quant.packing import pack_rows, unpack_rows, words_per_row

shapes = st.tuples(st.integers(1, 9), st.integers(1, 200), st.integers(0, 2**31))


def random_codes(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, (rows, columns), generator=generator).to(torch.uint8)


@given(shapes, st.sampled_from([4, 8, 16, 32]))
@settings(max_examples=60, deadline=None)
def test_unpack_inverts_pack_for_every_shape_and_alignment(shape, align):
    codes = random_codes(*shape)
    packed = pack_rows(codes, align)
    assert packed.shape[1] * 4 % align == 0
    assert torch.equal(unpack_rows(packed, codes.shape[1]), codes)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_packing_is_bit_equal_to_compressed_tensors(shape):
    codes = random_codes(*shape)
    assert torch.equal(pack_rows(codes), pack_to_int32((codes.to(torch.int8) - 8), 4))


def test_sixteen_byte_rows_put_every_row_on_a_128_bit_boundary():
    packed = pack_rows(random_codes(3, 33, 0), 16)
    assert packed.shape == (3, words_per_row(33, 16)) == (3, 8)
    assert packed.stride(0) * packed.element_size() % 16 == 0
    assert int(unpack_rows(packed, 64)[:, 33:].max()) == 0  # the padding is defined: code 0


@given(shapes, st.sampled_from([32, 64, 128, 5]), st.sampled_from(ZERO_KINDS))
@settings(max_examples=60, deadline=None)
def test_rounding_error_is_at_most_half_a_step(shape, group, zero):
    rows, columns, seed = shape
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    codes = Int4Codes.from_dense(weight, group, zero, torch.float32)
    error = (codes.dequantize() - weight).abs()
    step = codes.scale.repeat_interleave(group, 1)[:, :columns]
    # The symmetric grid ends at +7 steps and its largest weight is at 7.5; all are within half a step.
    assert bool((error <= step * (0.5 + 1e-4)).all())


@given(shapes, st.sampled_from(ZERO_KINDS), st.sampled_from([torch.float16, torch.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_quantising_a_quantised_weight_keeps_its_values(shape, zero, dtype):
    rows, columns, seed = shape
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    codes = Int4Codes.from_dense(weight, 32, zero, dtype)
    again = Int4Codes.from_zero_points(codes.q, codes.scale, codes.zero_points(), 32) if zero != "float" else codes
    assert torch.equal(again.dequantize(), codes.dequantize())
    if zero == "symmetric":
        assert codes.is_symmetric()


def test_integer_zero_points_represent_zero_exactly():
    weight = torch.rand(4, 64) + 0.5  # far from zero: the range must still reach it
    weight[:, ::7] = 0.0
    codes = Int4Codes.from_dense(weight, 32, "integer")
    assert bool((codes.dequantize()[:, ::7] == 0).all())
    assert codes.zero_points() is not None


def test_float_minimum_has_no_integer_zero_point():
    assert Int4Codes.from_dense(torch.randn(4, 64), 32, "float").zero_points() is None


@pytest.mark.parametrize("zero", ZERO_KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5])
def test_constant_groups(zero, value):
    weight = torch.full((2, 40), value)
    back = Int4Codes.from_dense(weight, 32, zero, torch.float32).dequantize()
    assert torch.isfinite(back).all()
    assert (back - weight).abs().max() <= abs(value) / 15 + 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_weights_are_refused(bad):
    weight = torch.zeros(2, 32)
    weight[1, 3] = bad
    with pytest.raises(InputError, match="NaN or Inf"):
        Int4Codes.from_dense(weight)


def test_scales_that_overflow_half_precision_are_refused():
    with pytest.raises(InputError, match="bfloat16"):
        Int4Codes.from_dense(torch.full((1, 32), 1e7))


def test_wrong_scale_shape_names_both_shapes():
    with pytest.raises(InputError, match=r"\[2, 2\].*\[2, 1\]"):
        Int4Codes(torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 1), torch.zeros(2, 2), 32)


def test_codes_out_of_range_and_short_rows_are_refused():
    with pytest.raises(InputError, match=r"0\.\.15"):
        pack_rows(torch.tensor([[16]]))
    with pytest.raises(InputError, match="needed"):
        unpack_rows(torch.zeros(1, 1, dtype=torch.int32), 9)


def test_stacking_and_row_views():
    first, second = (Int4Codes.from_dense(torch.randn(rows, 64)) for rows in (3, 5))
    both = Int4Codes.cat([first, second])
    assert both.shape == (8, 64)
    assert torch.equal(both.rows(3, 8).dequantize(), second.dequantize())
    with pytest.raises(InputError, match="equal input sizes"):
        Int4Codes.cat([first, Int4Codes.from_dense(torch.randn(3, 32))])
