"""Incremental text: never half a character, never a piece of a stop string, always the whole text in the end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sits.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer, detokenize

# U+FFFD itself is left out: a decoder writes it for bytes it cannot read, so at the end of a prompt it is ambiguous.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters=REPLACEMENT) | st.sampled_from("aé€😀👩‍🚀 \n"), max_size=60
)


class Pieces:
    """A vocabulary of byte strings; ids are given out as they are asked for."""

    def __init__(self, fallback: bool) -> None:
        self.pieces: list[bytes] = []
        self.fallback = fallback

    def encode(self, raw: bytes, cuts: list[int]) -> list[int]:
        edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
        first = len(self.pieces)
        self.pieces += [raw[start:end] for start, end in itertools.pairwise(edges)]
        return list(range(first, len(self.pieces)))

    def decode(self, ids) -> str:
        raw = b"".join(self.pieces[i] for i in ids)
        if not self.fallback:
            return raw.decode("utf-8", errors="replace")
        try:  # as byte-fallback decoders do: one bad byte spoils the whole run
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return REPLACEMENT * len(raw)


def first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


@settings(max_examples=150, deadline=None)
@given(TEXT, st.lists(st.integers(0, 300), max_size=80), st.booleans(), TEXT)
@example("😀" * 20, list(range(100)), True, "é")
@example("x" * 100 + "é" * 40, list(range(300)), True, "")
def test_any_split_of_utf8_gives_the_text(text, cuts, fallback, prompt):
    vocabulary = Pieces(fallback)
    context = vocabulary.encode(prompt.encode(), cuts)
    ids = vocabulary.encode(text.encode(), cuts)
    detokenizer = IncrementalDetokenizer(vocabulary.decode, context=context)
    taken = ""
    for token in ids:
        detokenizer.push(token)
        taken += detokenizer.take()
        assert text.startswith(taken)  # so there is no half character in it
    detokenizer.finish()
    assert taken + detokenizer.take() == detokenizer.text == text
    assert detokenize(vocabulary.decode, ids, context) == text


@settings(max_examples=150, deadline=None)
@given(
    st.text("abé😀", max_size=40),
    st.lists(st.text("abé😀", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(0, 120), max_size=80),
)
def test_stop_strings_end_the_text_before_them_however_it_is_cut(text, stops, cuts):
    vocabulary = Pieces(fallback=False)
    detokenizer = IncrementalDetokenizer(vocabulary.decode, stops)
    expected, stopped = first_stop(text, stops)
    for token in vocabulary.encode(text.encode(), cuts):
        detokenizer.push(token)
        assert expected.startswith(detokenizer.text)  # nothing was shown that had to be taken back
    detokenizer.finish()
    assert (detokenizer.text, detokenizer.stopped) == (expected, stopped)


def test_invalid_bytes_are_shown_in_the_end_and_do_not_block_for_ever():
    vocabulary = Pieces(fallback=False)
    detokenizer = IncrementalDetokenizer(vocabulary.decode)
    for token in vocabulary.encode(b"a\xff\xff" + b"\xfe" * 40, list(range(60))):
        detokenizer.push(token)
    assert len(detokenizer.text) > 20
    detokenizer.finish()
    assert detokenizer.text == "a" + REPLACEMENT * 42


def test_a_character_the_prompt_began_is_completed_by_the_output():
    vocabulary = Pieces(fallback=False)
    prompt, output = vocabulary.encode("é".encode()[:1], []), vocabulary.encode("é".encode()[1:] + b"x", [1])
    detokenizer = IncrementalDetokenizer(vocabulary.decode, context=prompt)
    for token in output:
        detokenizer.push(token)
    assert detokenizer.text == "éx"


def test_stop_strings_are_ignored_while_they_may_not_match():
    vocabulary = Pieces(fallback=False)
    detokenizer = IncrementalDetokenizer(vocabulary.decode, ["b"])
    for token, allowed in zip(vocabulary.encode(b"abab", [1, 2, 3]), (False, False, True, True)):
        detokenizer.push(token, match_stop=allowed)
    assert (detokenizer.text, detokenizer.stopped) == ("aba", True)


@pytest.mark.parametrize("length", [200])
def test_the_work_of_a_token_does_not_grow(length):
    vocabulary, longest = Pieces(fallback=False), 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return vocabulary.decode(ids)

    detokenizer = IncrementalDetokenizer(decode)
    for token in vocabulary.encode(b"word " * length, list(range(5 * length))):
        detokenizer.push(token)
    assert longest < 60
