"""Every wrong model name, folder or option ends in one InputError that says what to do."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from sits.errors import InputError
from sits.models.loading import load_model, resolve
from sits.models.loading.build import build_model
from sits.models.loading.load import choose_device
from sits.models.loading.synthetic import SyntheticSource, parse_synthetic
from sits.models.presets import PRESETS
from sits.models.teacher_forcing import teacher_forced_logits


@pytest.fixture
def folder(tmp_path):
    """A complete tiny checkpoint without transformers' help."""
    config = PRESETS["tiny"]
    source = SyntheticSource(config)
    tensors = {}
    for name, shape in source._shapes.items():
        tensors[name] = torch.empty(shape)
        source.read_into(name, tensors[name])
    save_file(tensors, tmp_path / "model.safetensors")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    write_tokenizer(tmp_path, 300)
    return tmp_path


def write_tokenizer(folder, size: int) -> None:
    import tokenizers

    vocabulary = {f"t{index}": index for index in range(size)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t0")).save(str(folder / "tokenizer.json"))


def load(folder):
    return load_model(str(folder), dtype="float32", device="cpu")


def test_the_fixture_itself_loads(folder):
    logits = teacher_forced_logits(load(folder).model, [1, 2, 3])
    assert logits.isfinite().all()
    assert logits.std() > 0.1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("smollm2-135n", "Did you mean smollm2-135m"),
        ("no-such-thing", "there is no model"),
        ("./missing.gguf", "does not exist"),
        ("/nowhere/at/all", "does not exist"),
        ("synthetic:llama-9", "no synthetic preset"),
        ("synthetic:tiny?layers=0", "layers=0"),
        ("synthetic:tiny?layers=x", "whole numbers"),
        ("synthetic:tiny?depth=2", "unknown option 'depth'"),
    ],
)
def test_names_that_lead_nowhere(name, text):
    with pytest.raises(InputError, match=text):
        load_model(name, device="cpu")


@pytest.mark.parametrize(("dtype", "device", "text"), [("int3", "cpu", "dtype"), ("auto", "tpu9", "not a device")])
def test_wrong_options(dtype, device, text):
    with pytest.raises(InputError, match=text):
        load_model("synthetic:tiny", dtype=dtype, device=device)


def test_another_gpu_than_the_first_visible_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(InputError, match="first visible GPU") as refused:
        choose_device("cuda:3")
    assert "CUDA_VISIBLE_DEVICES=3" in refused.value.hint


def test_a_model_larger_than_memory_is_refused_before_it_is_built(monkeypatch):
    import psutil

    full = psutil.virtual_memory()._replace(available=10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: full)
    with pytest.raises(InputError, match=r"needs 282\.2 GB of memory in float32, 1\.0 GB are free"):
        load_model("synthetic:llama-3-70b", device="cpu")


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(InputError, match=r"not a \.gguf file"):
        resolve(str(path))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_safetensors(folder, share):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match="truncated or damaged"):
        load(folder)


def test_no_weights_or_only_old_ones(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no safetensors"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="save_pretrained"):
        load(folder)


def test_missing_shard(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="lacks model-00001"):
        load(folder)


def test_missing_and_misshapen_tensors(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, path)
    with pytest.raises(InputError, match=r"no tensor model\.norm\.weight"):
        load(folder)
    save_file({**tensors, "model.norm.weight": norm[:10].clone()}, path)
    with pytest.raises(InputError, match="config asks for"):
        load(folder)


def test_tokenizer_of_another_model(folder):
    write_tokenizer(folder, 513)
    with pytest.raises(InputError, match="tokenizer belongs to another model"):
        load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        load(folder)


# Synthetic models.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_synthetic_logits_are_finite_and_spread(dtype):
    loaded = load_model("synthetic:smollm2-135m?layers=6", dtype=dtype, device="cpu")
    logits = teacher_forced_logits(loaded.model, list(range(20)))
    assert logits.isfinite().all()
    assert 0.2 < logits.std() < 5
    assert len(set(logits.argmax(-1).tolist())) > 10
    assert loaded.card["cut_layers"] == 24
    assert loaded.card["full_layers"] == 30


def test_synthetic_weights_depend_on_the_seed_alone():
    def weights(name: str) -> torch.Tensor:
        return load_model(name, dtype="float32", device="cpu").model.embedding

    assert torch.equal(weights("synthetic:tiny"), weights("synthetic:tiny?seed=0"))
    assert not torch.equal(weights("synthetic:tiny"), weights("synthetic:tiny?seed=1"))


def test_counted_parameters_are_the_built_ones():
    for name in ("tiny", "smollm2-135m"):
        config, _ = parse_synthetic(f"synthetic:{name}")
        model = build_model(config, SyntheticSource(config), torch.bfloat16, torch.device("cpu"))
        built = sum(norm.numel() for layer in model.layers for norm in (layer.input_norm, layer.post_norm))
        built += model.final_norm.numel() + model.embedding.numel()
        built += sum(
            weight.out_features * weight.in_features
            for linear, weight in model.linears()
            if not (linear == "lm_head" and config.tied_embeddings)
        )
        assert built == config.parameters()


@pytest.mark.parametrize("preset", ["llama-3-8b", "llama-3-70b", "phi-3-mini", "qwen2-7b", "mistral-7b"])
def test_presets_have_the_sizes_transformers_counts(preset):
    import transformers

    config = PRESETS[preset]
    family = {"llama": "Llama", "phi3": "Phi3", "qwen2": "Qwen2", "mistral": "Mistral"}[config.architecture]
    settings = getattr(transformers, f"{family}Config")(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        vocab_size=config.vocab_size,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.parameters()
