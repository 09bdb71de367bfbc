"""ModelConfig from Hugging Face dictionaries and presets (no torch)."""

from __future__ import annotations

import json

import pytest

from sits.errors import InputError
from sits.models.config import ModelConfig, RopeConfig
from sits.models.hugging_face_config import from_hugging_face, read_config
from sits.models.presets import PRESETS, preset_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": [7, 9],
}


def llama(**changes: object) -> ModelConfig:
    return from_hugging_face({**LLAMA, **changes})


def test_old_and_new_rope_keys_mean_the_same():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    old = llama(rope_theta=5e5, rope_scaling=scaling)
    new = llama(rope_parameters={"rope_theta": 5e5, **scaling})
    assert old.rope == new.rope
    assert old.rope.kind == "llama3"
    assert old.rope.theta == 5e5
    assert old.rope.original_max_position == 256


def test_defaults_of_a_plain_llama():
    config = llama()
    assert config.rope == RopeConfig(theta=10000.0, original_max_position=512)
    assert config.head_dim == 16
    assert config.rotary_size == 16
    assert config.eos_ids == (7, 9)
    assert not config.qkv_bias
    assert config.windows == ()


def test_biases_follow_the_family():
    assert llama(architectures=["Qwen2ForCausalLM"]).qkv_bias
    assert not llama(architectures=["Qwen2ForCausalLM"]).output_bias
    with_bias = llama(attention_bias=True, mlp_bias=True)
    assert with_bias.qkv_bias
    assert with_bias.output_bias
    assert with_bias.mlp_bias


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, (8, 8)),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, ()),
        ({"architectures": ["MistralForCausalLM"]}, (4096, 4096)),  # transformers' default when the key is absent
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 8}, ()),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, ()),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (0, 8),
        ),
    ],
)
def test_sliding_windows(changes, windows):
    assert llama(**changes).windows == windows


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "LlamaForCausalLM"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "layers"),
        ({"num_key_value_heads": 3}, "evenly"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(changes, text):
    with pytest.raises(InputError, match=text):
        llama(**changes)


def test_reading_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(InputError, match="cannot read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert read_config(tmp_path).eos_ids == (5,)


# Counted by transformers on the meta device.
@pytest.mark.parametrize(
    ("preset", "parameters", "kv_kib"),
    [
        ("llama-3-8b", 8_030_261_248, 128),
        ("llama-3-70b", 70_553_706_496, 320),
        ("phi-3-mini", 3_821_079_552, 384),
        ("qwen2-7b", 7_615_616_512, 56),
        ("mistral-7b", 7_248_023_552, 128),
        ("smollm2-135m", 134_515_008, 22.5),
    ],
)
def test_presets_have_the_true_sizes(preset, parameters, kv_kib):
    config = PRESETS[preset]
    assert config.parameters() == parameters
    assert config.kv_bytes_per_token(2) == kv_kib * 1024
    assert config.card()["parameters"] == parameters


def test_a_cut_preset_says_so():
    whole, cut = preset_config("phi-3-mini"), preset_config("phi-3-mini", 4)
    assert "cut_layers" not in whole.card()
    assert cut.layers == 4
    assert len(cut.windows) == 4
    assert cut.card()["cut_layers"] == 28
    assert cut.card()["full_layers"] == 32
    with pytest.raises(InputError, match="layers=99"):
        preset_config("phi-3-mini", 99)
    with pytest.raises(InputError, match="Presets"):
        preset_config("llama-9")
