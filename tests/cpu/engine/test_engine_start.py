"""What lets a GPU engine start sooner, run on the CPU: steps on one layer while others load, excerpts of models."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

from sits.engine.options import EngineOptions
from sits.engine.rehearsal import PARTS, Rehearsal, rehearse
from sits.models.excerpt import excerpt, representative_layers
from sits.models.loading.build import build_model
from sits.models.loading.linear_formats import linear_format_for
from sits.models.loading.synthetic import SyntheticSource, parse_synthetic
from sits.models.presets import preset_config
from sits.models.teacher_forcing import teacher_forced_logits
from sits.quant.convert import quantize, weight_object
from sits.quant.precision import parse_precision

CPU = torch.device("cpu")


def tiny(quantization: str | None = None, config=None, **more):
    config = config or parse_synthetic("synthetic:tiny")[0]
    source = SyntheticSource(config)
    return build_model(
        config,
        source,
        torch.float32,
        CPU,
        max_context=64,
        linear_format=linear_format_for(quantization, source),
        **more,
    )


def test_an_excerpt_of_all_layers_is_the_model():
    model = tiny()
    ids = list(range(5, 25))
    assert torch.equal(teacher_forced_logits(excerpt(model, [0, 1]), ids), teacher_forced_logits(model, ids))
    swapped = teacher_forced_logits(excerpt(model, [1, 0]), ids)
    assert not torch.allclose(swapped, teacher_forced_logits(model, ids))


def test_an_excerpt_computes_prompts_as_the_model_was_told():
    model = tiny()
    assert not excerpt(model, [0]).int4_prompts_at_fp8
    model.set_int4_prefill("fp8")
    assert excerpt(model, [0]).int4_prompts_at_fp8


def test_representative_layers_are_one_of_each_kind_and_the_last():
    config = dataclasses.replace(preset_config("tiny"), layers=5, windows=(0, 8, 0, 8, 0))
    model = tiny(config=config)
    assert representative_layers(model) == [0, 1, 4]
    codes = quantize(model.layers[3].down_proj.dequantize(), parse_precision("int4-g32"))
    model.set_linear("layers.3.down_proj", weight_object(codes).prepack())
    assert representative_layers(model) == [0, 1, 3, 4]
    assert excerpt(model, [1, 4]).config.windows == (8, 0)


@pytest.mark.parametrize("quantization", [None, "int4-g32"])
def test_the_first_layer_is_handed_over_before_the_second_is_read(quantization):
    seen = []

    def first(model):
        seen.append(model)
        assert not any(name.startswith("model.layers.1.") for name in read)
        for part in PARTS:
            rehearse(model, EngineOptions(max_running=3, max_step_tokens=40), part)

    config = parse_synthetic("synthetic:tiny")[0]
    source, read = SyntheticSource(config), []
    plain = source.read_into
    source.read_into = lambda name, out: (read.append(name), plain(name, out))[1]
    model = build_model(
        config, source, torch.float32, CPU, max_context=64, on_first_layer=first,
        linear_format=linear_format_for(quantization, source),
    )  # fmt: skip
    assert len(seen) == 1
    assert [layer is model.layers[0] for layer in seen[0].layers] == [True, True]
    # What the rehearsal has done must not show.
    ids = list(range(5, 25))
    assert torch.equal(teacher_forced_logits(model, ids), teacher_forced_logits(tiny(quantization), ids))


def test_a_rehearsal_that_fails_is_nobodys_problem():
    model = tiny()
    ran = threading.Event()

    def forward(*_):
        ran.set()
        raise torch.OutOfMemoryError("no room")

    model.forward = forward
    rehearsal = Rehearsal(EngineOptions())
    rehearsal.begin(model)
    rehearsal.end()
    assert ran.is_set()
    Rehearsal(EngineOptions(max_model_len=10**6)).begin(model)  # refused by the sizes: also in silence
    Rehearsal(EngineOptions()).end()  # nothing had begun (a CPU, or a model that could not be opened)
