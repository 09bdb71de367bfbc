"""The real model held as INT4: GGUF Q4_1 keeps its very numbers, and a 4-bit model still answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from sits.errors import InputError
from sits.models.loading import load_model
from sits.models.loading.gguf_source import GGUFSource
from sits.models.loading.resolve import resolve
from sits.models.teacher_forcing import teacher_forced_logits
from sits.quant.int4 import Int4Codes
from sits.quant.quality import Quality

MODEL = "smollm2-135m"


@cache
def loaded(quantization: str | None):
    return load_model(MODEL, quantization=quantization, dtype="float32", device="cpu")


def logits(quantization: str | None, text: str, kv_dtype: str = "auto") -> torch.Tensor:
    model = loaded(quantization)
    return teacher_forced_logits(model.model, model.tokenizer.encode(text), kv_dtype)


TEXT = "The first programmable computer was built in Berlin. It read its program from punched film, and"


LICENCE = Path(__file__).parents[2] / "LICENSE"


def compare(quantization: str | None, text: str, kv_dtype: str = "auto") -> Quality:
    """Against the dense float32 model."""
    targets = torch.tensor(loaded(None).tokenizer.encode(text)[1:])
    quality = Quality()
    quality.add(logits(None, text)[:-1], logits(quantization, text, kv_dtype)[:-1], targets)
    return quality


def test_requantizing_real_q4_1_tensors_with_a_float_minimum_is_lossless():
    source = GGUFSource(resolve(MODEL).path)
    checked = 0
    for layer in (0, 14, 29):
        for module in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"):
            name = f"model.layers.{layer}.{module}.weight"
            dense = torch.empty(source.shape(name))
            source.read_into(name, dense)
            stored = source.stored_codes(name)
            assert isinstance(stored, Int4Codes)
            # Decoded by us and by the gguf package: the same float32 numbers, rotary row order included.
            assert torch.equal(stored.dequantize(), dense)
            again = Int4Codes.from_dense(dense, 32, "float")
            assert torch.equal(again.dequantize(), dense)
            checked += 1
    assert checked == 9


def test_model_held_as_stored_int4_gives_the_dense_logits():
    assert compare("int4-g32", TEXT).kl < 1e-6  # the same weights; two kernels add in different orders
    cards = loaded(None).card, loaded("int4-g32").card
    assert cards[1]["linear_precisions"] == {"int4-g32-float": 120, "float32": 1}
    assert cards[1]["weight_bytes"] < 0.35 * cards[0]["weight_bytes"]


@pytest.mark.parametrize(
    ("quantization", "kv", "most_kl", "most_change"),
    [
        ("int4-g32", "auto", 1e-6, 1e-4),  # the file's own codes: no loss at all
        ("int4-g32", "int8", 0.01, 0.02),
        ("fp8", "auto", 0.12, 0.08),
    ],
)
def test_perplexity_on_a_licence_stays_near_full_precision(quantization, kv, most_kl, most_change):
    quality = compare(quantization, LICENCE.read_text()[:600], kv)
    assert 90 < quality.tokens < 200
    assert 5 < quality.reference_perplexity < 40  # the model does read the text
    assert quality.kl <= most_kl
    assert abs(quality.perplexity / quality.reference_perplexity - 1) <= most_change
    if kv != "auto" or quantization == "fp8":
        assert quality.kl > 1e-5  # it really went through 8 bits


@pytest.mark.parametrize(("quantization", "kv"), [(None, "auto"), ("int4-g32", "int8"), ("fp8", "auto")])
def test_one_word_answer_survives_quantization(quantization, kv):
    model = loaded(quantization)
    answer = logits(quantization, "The capital of France is", kv)[-1].argmax()
    assert model.tokenizer.decode([int(answer)]).strip() == "Paris"


def test_unknown_quantization_is_an_input_error():
    with pytest.raises(InputError, match="int4-g32"):
        load_model(MODEL, quantization="int5")
