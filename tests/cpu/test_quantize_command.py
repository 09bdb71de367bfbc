"""``sits quantize``: what it writes is what transformers + compressed-tensors and SITS load, to the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaConfig, LlamaForCausalLM

from sits.cli.main import cli, run
from sits.models.loading import load_model
from sits.models.loading.load import open_source
from sits.models.loading.resolve import resolve
from sits.models.teacher_forcing import teacher_forced_logits
from sits.quant import checkpoint

TOKENS = torch.arange(3, 23)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama folder with a tokenizer, in float16."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=320, max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).to(torch.float16).save_pretrained(folder)
    Tokenizer(models.WordLevel({f"t{i}": i for i in range(320)}, "t0")).save(str(folder / "tokenizer.json"))
    return folder


def quantize(*arguments: object) -> int:
    return run(cli, "sits", ["quantize", *map(str, arguments), "--quiet"])


def our_logits(folder: Path) -> torch.Tensor:
    return teacher_forced_logits(load_model(str(folder), dtype="float32", device="cpu").model, TOKENS.tolist())


def dense_copy(folder: Path, model: Path) -> LlamaForCausalLM:
    """The float32 model whose linears are the dequantised weights SITS reads from ``folder``."""
    source, _ = open_source(resolve(str(folder)))
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            source.read_checked(name, parameter)
    return reference


def library_logits(folder: Path, **options: object) -> torch.Tensor:
    """What transformers + compressed-tensors compute in float32, FP8 activations included."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    with torch.inference_mode():
        return model(TOKENS[None]).logits[0]


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        (("--to", "int4-g32"), "int4-g32"),
        (("--to", "int4-g64", "--method", "hqq"), "int4-g64"),
        (("--to", "fp8"), "fp8"),
    ],
)
def test_transformers_and_sits_compute_the_same_logits(tiny, tmp_path, arguments, precision):
    out = tmp_path / "out"
    assert quantize(tiny, *arguments, "--out", out) == 0
    torch.testing.assert_close(our_logits(out), library_logits(out), rtol=0, atol=2e-5)
    assert load_model(str(out), device="cpu").card["linear_precisions"] == {precision: 8, "float32": 1}


def test_asymmetric_checkpoints(tiny, tmp_path):
    # transformers allocates unpacked zero points and rejects packed ones, except when it dequantizes while loading;
    # it then rounds the weights to the scales' float16.
    out = tmp_path / "out"
    assert quantize(tiny, "--to", "int4-g128", "--asymmetric", "--out", out) == 0
    library = library_logits(out, quantization_config=CompressedTensorsConfig(dequantize=True))
    dense = dense_copy(out, tiny)
    with torch.inference_mode():
        torch.testing.assert_close(our_logits(out), dense(TOKENS[None]).logits[0], rtol=0, atol=2e-5)
        rounded = dense.half().float()(TOKENS[None]).logits[0]
    torch.testing.assert_close(library, rounded, rtol=0, atol=2e-5)


def test_a_plan_mixes_precisions_in_one_checkpoint(tiny, tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "version: 1\ndefault: int4-g32\nlayers:\n  '*.down_proj': fp8\n  model.layers.1.self_attn.o_proj: dense\n"
    )
    out = tmp_path / "out"
    assert quantize(tiny, "--plan", plan, "--out", out) == 0
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert set(config["ignore"]) == {"lm_head", "model.layers.1.self_attn.o_proj"}
    card = load_model(str(out), device="cpu").card
    assert card["linear_precisions"] == {"int4-g32": 5, "fp8": 2, "float32": 2}
    torch.testing.assert_close(our_logits(out), library_logits(out), rtol=0, atol=2e-5)


def test_report_counts_bytes_and_errors(tiny, tmp_path):
    assert quantize(tiny, "--to", "int4-g32", "--out", tmp_path / "out") == 0
    report = json.loads((tmp_path / "out" / "sits_quantization.json").read_text())
    assert len(report["layers"]) == 14
    assert 0.05 < report["mean_relative_error"] < 0.12  # of RTN INT4 g32 on normal weights
    stored = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert 0 <= stored - report["bytes_after"] < 10_000  # the header


