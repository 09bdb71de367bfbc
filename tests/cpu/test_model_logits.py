"""The decoder against transformers in float32: every family, tiny random weights and SmolLM2's real ones."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
import transformers

from sits.kernels.attention_batch import AttentionBatch
from sits.models.loading import load_model
from sits.models.loading.load import LoadedModel
from sits.quant.kv import allocate_kv_cache

TINY = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * step for step in range(8)],
    "long_factor": [2.0 + step for step in range(8)],
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": ("Llama", {}),
    "llama-3.1 scaling": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama linear scaling": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama yarn": ("Llama", {"rope_parameters": YARN}),
    "llama tied, with biases": (
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied, windows in upper layers": (
        "Qwen2",
        {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "mistral with a window": ("Mistral", {"sliding_window": 20}),
    "phi3": ("Phi3", {"sliding_window": 30}),
    "phi3 longrope": (
        "Phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64, "sliding_window": None},
    ),
    "odd sizes": ("Llama", {"hidden_size": 60, "intermediate_size": 100, "head_dim": 20}),  # no native kernel fits
}


def reference_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def step_logits(loaded: LoadedModel, ids: list[int], chunks: list[int], block_size: int = 8) -> torch.Tensor:
    """Logits of every position, computed in steps of the given token counts over scattered cache blocks."""
    model, config = loaded.model, loaded.config
    count = -(-len(ids) // block_size)
    blocks = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    cache = allocate_kv_cache(
        "auto", config.layers, count, block_size, config.kv_heads, config.head_dim, model.dtype, model.device
    )
    rows, start = [], 0
    for size in chunks:
        end = start + size
        positions = torch.arange(start, end)
        table = torch.tensor([blocks], dtype=torch.int32)
        slots = table[0].long()[positions // block_size] * block_size + positions % block_size
        batch = AttentionBatch(
            positions=positions,
            slots=slots,
            query_start=torch.tensor([0, size], dtype=torch.int32),
            context_lens=torch.tensor([end], dtype=torch.int32),
            block_tables=table,
            block_size=block_size,
            num_decodes=int(size == 1),
            query_lens_host=[size],
            context_lens_host=[end],
            blocks_host=[blocks],
        )
        with torch.inference_mode():
            rows.append(model.forward(torch.tensor(ids[start:end]), batch, cache, torch.arange(size)))
        start = end
    assert start == len(ids)
    return torch.cat(rows)


def random_model(family: str, changes: dict[str, object]) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**TINY, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():  # initial weights are too small to tell a wrong rotation from a right one
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15)
    return model


@pytest.mark.parametrize("case", CASES)
def test_tiny_models_agree_in_prefill_chunks_and_decode(case, tmp_path):
    family, changes = CASES[case]
    reference = random_model(family, changes)
    reference.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    ids = torch.randint(3, 320, (56,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = reference_logits(reference, ids)
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu", max_context=64)
    for chunks in ([56], [30, 1, 1, 1, 16, 1, 6], [1] * 56):
        assert (step_logits(loaded, ids, chunks) - expected).abs().max() < 1e-4, chunks


def test_longrope_takes_the_long_factors_for_long_contexts(tmp_path):
    reference = random_model(*CASES["phi3 longrope"])
    reference.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    ids = torch.randint(3, 320, (100,), generator=torch.Generator().manual_seed(2)).tolist()
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    difference = step_logits(loaded, ids, [100]) - reference_logits(reference, ids)
    assert difference.abs().max() < 1e-4


def test_sharded_checkpoints_load_like_single_ones(tmp_path):
    reference = random_model("Llama", {})
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    make_tokenizer(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    ids = list(range(3, 40))
    assert (step_logits(loaded, ids, [37]) - reference_logits(reference, ids)).abs().max() < 1e-4


def make_tokenizer(folder) -> None:
    """A tokenizer.json of 320 tokens, as every folder needs one."""
    import tokenizers

    vocabulary = {f"t{index}": index for index in range(320)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t0")).save(str(folder / "tokenizer.json"))


# SmolLM2's real weights.


@cache
def smollm2() -> LoadedModel:
    return load_model("smollm2-135m", dtype="float32", device="cpu")


@cache
def reference_smollm2() -> torch.nn.Module:
    path = smollm2().location.path
    assert path is not None
    settings = transformers.GgufConfig(dequantize=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=settings
        ).eval()


def assert_agreement(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """1e-4 for the next token. Over every position and token of the prompt (2 million logits of up to 28) the two
    float32 computations may lie on both sides of the exact value: transformers itself is 6e-5 away from float64."""
    difference = (logits - expected).abs()
    assert difference[-1].max() < 1e-4
    assert difference.max() < 3e-4
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def prompt() -> list[int]:
    tokenizer = smollm2().tokenizer
    text = tokenizer.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    return tokenizer.encode(text + "The capital of France is", add_special_tokens=False)


def test_smollm2_agrees_with_transformers_on_a_chat():
    ids = prompt()
    expected = reference_logits(reference_smollm2(), ids)
    for chunks in ([len(ids)], [len(ids) - 3, 1, 1, 1]):
        assert_agreement(step_logits(smollm2(), ids, chunks), expected)
    assert smollm2().tokenizer.decode([int(expected[-1].argmax())]) == " Paris"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Qwen2", "Mistral", "Phi3"])
def test_real_weights_in_another_family_answer_alike(family, tmp_path):
    source = reference_smollm2()
    config = source.config
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    keys += ("vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
    settings = {key: getattr(config, key) for key in keys}
    new = getattr(transformers, f"{family}Config")(
        **settings,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        pad_token_id=2,
        sliding_window=None,
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(new)
    model.load_state_dict(rehoused(source.state_dict(), config.num_hidden_layers, family), assign=True)
    model.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    ids = prompt()
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    assert loaded.config.architecture == family.lower()
    expected = reference_logits(source, ids)
    assert_agreement(step_logits(loaded, ids, [len(ids)]), expected)


def rehoused(state: dict[str, torch.Tensor], layers: int, family: str) -> dict[str, torch.Tensor]:
    """The same tensors under the names of another family: zero biases for Qwen2, fused rows for Phi-3."""
    state = dict(state)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        if family == "Qwen2":
            for name in ("q_proj", "k_proj", "v_proj"):
                rows = state[f"{prefix}self_attn.{name}.weight"].shape[0]
                state[f"{prefix}self_attn.{name}.bias"] = torch.zeros(rows)
        if family == "Phi3":
            for module, parts, fused in (
                ("self_attn", ("q_proj", "k_proj", "v_proj"), "qkv_proj"),
                ("mlp", ("gate_proj", "up_proj"), "gate_up_proj"),
            ):
                rows = [state.pop(f"{prefix}{module}.{part}.weight") for part in parts]
                state[f"{prefix}{module}.{fused}.weight"] = torch.cat(rows)
    return state
