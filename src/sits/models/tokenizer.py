"""Text to token ids and back, and chat templates: one class over every place a tokenizer can come from.

From a Hugging Face folder: its ``tokenizer.json``. From GGUF metadata: ``models/gguf_tokenizer``. Synthetic models
have no vocabulary: ``ByteTokenizer`` stands in. Incremental detokenisation is the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sits.errors import InputError, MissingExtraError
from sits.models.chat_template import ChatTemplate
from sits.models.config import ModelConfig
from sits.models.loading.resolve import ModelLocation
from sits.models.loading.source import WeightSource


class Tokenizer:
    """Wraps a ``tokenizers.Tokenizer``. Ids outside its vocabulary (padded embeddings) decode to nothing."""

    def __init__(
        self,
        backend: Any,
        *,
        eos_ids: Sequence[int] = (),
        bos_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ):
        self.backend = backend
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self.chat_template = chat_template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in the text become their ids."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; incomplete UTF-8 becomes U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_to_id(self, token: str) -> int | None:
        """Id of one token, None when it is not in the vocabulary."""
        return self.backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id (byte-level alphabet, not text)."""
        return self.backend.id_to_token(token_id)

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt text of a conversation. Encode it with ``add_special_tokens=False``.

        Raises ``InputError`` when the model has no chat template or the template refuses the messages.
        """
        if self.chat_template is None:
            raise InputError("this model has no chat template", "Send a plain prompt instead of messages")
        return self.chat_template.render(messages, add_generation_prompt, **variables)


class ByteTokenizer:
    """Stand-in for models without a vocabulary: a text is its UTF-8 bytes, other ids decode to `` t<id>``."""

    def __init__(self, vocab_size: int, eos_ids: Sequence[int] = (), bos_id: int | None = None):
        if vocab_size < 256:
            raise InputError(f"a vocabulary of {vocab_size} cannot hold the 256 bytes")
        self.vocab_size = vocab_size
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self.chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """UTF-8 bytes as ids 0..255."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Bytes as UTF-8 text; an id past 255 is written out as a word."""
        pieces = bytearray()
        for token in ids:
            pieces += bytes((token,)) if token < 256 else f" t{token}".encode()
        return pieces.decode("utf-8", errors="replace")

    def token_to_id(self, token: str) -> int | None:
        """Id of a one-byte text."""
        raw = token.encode("utf-8")
        return raw[0] if len(raw) == 1 else None

    def id_to_token(self, token_id: int) -> str | None:
        """Text of one id."""
        return self.decode([token_id])

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Role and content, line by line: a synthetic model only needs a prompt of about the right length."""
        lines = [f"{message.get('role', 'user')}: {message.get('content', '')}" for message in messages]
        return "\n".join([*lines, "assistant:"] if add_generation_prompt else lines)


def load_tokenizer(location: ModelLocation, source: WeightSource, config: ModelConfig) -> Tokenizer | ByteTokenizer:
    """The tokenizer that belongs to a model. Raises ``InputError`` when there is none or it does not fit."""
    if location.kind == "synthetic":
        return ByteTokenizer(config.vocab_size, config.eos_ids, config.bos_id)
    if location.kind == "gguf":
        from sits.models.gguf_tokenizer import tokenizer_from_gguf
        from sits.models.loading.gguf_source import GGUFSource

        assert isinstance(source, GGUFSource)
        tokenizer = tokenizer_from_gguf(source.file, config)
    else:
        assert location.path is not None
        tokenizer = tokenizer_from_folder(location.path, config)
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer of {location.name} has {tokenizer.vocab_size} tokens, the model only {config.vocab_size}",
            "The tokenizer belongs to another model",
        )
    return tokenizer


def tokenizer_from_folder(folder: Path, config: ModelConfig) -> Tokenizer:
    """Tokenizer of a Hugging Face folder (``tokenizer.json``, chat template in any of its three places)."""
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("Tokenizing text", "engine") from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        hint = "Save it with AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        raise InputError(f"{folder} has no tokenizer.json", hint)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust binding raises plain Exception
        raise InputError(f"{path} is damaged: {error}", "Download it again") from error
    settings = _read_settings(folder / "tokenizer_config.json")
    eos_ids = list(config.eos_ids)
    eos = _token_id(backend, settings.get("eos_token"))
    if eos is not None and eos not in eos_ids:
        eos_ids.append(eos)
    template = _find_template(folder, settings)
    return Tokenizer(
        backend,
        eos_ids=eos_ids,
        bos_id=config.bos_id if config.bos_id is not None else _token_id(backend, settings.get("bos_token")),
        chat_template=None
        if template is None
        else ChatTemplate(
            template,
            {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token")},
        ),
    )


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _token_text(value: Any) -> str | None:
    """Special tokens are written as text or as ``{"content": text, ...}``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _token_id(backend: Any, value: Any) -> int | None:
    text = _token_text(value)
    return None if text is None else backend.token_to_id(text)


def _find_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if template is None:
        template = _read_settings(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default") or next(iter(named.values()))
    return template if isinstance(template, str) else None
