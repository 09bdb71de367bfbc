"""A tokenizer from GGUF metadata: byte-level BPE with the pre-tokeniser the file names.

The splitting rules are those of the models' own ``tokenizer.json``; the file only carries a rule's name
(``tokenizer.ggml.pre``), the vocabulary, the merges and the token types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sits.errors import InputError, MissingExtraError
from sits.models.chat_template import ChatTemplate
from sits.models.config import ModelConfig
from sits.models.tokenizer import Tokenizer
from sits.quant.gguf import GGUFFile

_CONTROL, _USER_DEFINED = 3, 4  # token types that are matched as a whole in the text

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _smollm(tokenizers: Any) -> tuple[Any, Any]:
    pre = tokenizers.pre_tokenizers
    return None, [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)]


def _gpt2(tokenizers: Any) -> tuple[Any, Any]:
    return None, [tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


def _split(pattern: str, normalize: bool = False) -> Callable[[Any], tuple[Any, Any]]:
    def rule(tokenizers: Any) -> tuple[Any, Any]:
        pre = tokenizers.pre_tokenizers
        split = pre.Split(tokenizers.Regex(pattern), behavior="isolated", invert=False)
        return tokenizers.normalizers.NFC() if normalize else None, [
            split,
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]

    return rule


_RULES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "smollm": _smollm,
    "gpt-2": _gpt2,
    "llama-bpe": _split(_LLAMA3_SPLIT),
    "llama3": _split(_LLAMA3_SPLIT),
    "llama-v3": _split(_LLAMA3_SPLIT),
    "qwen2": _split(_QWEN2_SPLIT, normalize=True),
}
# llama.cpp adds the begin token of these unless the file says otherwise.
_ADDS_BOS = ("llama-bpe", "llama3", "llama-v3")


def tokenizer_from_gguf(file: GGUFFile, config: ModelConfig) -> Tokenizer:
    """Tokenizer of a GGUF file. Raises ``InputError`` for tokenizer models or splitting rules that are not known."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("Tokenizing text", "engine") from error
    metadata = file.metadata
    kind, rule_name = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre", "default"))
    rule = _RULES.get(rule_name)
    if kind != "gpt2" or rule is None:
        raise InputError(
            f"{file.path}: tokenizer {kind!r} with splitting rule {rule_name!r} is not supported in GGUF files",
            f"Supported: gpt2 with {', '.join(_RULES)}; or use the model's Hugging Face folder",
        )
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    if not tokens:
        raise InputError(f"{file.path} has no vocabulary", "Use a complete model file, not a part of one")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 spells some tokens whose merges lead elsewhere: a whole piece that is a token stays one.
    model = tokenizers.models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=rule_name in _ADDS_BOS)
    backend = tokenizers.Tokenizer(model)
    normalizer, pieces = rule(tokenizers)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(pieces)
    backend.decoder = tokenizers.decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or []
    backend.add_special_tokens(_added(tokenizers, tokens, types, _CONTROL, special=True))
    backend.add_tokens(_added(tokenizers, tokens, types, _USER_DEFINED, special=False))
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", rule_name in _ADDS_BOS):
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    template = metadata.get("tokenizer.chat_template")
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    special = {
        key: tokens[index]
        for key, name in names.items()
        if (index := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None and index < len(tokens)
    }
    return Tokenizer(
        backend,
        eos_ids=config.eos_ids,
        bos_id=bos,
        chat_template=ChatTemplate(template, special) if isinstance(template, str) else None,
    )


def _added(tokenizers: Any, tokens: list[str], types: list[int], wanted: int, special: bool) -> list[Any]:
    return [
        tokenizers.AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, types)
        if kind == wanted
    ]
