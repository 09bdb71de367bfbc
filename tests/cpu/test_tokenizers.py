"""Tokenizers and chat templates against transformers' on the same files."""

from __future__ import annotations

from functools import cache

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.errors import InputError
from sits.models.chat_template import ChatTemplate
from sits.models.config import ModelConfig
from sits.models.loading.gguf_source import GGUFSource
from sits.models.loading.resolve import resolve
from sits.models.presets import PRESETS
from sits.models.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, tokenizer_from_folder

STRINGS = [
    "",
    " ",
    "  \n\t leading and trailing  ",
    "Hello, world! I'm here; they'll say it's 12345 o'clock.",
    "def f(x):\n    return x ** 2  # comment\n\n\n",
    "Ünïcödé ß 東京 Привет мир مرحبا 🦙🏳️‍🌈 é (combining: e\u0301)",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "3.14159 1,000,000 0x1F CamelCase snake_case",
    "a" * 300,
    "\u00a0\u200b\ufeff\r\n\r",
]


@cache
def ours() -> Tokenizer:
    location = resolve("smollm2-135m")
    source = GGUFSource(location.path)
    tokenizer = load_tokenizer(location, source, source.config)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@cache
def theirs():
    path = resolve("smollm2-135m").path
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.parametrize("text", STRINGS)
def test_gguf_ids_and_text_are_those_of_transformers(text):
    ids = ours().encode(text)
    assert ids == theirs()(text)["input_ids"]
    assert ours().decode(ids) == theirs().decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_any_text_has_the_ids_and_text_of_transformers(text):
    ids = ours().encode(text)
    assert ids == theirs()(text)["input_ids"]
    # Not always the text itself: the vocabulary lacks some bytes (0xF1), in transformers as here.
    assert ours().decode(ids, skip_special_tokens=False) == theirs().decode(ids, clean_up_tokenization_spaces=False)


def test_the_same_tokenizer_saved_as_a_folder(tmp_path):
    theirs().save_pretrained(tmp_path)
    config = PRESETS["smollm2-135m"]
    folder = tokenizer_from_folder(tmp_path, config)
    for text in STRINGS:
        assert folder.encode(text) == ours().encode(text)
    messages = [{"role": "user", "content": "Hi"}]
    assert folder.apply_chat_template(messages) == ours().apply_chat_template(messages)
    assert set(folder.eos_ids) == set(ours().eos_ids) == {2}


@pytest.mark.parametrize("generation", [True, False])
def test_chat_template_renders_as_transformers_does(generation):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi <b> & 'quotes'"},
        {"role": "assistant", "content": "Hello\n"},
        {"role": "user", "content": "Bye"},
    ]
    for conversation in (messages, messages[1:]):
        assert ours().apply_chat_template(conversation, generation) == theirs().apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=generation
        )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.__class__.__mro__ }}", "refused"),  # the sandbox
        ("{% for %}", "not valid Jinja"),
    ],
)
def test_templates_that_refuse_or_misbehave(source, text):
    with pytest.raises(InputError, match=text):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_empty_messages_are_refused():
    with pytest.raises(InputError, match="messages is empty"):
        ours().apply_chat_template([])


@pytest.mark.parametrize(
    ("kind", "rule", "text"),
    [("llama", "default", "not supported in GGUF"), ("gpt2", "tekken", "tekken"), ("gpt2", "gpt-2", "no vocabulary")],
)
def test_unknown_gguf_tokenizers_are_refused(kind, rule, text):
    from types import SimpleNamespace

    from sits.models.gguf_tokenizer import tokenizer_from_gguf

    file = SimpleNamespace(path="x.gguf", metadata={"tokenizer.ggml.model": kind, "tokenizer.ggml.pre": rule})
    with pytest.raises(InputError, match=text):
        tokenizer_from_gguf(file, PRESETS["tiny"])


def hand_made(rule: str) -> tuple[Tokenizer, object]:
    """A byte-level vocabulary with a few merges under a splitting rule, ours and by the tokenizers package."""
    from types import SimpleNamespace

    import tokenizers

    from sits.models.gguf_tokenizer import tokenizer_from_gguf

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = ["1 2", "12 3", "123 4", "Ġ a", "a b", "' s", "Ċ Ċ"]
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges), "<|end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
    }
    file = SimpleNamespace(path="x.gguf", metadata=metadata)
    return tokenizer_from_gguf(file, PRESETS["tiny"]), tokens


@pytest.mark.parametrize(
    ("rule", "digits", "begins"),
    [
        ("llama-bpe", ["123", "4", "12"], True),  # runs of three digits at most
        ("qwen2", ["1", "2", "3", "4", "1", "2"], False),
        ("smollm", ["1", "2", "3", "4", "1", "2"], False),
        ("gpt-2", ["1234", "12"], False),
    ],
)
def test_splitting_rules_differ_as_they_should(rule, digits, begins):
    tokenizer, tokens = hand_made(rule)
    ids = tokenizer.encode("123412")
    assert (ids[0] == len(tokens) - 1) == begins
    assert [tokenizer.id_to_token(token) for token in ids[begins:]] == digits
    for text in STRINGS:
        decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False)
        assert decoded == (text if rule != "qwen2" else __import__("unicodedata").normalize("NFC", text))


def test_byte_tokenizer_round_trip():
    tokenizer = ByteTokenizer(300)
    for text in STRINGS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([72, 105, 299]) == "Hi t299"
    assert "user: Hi" in tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    with pytest.raises(InputError):
        ByteTokenizer(200)


def test_synthetic_models_get_the_byte_tokenizer():
    config: ModelConfig = PRESETS["llama-3-8b"]
    tokenizer = load_tokenizer(resolve("synthetic:llama-3-8b"), None, config)  # type: ignore[arg-type]
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.vocab_size == config.vocab_size
