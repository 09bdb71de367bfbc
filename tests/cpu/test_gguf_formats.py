"""GGUF tensors in every supported format are what the gguf package decodes; row order and faults of files."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from sits.errors import InputError
from sits.models.loading import load_model
from sits.models.loading.gguf_source import GGUFSource
from sits.quant.gguf import GGUFFile

HIDDEN, FFN, HEADS, KV_HEADS, VOCAB, LAYERS = 256, 512, 4, 2, 300, 1
Q = gguf.GGMLQuantizationType
FORMATS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K"]


def stored(rows: int, columns: int, kind: Q, seed: int) -> np.ndarray:
    """A random tensor in a format: quantised where the gguf package can, else random blocks with small scales."""
    generator = np.random.default_rng(seed)
    dense = (generator.standard_normal((rows, columns)) * 0.05).astype(np.float32)
    try:
        return gguf.quants.quantize(dense, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = generator.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
        half = np.frombuffer(np.float16(0.001).tobytes(), dtype=np.uint8)
        # The half-precision scales sit first (Q4_K, Q5_K) or last (Q6_K, Q3_K; Q2_K has two there).
        if kind in (Q.Q4_K, Q.Q5_K):
            blocks[..., :2], blocks[..., 2:4] = half, half
        else:
            blocks[..., -2:] = half
            if kind == Q.Q2_K:
                blocks[..., -4:-2] = half
        return blocks.reshape(rows, -1)


def write_model(
    path, kind: Q, architecture: str = "llama", leave_out: str = "", **changes: int
) -> dict[str, np.ndarray]:
    """A one-layer GGUF model; returns the decoded tensors."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(changes.get("hidden", HIDDEN))
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    writer.add_token_merges([])
    decoded = {}
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "token_embd": (VOCAB, HIDDEN),
        "output": (VOCAB, HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    for seed, (name, shape) in enumerate(shapes.items()):
        data = stored(*shape, kind, seed)
        decoded[name] = gguf.quants.dequantize(data, kind)
        if name != leave_out:
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_decodes_as_the_gguf_package_does(name, tmp_path):
    path = tmp_path / "model.gguf"
    decoded = write_model(path, Q[name])
    source = GGUFSource(path)
    for tensor, stored_name in (
        ("model.embed_tokens.weight", "token_embd"),
        ("lm_head.weight", "output"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down"),
    ):
        out = torch.empty(source.shape(tensor))
        source.read_into(tensor, out)
        assert torch.equal(out, torch.from_numpy(decoded[stored_name])), tensor
        assert out.abs().max() > 0


def test_the_header_reader_agrees_with_the_gguf_package(tmp_path):
    path = tmp_path / "model.gguf"
    write_model(path, Q.Q4_K)
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    assert {name: entry.offset for name, entry in ours.tensors.items()} == {
        tensor.name: tensor.data_offset for tensor in theirs.tensors
    }
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert ours.metadata[name] == field.contents(), name


@pytest.mark.parametrize(("architecture", "permuted"), [("llama", True), ("qwen2", False)])
def test_rotary_rows_of_q_and_k_come_back_in_half_split_order(architecture, permuted, tmp_path):
    path = tmp_path / "model.gguf"
    decoded = write_model(path, Q.Q4_1, architecture)
    source = GGUFSource(path)
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        out = torch.empty(source.shape(f"model.layers.0.self_attn.{name}_proj.weight"))
        source.read_into(f"model.layers.0.self_attn.{name}_proj.weight", out)
        interleaved = torch.from_numpy(decoded[f"blk.0.attn_{name}"])
        if (
            permuted
        ):  # what llama.cpp's converter did, undone by its definition: row (head, j, side) -> (head, side, j)
            half = out.shape[0] // heads // 2
            interleaved = interleaved.view(heads, half, 2, HIDDEN).transpose(1, 2).reshape(-1, HIDDEN)
        assert torch.equal(out, interleaved)


def test_a_written_model_loads_and_runs(tmp_path):
    from sits.models.teacher_forcing import teacher_forced_logits

    path = tmp_path / "model.gguf"
    write_model(path, Q.Q6_K)
    loaded = load_model(str(path), dtype="float32", device="cpu")
    logits = teacher_forced_logits(loaded.model, list(range(10)))
    assert logits.shape == (10, VOCAB)
    assert logits.isfinite().all()
    assert len(loaded.card["sha256"]) == 64


# Faults.


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.02, 0.5, 0.999])
def test_a_file_cut_anywhere_is_refused(share, tmp_path):
    path = tmp_path / "model.gguf"
    write_model(path, Q.Q8_0)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError, match=r"truncated|cannot read|not a GGUF"):
        load_model(str(path), dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"architecture": "gemma3"}, "gemma3.*not supported"),
        ({"leave_out": "blk.0.ffn_down"}, r"no tensor model\.layers\.0\.mlp\.down_proj"),
        ({"hidden": 128}, "config asks for"),
    ],
)
def test_files_that_do_not_fit_are_refused(settings, text, tmp_path):
    path = tmp_path / "model.gguf"
    write_model(path, Q.F16, **settings)
    with pytest.raises(InputError, match=text):
        load_model(str(path), dtype="float32", device="cpu")


def test_an_unknown_tensor_type_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    write_model(path, Q.Q8_0)
    data = bytearray(path.read_bytes())
    at = data.find(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    data[at : at + 4] = (20).to_bytes(4, "little")  # IQ4_NL
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="IQ4_NL, which is not supported"):
        load_model(str(path), dtype="float32", device="cpu")
