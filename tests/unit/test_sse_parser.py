"""The SSE parser gives the same events however the bytes are cut, whatever the line ends are."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.http.sse import EventTooLarge, SseParser


def run(pieces, **options):
    parser = SseParser(**options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    return [stream[a:b] for a, b in pairwise(edges)]


def feed_many(parser, piece):
    for _ in range(6000):
        parser.feed(piece)


payloads = st.lists(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1, max_size=20),
    min_size=1,
    max_size=6,
)


@given(payloads, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 400), max_size=30), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_cut_gives_the_same_events(texts, end, cuts, spaced):
    lead = "data: " if spaced else "data:"
    # Without the space, a leading space of the value would be read as the separator: both are the grammar's rule.
    texts = [t.lstrip(" ") or "x" for t in texts]
    stream = "".join(f": note{end}event: message{end}{lead}{t}{end}{end}" for t in texts).encode()
    assert run(cut(stream, cuts)) == [(b"message", t.encode()) for t in texts]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=20))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_never_depend_on_the_cut(stream, cuts):
    assert run(cut(stream, cuts)) == run([stream])


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b'data: {"a":1}\n\n', [b'{"a":1}']),
        (b"data:x\r\n\r\n", [b"x"]),
        (b"data: x\r\rdata: y\r\r", [b"x", b"y"]),
        (b"data: x\n\ndata: y\n\n", [b"x", b"y"]),
        (b": keep-alive\n\ndata: x\n\n", [b"x"]),
        (b"event: a\nid: 7\nretry: 10\ndata: x\n\n", [b"x"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"]),
        (b"data: unfinished", [b"unfinished"]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b"data\n\n", [b""]),
        (b"event: only\n\n", []),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_grammar(stream, expected):
    assert [data for _, data in run([stream])] == expected
    assert [data for _, data in run([bytes([b]) for b in stream])] == expected


def test_event_name_does_not_leak_into_the_next_event():
    assert run([b"event: a\ndata: 1\n\ndata: 2\n\n"]) == [(b"a", b"1"), (b"", b"2")]


def test_carriage_return_ends_the_event_without_waiting_for_more():
    parser = SseParser()
    assert parser.feed(b"data: x\r\r") == [(b"", b"x")]
    assert parser.feed(b"\ndata: y\r\n\r\n") == [(b"", b"y")]


@pytest.mark.parametrize("size", [1, 1000])
def test_endless_line_is_refused(size):
    parser = SseParser(limit_bytes=5000)
    with pytest.raises(EventTooLarge):
        feed_many(parser, b"x" * size)


def test_endless_event_of_short_lines_is_refused():
    parser = SseParser(limit_bytes=5000)
    with pytest.raises(EventTooLarge):
        feed_many(parser, b"data: xxxx\n")


def test_ten_megabytes_in_small_pieces_stay_linear():
    body = b"data: " + b"y" * (10 << 20) + b"\n\n"
    pieces = [body[i : i + 4096] for i in range(0, len(body), 4096)]
    ((_, data),) = run(pieces)
    assert len(data) == 10 << 20
