"""The fused FP8 forward is the plain one in fewer launches: where the operators are exact, the same bits."""

from __future__ import annotations

import pytest
import torch

from sits.kernels.testing import paged_batch
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


def test_what_cannot_be_fused_says_why():
    assert "CUDA" in (FusedFp8.refusal(load_model("synthetic:tiny", device="cpu", quantization="fp8").model) or "")


def test_the_switch_turns_it_off(monkeypatch):
    monkeypatch.setenv("SITS_FUSED_FP8", "0")
    model = load_model("synthetic:tiny", device="cpu", quantization="fp8").model
    assert "SITS_FUSED_FP8" in (FusedFp8.refusal(model) or "")
