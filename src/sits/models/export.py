"""The files of a Hugging Face folder for a model that does not come from one: config.json and the tokenizer."""

from __future__ import annotations

import json
from typing import Any

from sits.errors import InputError
from sits.models.config import ARCHITECTURES, ModelConfig, RopeConfig
from sits.models.tokenizer import ByteTokenizer, Tokenizer

_CLASSES = {family: name for name, family in ARCHITECTURES.items()}


def config_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """config.json that ``models.config`` and transformers read back to the same model.

    Raises ``InputError`` for rotary scalings that config.json cannot express.
    """
    data: dict[str, Any] = {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_embeddings,
        "rope_theta": config.rope.theta,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) if len(config.eos_ids) > 1 else next(iter(config.eos_ids), None),
        "torch_dtype": dtype,
    }
    if config.rotary_size != config.head_dim:
        data["partial_rotary_factor"] = config.rotary_size / config.head_dim
    if config.windows:
        data["sliding_window"] = max(config.windows)
    elif config.architecture == "mistral":
        data["sliding_window"] = None
    if scaling := _rope_scaling(config.rope):
        data["rope_scaling"] = scaling
    if config.architecture == "phi3":
        data["pad_token_id"] = next(iter(config.eos_ids), 0)
        data["original_max_position_embeddings"] = config.rope.original_max_position or config.max_position
    return data


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    if rope.kind == "factors":
        raise InputError(
            "the rotary factors of this GGUF file cannot be written to config.json",
            "Quantize the original Hugging Face folder instead",
        )
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.original_max_position:
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
    if rope.kind == "longrope":
        scaling |= {"short_factor": list(rope.short_factor), "long_factor": list(rope.long_factor)}
    if rope.attention_factor is not None:
        scaling["attention_factor"] = rope.attention_factor
    return scaling


def tokenizer_files(tokenizer: Tokenizer | ByteTokenizer, max_length: int) -> dict[str, str]:
    """``{file name: text}`` of tokenizer.json and tokenizer_config.json; empty for byte tokenizers."""
    if isinstance(tokenizer, ByteTokenizer):
        return {}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "bos_token": None if tokenizer.bos_id is None else tokenizer.id_to_token(tokenizer.bos_id),
        "eos_token": tokenizer.id_to_token(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
    }
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template.source
    return {
        "tokenizer.json": tokenizer.backend.to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n",
    }