def test_converting_a_quantized_folder_keeps_its_codes(tiny, tmp_path):
    assert quantize(tiny, "--to", "int4-g32", "--method", "hqq", "--out", tmp_path / "a") == 0
    assert quantize(tmp_path / "a", "--to", "int4-g32", "--out", tmp_path / "b") == 0  # rtn would lose the grid
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second


def test_large_models_are_sharded_and_read_back(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.CheckpointWriter.__init__, "__defaults__", (100_000,))
    assert quantize(tiny, "--out", tmp_path / "out") == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) > 2
    assert files == {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    monkeypatch.undo()
    assert quantize(tiny, "--out", tmp_path / "one") == 0
    torch.testing.assert_close(our_logits(tmp_path / "out"), our_logits(tmp_path / "one"), rtol=0, atol=0)


def test_an_existing_folder_is_never_touched(tiny, tmp_path, capsys):
    (tmp_path / "precious").write_text("data")
    assert quantize(tiny, "--out", tmp_path) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "precious").read_text() == "data"


def test_nothing_is_left_behind_when_writing_fails(tiny, tmp_path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    assert quantize(tiny, "--out", tmp_path / "out") == 1
    assert "No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "int4-g16"), "int4-g16"),
        (("--to", "fp8", "--asymmetric"), "for INT4"),
        (("--plan", "missing.yaml"), "cannot read the plan"),
    ],
)
def test_wrong_usage_exits_with_2(tiny, tmp_path, capsys, arguments, message):
    assert quantize(tiny, *arguments, "--out", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_plans_with_float_minimums_or_no_linears_are_refused(tiny, tmp_path, capsys):
    for text, message in (
        ("default: int4-g32-float", "integer zero points"),
        ("default: dense", "nothing to quantize"),
    ):
        plan = tmp_path / "plan.yaml"
        plan.write_text(f"version: 1\n{text}\n")
        assert quantize(tiny, "--plan", plan, "--out", tmp_path / "out") == 2
        assert message in capsys.readouterr().err


def test_synthetic_models_have_nothing_to_convert(tmp_path, capsys):
    assert quantize("synthetic:tiny", "--out", tmp_path / "out") == 2
    assert "no checkpoint to convert" in capsys.readouterr().err


def test_gptq_folders_load_and_convert(tiny, tmp_path):
    """A GPTQ folder made from a quantised one: the same model, and the same codes after conversion back."""
    from safetensors.torch import load_file, save_file

    assert quantize(tiny, "--to", "int4-g32", "--out", tmp_path / "ct") == 0
    folder = tmp_path / "gptq"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((tmp_path / "ct" / name).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, value in load_file(tmp_path / "ct" / "model.safetensors").items():
        module = name.rpartition(".")[0]
        if name.endswith("weight_packed"):  # nibbles along the input: the same words, transposed
            tensors[f"{module}.qweight"] = value.T.contiguous()
        elif name.endswith("weight_scale"):
            tensors[f"{module}.scales"] = value.T.contiguous()
            # Version 1 stores 8 - 1 = 7 for every zero point.
            tensors[f"{module}.qzeros"] = torch.full((value.shape[1], value.shape[0] // 8), 0x77777777).int()
        elif not name.endswith("weight_shape"):
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")
    torch.testing.assert_close(our_logits(folder), our_logits(tmp_path / "ct"), rtol=0, atol=0)
    assert quantize(folder, "--to", "int4-g32", "--out", tmp_path / "back") == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("ct", "back"))
    assert first == second

    for name in list(tensors):  # activation order: any other column order makes the linear dense, with a warning
        if name.endswith("qweight"):
            columns = tensors[name].shape[0] * 8
            tensors[name.replace("qweight", "g_idx")] = (torch.arange(columns) // 32).flip(0).int()
    save_file(tensors, folder / "model.safetensors")
    with pytest.warns(UserWarning, match="activation order"):
        assert load_model(str(folder), device="cpu").card["linear_precisions"] == {"float32": 9}
