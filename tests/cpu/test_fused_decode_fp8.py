"""The decode step in e4m3 is the exact one where its kernels round nothing: what meets what, in which order.

The kernels themselves need a GPU (tests/gpu/test_cuda_wgmma_e4m3.py); plain PyTorch stands for them here.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sits.kernels.reference.layer import rms_norm, silu_mul
from sits.kernels.testing import empty_cache, paged_batch
from sits.models import fused_decode_fp8
from sits.models.loading import load_model

pytest.importorskip("triton")


@pytest.fixture
def unrounded(monkeypatch):
    """The CUDA kernels, without their rounding: a row divided by its scale of 2 stands for its codes."""
    from sits.kernels.cuda import rows, wgmma_linear
    from sits.kernels.triton import fused_decode

    def norm(x, residual, gain, eps, quantize, e4m3_order):
        assert residual is None
        assert quantize
        assert e4m3_order
        return rms_norm(x, gain, eps) / 2, torch.full(x.shape[:1], 2.0), x

    def quantize(x, silu, e4m3_order):
        assert not silu
        assert e4m3_order
        return x / 2, torch.full(x.shape[:1], 2.0)

    def linear(weight, x, y, *, epilogue=0, bias=None, x_scale=None):
        assert bias is weight.bias
        product = weight.apply(x * x_scale[:, None])
        y.copy_({0: lambda: product, 1: lambda: y + product, 2: lambda: silu_mul(product)}[epilogue]())

    monkeypatch.setattr(rows, "norm", norm)
    monkeypatch.setattr(rows, "quantize", quantize)
    monkeypatch.setattr(wgmma_linear, "wgmma_linear", linear)

    def use(model):
        def attention(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, scale, window):
            return model.ops.rope_attention(qkv, cos_sin, k, v, batch, heads, kv_heads, head_dim, scale, window)

        monkeypatch.setattr(fused_decode, "fused_rope_attention", attention)

    return use


def test_same_logits_as_the_plain_forward(unrounded):
    model = load_model("synthetic:tiny", dtype="float32", device="cpu", quantization="int4-g32").model
    unrounded(model)
    config = model.config
    batch = paged_batch([9, 30, 17], [1, 1, 1], 16)
    tokens = torch.tensor([5, 77, 130])
    packed = [layer.linears() for layer in model.layers]
    logits = []
    for fused in (False, True):
        torch.manual_seed(0)
        cache = [empty_cache(batch, config.kv_heads, config.head_dim, torch.float32) for _ in model.layers]
        for pair in cache:
            for tensor in pair:
                tensor.normal_()
        with torch.inference_mode():
            if fused:
                logits.append(fused_decode_fp8.forward(model, packed, tokens, batch, cache))
            else:
                logits.append(model.forward(tokens, batch, cache, torch.arange(3)))
    assert logits[0].shape == logits[1].shape == (3, config.vocab_size)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "inputs", "asked"), [("fp8", (256, 512), True), ("fp8", (256, 576), False), ("exact", (256,), False)]
)
def test_only_where_it_is_asked_for_and_fits(mode, inputs, asked, monkeypatch):
    layer = SimpleNamespace(linears=lambda: [SimpleNamespace(in_features=count) for count in inputs])
    model = SimpleNamespace(layers=[layer])
    assert not fused_decode_fp8.asked_for(model)
    monkeypatch.setenv("SITS_INT4_DECODE", mode)
    assert fused_decode_fp8.asked_for(model) is asked
