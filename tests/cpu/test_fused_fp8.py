"""The fused FP8 forward is the plain one in fewer launches: where the operators are exact, the same bits.

So it is with products that leave their scales to the kernel after them, whichever of them do.
"""

from __future__ import annotations

import pytest
import torch

from sits.kernels import fp8_product
from sits.kernels.fp8 import quantize_rows
from sits.kernels.fp8_product import Sums
from sits.kernels.fp8_rows import add_rms_norm_fp8, quantize_fp8, scale_sums
from sits.kernels.testing import paged_batch
from sits.models import fused_fp8
from sits.models.fused_decode import FusedDecoder
from sits.models.fused_fp8 import FusedFp8
from sits.models.loading import load_model
from sits.quant.kv import allocate_kv_cache

PROMPTS = [7, 12, 3]


def run(model, forward, kv_dtype):
    """Logits of a step of prompts, then of a step of decode rows over the same cache."""
    shape = model.config
    cache = allocate_kv_cache(
        kv_dtype, shape.layers, 16, 8, shape.kv_heads, shape.head_dim, model.dtype, model.device
    )
    generator = torch.Generator().manual_seed(0)
    results = []
    for lengths, counts in ((PROMPTS, PROMPTS), ([n + 1 for n in PROMPTS], [1] * len(PROMPTS))):
        batch = paged_batch(lengths, counts, 8)
        batch.block_tables = torch.arange(1, 7).view(3, 2).int()  # the same blocks in both steps
        at = [(row, position) for row, n in enumerate(lengths) for position in range(n - counts[row], n)]
        batch.slots = torch.tensor([int(batch.block_tables[row, p // 8]) * 8 + p % 8 for row, p in at])
        tokens = torch.randint(0, shape.vocab_size, (sum(counts),), generator=generator)
        wanted = torch.tensor(counts).cumsum(0) - 1
        results.append(forward(tokens, batch, cache, wanted))
    return results


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_same_logits_as_the_plain_forward(kv_dtype, monkeypatch):
    monkeypatch.setenv("SITS_KERNELS", "*=reference")
    with torch.inference_mode():
        model = load_model("synthetic:tiny", dtype="float32", device="cpu", quantization="fp8").model
        assert model.fused_fp8 is None  # the plain path serves a CPU
        plain = run(model, model.forward, kv_dtype)
        fused = run(model, FusedFp8(model).forward, kv_dtype)
    for a, b in zip(plain, fused):
        assert a.shape == b.shape == (len(PROMPTS), model.config.vocab_size)
        assert a.isfinite().all()
        assert torch.equal(a, b)


def test_replacing_every_linear_searches_the_layers_for_a_fused_forward_once(monkeypatch):
    model = load_model("synthetic:tiny", device="cpu", quantization="fp8").model
    assert model.fused_fp8 is None
    searched = []
    for kind in (FusedFp8, FusedDecoder):
        monkeypatch.setattr(kind, "refusal", lambda *_, kind=kind: searched.append(kind))
        monkeypatch.setattr(kind, "__init__", lambda self, model, *_: setattr(self, "model", model))
    for name, weight in list(model.linears()):
        model.set_linear(name, weight)
    assert searched == []
    for _ in range(2):
        assert isinstance(model.fused_fp8, FusedFp8)  # not what was found before the linears changed
        assert isinstance(model.fused_decoder, FusedDecoder)
    assert searched == [FusedFp8, FusedDecoder]
    model.set_int4_prefill("fp8")
    assert isinstance(model.fused_fp8, FusedFp8)
    assert set(searched[2:]) == {FusedFp8}


@pytest.fixture
def unscaled(monkeypatch):
    """Records (tokens, outputs) of every product without scales."""
    seen = []

    def record(q, scale, weight, weight_scale):
        seen.append((q.shape[0], weight.shape[0]))
        return fp8_product.unscaled_product(q, scale, weight, weight_scale)

    monkeypatch.setattr(fused_fp8, "unscaled_product", record)
    return seen


def outputs(layer):
    return [weight.out_features for weight in layer.linears()]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("most", "pays"), [(512, 128), (512, 4), (22, 0), (21, 3), (0, 0)])
def test_every_form_of_the_products_gives_the_same_logits(most, pays, bias, unscaled, monkeypatch):
    monkeypatch.setenv("SITS_KERNELS", "*=reference")
    monkeypatch.setattr(fused_fp8, "MOST_UNSCALED", most)
    monkeypatch.setattr(fused_fp8, "SCALING_PAYS", pays)
    with torch.inference_mode():
        model = load_model("synthetic:tiny", dtype="float32", device="cpu", quantization="fp8").model
        for weight in (weight for layer in model.layers for weight in layer.linears() if bias):
            weight.bias = torch.randn(weight.out_features)
        plain = run(model, model.forward, "auto")
        fused = run(model, FusedFp8(model).forward, "auto")
    for a, b in zip(plain, fused):
        assert torch.equal(a, b)
    # Two steps: 22 tokens of prompts, then 3 of decoding. The last layer leaves its wanted tokens early.
    last = len(model.layers) - 1
    expected = []
    for step in (sum(PROMPTS), len(PROMPTS)):
        for index, layer in enumerate(model.layers):
            qkv, o, gate_up, down = outputs(layer)
            after = len(PROMPTS) if index == last else step  # tokens once attention is done
            wanted = [(qkv, step, pays, True), (o, after, 0, not bias), (gate_up, after, pays, not bias)]
            wanted += [(down, after, 0, not bias)] if index < last else []
            expected += [(rows, n) for n, rows, above, may in wanted if may and above < rows <= most]
    assert unscaled == expected


def sums(rows, columns, dtype=torch.bfloat16):
    """As large as products of e4m3 get: over what fp16 holds."""
    values = (torch.randn(rows, columns) * 1e6).to(dtype)
    return Sums(values, torch.rand(rows) * 1e-3 + 1e-4, torch.rand(columns) * 1e-2 + 1e-4)


def exact(product):
    return product.values.double() * product.row_scale.double()[:, None] * product.column_scale.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_scaled_and_added_to_a_residual_of_another_type(dtype):
    product, residual, gain = sums(5, 48), torch.randn(5, 48).to(dtype), torch.randn(48).to(dtype)
    q, scale, summed = add_rms_norm_fp8(product, residual, gain, 1e-5)
    assert summed.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(summed.double(), exact(product) + residual.double(), rtol=step, atol=1e-5)
    again, scale_again, same = add_rms_norm_fp8(summed, None, gain, 1e-5)
    assert same is summed
    assert torch.equal(q.view(torch.uint8), again.view(torch.uint8))
    assert torch.equal(scale, scale_again)
    mixed = torch.randn(5, 48).bfloat16()
    _, _, summed = add_rms_norm_fp8(mixed, residual, gain, 1e-5)
    assert torch.equal(summed, (mixed.float() + residual.float()).to(dtype))


def test_gate_and_up_are_quantised_from_sums():
    product = sums(4, 64)
    gate, up = exact(product).chunk(2, -1)
    q, scale = quantize_fp8(product, silu=True)
    wanted, wanted_scale = quantize_rows(torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(scale, wanted_scale)
    torch.testing.assert_close(
        q.float() * scale[:, None], wanted.float() * wanted_scale[:, None], rtol=0.13, atol=1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scaling_rounds_once(dtype):
    product, bias = sums(3, 40), torch.randn(40).to(dtype)
    assert torch.equal(scale_sums(product, None, dtype), product.scaled().to(dtype))
    assert torch.equal(scale_sums(product, bias, dtype), (product.scaled() + bias.float()).to(dtype))


def test_bad_values_stay_visible_in_sums_and_zeros_stay_zeros():
    product = sums(4, 64)
    product.values[1, 3], product.values[2, 40], product.values[3] = float("nan"), float("inf"), 0
    scaled = scale_sums(product, None, torch.bfloat16)
    assert scaled[0].isfinite().all()
    assert scaled[1].isnan().any()
    assert scaled[2].isinf().any()
    assert not scaled[3].any()
    q, scale = quantize_fp8(product, silu=True)
    finite = (q.float() * scale[:, None]).isfinite().all(-1)
    assert finite.tolist() == [True, False, False, True]
    assert not q[3].float().any()


def test_sums_go_only_where_they_are_scaled():
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm_fp8(sums(2, 16), None, torch.ones(16), 1e-5)
    with pytest.raises(ValueError, match="gate"):
        quantize_fp8(sums(2, 16))


def test_what_cannot_be_fused_says_why():
    assert "CUDA" in (FusedFp8.refusal(load_model("synthetic:tiny", device="cpu", quantization="fp8").model) or "")


def test_the_switch_turns_it_off(monkeypatch):
    monkeypatch.setenv("SITS_FUSED_FP8", "0")
    model = load_model("synthetic:tiny", device="cpu", quantization="fp8").model
    assert "SITS_FUSED_FP8" in (FusedFp8.refusal(model) or "")
