"""An engine that cannot do what its options ask for says so."""

from __future__ import annotations

import pytest

from sits.engine.options import EngineOptions, build_core
from sits.models.loading import load_model


def notes_of(model, **settings):
    return build_core(model, EngineOptions(kv_blocks=8, max_running=2, max_model_len=64, **settings), 128)[1]


class Other:
    """A model without a choice of arithmetic for its prompts, or with one that refuses nothing."""

    def __init__(self, model, **more):
        for name in ("config", "device", "dtype", "forward"):
            setattr(self, name, getattr(model, name))
        self.__dict__.update(more)


@pytest.fixture(scope="module")
def tiny():
    return load_model("synthetic:tiny", dtype="float32", device="cpu", quantization="int4-g32").model


def test_fp8_prompts_are_refused_aloud_where_there_are_none(tiny):
    assert notes_of(tiny) == []
    assert notes_of(tiny, int4_prefill="fp8") == ["int4_prefill=fp8 has no effect: needs a CUDA device"]
    (note,) = notes_of(Other(tiny), int4_prefill="fp8")
    assert "has no effect: this model" in note


def test_fp8_prompts_need_steps_long_enough(tiny):
    told = []
    model = Other(tiny, set_int4_prefill=told.append)
    (note,) = notes_of(model, int4_prefill="fp8", max_step_tokens=512)
    assert "1024" in note
    assert "max_step_tokens is 512" in note
    assert notes_of(model, int4_prefill="fp8", max_step_tokens=1024) == []
    assert told == ["fp8", "fp8"]
    assert notes_of(model) == []
    assert told == ["fp8", "fp8", "exact"]


def test_an_engine_does_not_inherit_the_arithmetic_of_the_one_before(tiny, monkeypatch):
    notes_of(tiny, int4_prefill="fp8")
    assert tiny.int4_prompts_at_fp8
    notes_of(tiny)
    assert not tiny.int4_prompts_at_fp8
    monkeypatch.setenv("SITS_INT4_PREFILL", "fp8")
    notes_of(tiny)
    assert tiny.int4_prompts_at_fp8
    notes_of(tiny, int4_prefill="exact")
    assert not tiny.int4_prompts_at_fp8
