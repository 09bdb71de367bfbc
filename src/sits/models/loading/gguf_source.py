"""GGUF as a weight source: metadata becomes a ModelConfig, tensors get their Hugging Face names and row order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sits.errors import InputError
from sits.models.config import ModelConfig, RopeConfig
from sits.models.loading.fingerprint import file_hash
from sits.models.loading.source import WeightSource
from sits.quant.formats import WeightCodes
from sits.quant.gguf import GGUFFile
from sits.quant.gguf_int4 import BLOCK_BYTES, codes_from_blocks

FAMILIES = {"llama": "llama", "qwen2": "qwen2", "phi3": "phi3"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",  # phi3 stores gate and up together under this name
    "mlp.down_proj": "ffn_down",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """ModelConfig of a GGUF file. Raises ``InputError`` for an architecture or scaling that is not supported."""
    metadata = file.metadata
    name = str(metadata.get("general.architecture"))
    family = FAMILIES.get(name)
    if family is None:
        raise InputError(
            f"{file.path}: GGUF architecture {name!r} is not supported", f"Supported: {', '.join(sorted(FAMILIES))}"
        )

    def need(key: str) -> Any:
        value = metadata.get(f"{name}.{key}")
        if value is None:
            raise InputError(f"{file.path}: metadata {name}.{key} is missing", "The file is damaged or incomplete")
        return value

    layers, hidden, heads = need("block_count"), need("embedding_length"), need("attention.head_count")
    head_dim = metadata.get(f"{name}.attention.key_length", hidden // max(heads, 1))
    window = metadata.get(f"{name}.attention.sliding_window") or 0
    embedding = file.tensors.get("token_embd.weight")
    tokens = embedding.shape[0] if embedding else len(metadata.get("tokenizer.ggml.tokens", ()))
    if metadata.get(f"{name}.expert_count"):
        raise InputError(f"{file.path}: mixture-of-experts GGUF files are not supported")
    eos = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    return ModelConfig(
        architecture=family,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=metadata.get(f"{name}.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=need("feed_forward_length"),
        vocab_size=tokens,
        max_position=need("context_length"),
        norm_eps=float(need("attention.layer_norm_rms_epsilon")),
        rope=_rope(file, name),
        rotary_dim=metadata.get(f"{name}.rope.dimension_count", head_dim),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        tied_embeddings="output.weight" not in file.tensors,
        windows=(int(window),) * layers if window else (),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=tuple(dict.fromkeys(token for token in eos if token is not None)),
    )


def _rope(file: GGUFFile, name: str) -> RopeConfig:
    metadata = file.metadata
    theta = float(metadata.get(f"{name}.rope.freq_base", 10000.0))
    context = int(metadata[f"{name}.context_length"])
    original = int(metadata.get(f"{name}.rope.scaling.original_context_length") or context)
    attention = metadata.get(f"{name}.rope.scaling.attn_factor")

    def factors(tensor: str) -> tuple[float, ...]:
        return tuple(file.dequantize(tensor).reshape(-1).tolist())

    if "rope_freqs.weight" in file.tensors:
        return RopeConfig(theta, "factors", short_factor=factors("rope_freqs.weight"))
    if "rope_factors_long.weight" in file.tensors:
        return RopeConfig(
            theta,
            "longrope",
            factor=context / original,
            original_max_position=original,
            short_factor=factors("rope_factors_short.weight"),
            long_factor=factors("rope_factors_long.weight"),
            attention_factor=None if attention is None else float(attention),
        )
    kind = str(metadata.get(f"{name}.rope.scaling.type") or "none")
    factor = float(metadata.get(f"{name}.rope.scaling.factor") or 1.0)
    if kind == "none" or factor == 1.0:
        return RopeConfig(theta)
    return RopeConfig(theta, kind, factor=factor, original_max_position=original)


class GGUFSource(WeightSource):
    """Tensors of a GGUF file under their Hugging Face names.

    llama.cpp stores the q and k rows of the ``llama`` architecture in interleaved rotary order; they are put back
    into the half-split order here. Other architectures keep their order.
    """

    def __init__(self, path: str | Path):
        self.file = GGUFFile(path)
        self.name = str(path)
        self.config = config_from_gguf(self.file)

    def _locate(self, tensor: str) -> str | None:
        stored = _TOP_NAMES.get(tensor)
        if stored is None and tensor.startswith("model.layers."):
            _, _, index, rest = tensor.split(".", 3)
            module, _, kind = rest.rpartition(".")
            split = f"blk.{index}.ffn_gate.weight" in self.file.tensors
            if module == ("mlp.gate_up_proj" if split else "mlp.up_proj"):
                return None
            stored = f"blk.{index}.{_LAYER_NAMES[module]}.{kind}" if module in _LAYER_NAMES else None
        return stored if stored in self.file.tensors else None

    def names(self) -> list[str]:
        """Hugging Face names of all tensors but rotary factors (those are part of the config)."""
        found = [name for name in _TOP_NAMES if self._locate(name)]
        for index in range(self.config.layers):
            for module in _LAYER_NAMES:
                names = (f"model.layers.{index}.{module}.{kind}" for kind in ("weight", "bias"))
                found += [name for name in names if self._locate(name)]
        return found

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        stored = self._locate(tensor)
        return self.file.tensors[stored].shape if stored else None

    def read_into(self, tensor: str, out: torch.Tensor) -> None:
        stored = self._locate(tensor)
        assert stored is not None
        order = self.row_order(tensor)
        rows = out.view(-1, out.shape[-1]) if out.dim() > 1 else out.view(1, -1)
        for first, count in self.file.row_blocks(stored):
            decoded = self.file.dequantize(stored, first, count)
            values = torch.from_numpy(decoded if decoded.flags.writeable else np.array(decoded))
            if order is None:
                rows[first : first + count].copy_(values)
            elif out.dim() == 1:
                rows[0].copy_(values.reshape(-1)[order])
            else:
                target = torch.empty_like(order)
                target[order] = torch.arange(len(order))
                rows.index_copy_(0, target[first : first + count].to(out.device), values.to(out))

    def stored_codes(self, tensor: str, device: torch.device | str = "cpu") -> WeightCodes | None:
        stored = self._locate(tensor)
        if stored is None or self.file.tensors[stored].type_name not in BLOCK_BYTES:
            return None
        raw = torch.from_numpy(self.file.raw(stored).copy()).to(device)
        codes = codes_from_blocks(raw, self.file.tensors[stored].type_name)
        order = self.row_order(tensor)
        return codes if order is None else codes.select(order.to(device))

    def row_order(self, tensor: str) -> torch.Tensor | None:
        """Stored row for each wanted row of a q or k projection, or None when the order is right already."""
        if self.config.architecture != "llama" or ".self_attn." not in tensor:
            return None
        heads = {"q_proj": self.config.heads, "k_proj": self.config.kv_heads}.get(tensor.split(".")[-2])
        if heads is None:
            return None
        half = self.config.head_dim // 2
        # Stored: [heads, half, 2]; wanted: [heads, 2, half].
        return torch.arange(heads * 2 * half).view(heads, half, 2).transpose(1, 2).reshape(-1)

    def weight_hash(self) -> dict[str, str]:
        return file_hash([self.file.path])

    def storage(self) -> dict[str, int]:
        """Elements stored in each format, for the card."""
        counts: dict[str, int] = {}
        for tensor in self.file.tensors.values():
            counts[tensor.type_name] = counts.get(tensor.type_name, 0) + math.prod(tensor.shape)
        return counts
