"""Weight objects and their reference kernels: they compute what their codes say."""

from __future__ import annotations

import pytest
import torch
import yaml

from sits.errors import InputError
from sits.quant.convert import quantize, stack, weight_object
from sits.quant.fp8 import Fp8Codes
from sits.quant.hqq import refine
from sits.quant.int4 import ZERO_KINDS, Int4Codes
from sits.quant.int4_linear import PackedInt4
from sits.quant.plan import plan_from, read_plan
from sits.quant.precision import parse_precision, precision_names


@pytest.mark.parametrize("zero", ZERO_KINDS)
@pytest.mark.parametrize(("rows", "columns", "group"), [(5, 64, 32), (33, 100, 32), (8, 130, 128)])
def test_int4_linear_multiplies_by_the_dequantized_weight(zero, rows, columns, group):
    torch.manual_seed(0)
    codes = Int4Codes.from_dense(torch.randn(rows, columns), group, zero)
    weight = weight_object(codes, torch.randn(rows)).prepack(dtype=torch.float32)
    x = torch.randn(7, columns)
    expected = torch.nn.functional.linear(x.double(), codes.dequantize().double(), weight.bias.double())
    torch.testing.assert_close(weight.apply(x).double(), expected, rtol=1e-4, atol=1e-4)
    assert weight.precision.startswith(f"int4-g{group}")
    torch.testing.assert_close(weight.dequantize(), codes.dequantize(), rtol=0, atol=0)


@pytest.mark.parametrize("columns", [32, 33, 96, 130])
def test_portable_packing_is_exact_and_aligned(columns):
    codes = Int4Codes.from_dense(torch.randn(6, columns), 32, "float")
    packed = PackedInt4.from_codes(codes)
    assert packed.words.stride(0) * 4 % 16 == 0
    back = packed.to_codes()
    assert torch.equal(back.q, codes.q)
    assert torch.equal(back.scale, codes.scale)
    assert torch.equal(back.minimum, codes.minimum)


def test_packed_weight_holds_under_five_bits_per_weight():
    weight = weight_object(Int4Codes.from_dense(torch.randn(64, 1024), 32)).prepack()
    assert weight.codes is None
    assert weight.memory_bytes() * 8 / (64 * 1024) <= 5.01  # 4 + 16 / 32 scale + 16 / 32 minimum


def test_fp8_linear_rounds_activations_per_token_and_sums_exactly():
    torch.manual_seed(0)
    codes = Fp8Codes.from_dense(torch.randn(24, 72))
    weight = weight_object(codes)
    x = torch.randn(5, 72) * torch.logspace(-3, 3, 5).unsqueeze(1)  # tokens of very different size
    exact = x.double() @ codes.dequantize().double().T
    error = (weight.apply(x).double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert bool((error < 0.05).all())  # 3 mantissa bits, averaged over 72 products; the same for every token size
    assert bool((error > 1e-4).all())  # activations really were rounded


def test_fp8_weight_error_is_that_of_e4m3():
    weight = torch.randn(16, 64)
    codes = Fp8Codes.from_dense(weight)
    error = (codes.dequantize() - weight).abs()
    assert bool((error <= torch.maximum(weight.abs() * 2**-4, codes.scale.unsqueeze(1) * 2**-9)).all())
    with pytest.raises(InputError, match="NaN"):
        Fp8Codes.from_dense(torch.full((2, 8), float("nan")))


@pytest.mark.parametrize("zero", ZERO_KINDS)
def test_refinement_lowers_the_error_of_heavy_tailed_weights(zero):
    torch.manual_seed(0)
    weight = torch.distributions.StudentT(4.0).sample((64, 256)) * 0.02
    plain, refined = Int4Codes.from_dense(weight, 64, zero), refine(weight, 64, zero)

    def error(codes):
        return (codes.dequantize() - weight).norm() / weight.norm()

    assert error(refined) < error(plain) * 0.99
    if zero != "float":
        assert refined.zero_points() is not None  # still what a checkpoint can store


def test_stacking_needs_one_format():
    int4, fp8 = (quantize(torch.randn(4, 64), parse_precision(name)) for name in ("int4-g32", "fp8"))
    assert stack([int4, fp8]) is None
    assert stack([int4, int4]).shape == stack([fp8, fp8]).shape == (8, 64)


@pytest.mark.parametrize("name", precision_names())
def test_precision_names_read_back(name):
    assert str(parse_precision(name)) == name


@pytest.mark.parametrize("name", ["int4", "int4-g16", "int8", "INT4-G33", "fp16"])
def test_unknown_precisions_list_the_known_ones(name):
    with pytest.raises(InputError, match="int4-g32"):
        parse_precision(name)


LAYERS = [f"model.layers.{index}.self_attn.{name}_proj" for index in range(2) for name in "qkvo"]


def test_plan_exact_names_beat_patterns_and_the_last_pattern_wins(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "version: 1\ndefault: int4-g32\nlayers:\n"
        "  model.layers.0.self_attn.o_proj: int4-g128-asym\n"
        "  '*.o_proj': dense\n"
        "  'model.layers.1.*': fp8\n"
    )
    plan = read_plan(path)
    plan.check_names(LAYERS)
    chosen = [str(plan.precision_of(name)) for name in (LAYERS[3], LAYERS[7], LAYERS[0], "lm_head")]
    assert chosen == ["int4-g128-asym", "fp8", "int4-g32", "dense"]
    assert plan_from(yaml.safe_load(plan.to_yaml("why"))) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "not a precision plan"),
        ("version: 2\ndefault: fp8", "version 2"),
        ("version: 1\ndefault: int3", "int3"),
        ("version: 1\nlayer: {}", "unknown key 'layer'"),
        ("version: 1\nmethod: magic", "magic"),
        ("version: 1\nlayers: [a]", "must map"),
        ("version: [1", "not valid YAML"),
    ],
)
def test_bad_plans_say_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_plan(path)


def test_plans_are_checked_against_the_model():
    with pytest.raises(InputError, match="does not have"):
        plan_from({"version": 1, "layers": {"model.layers.7.*": "fp8"}}).check_names(LAYERS)
    with pytest.raises(InputError, match="one multiplication"):
        plan_from({"version": 1, "layers": {"*.q_proj": "fp8"}}).check_names(LAYERS)
