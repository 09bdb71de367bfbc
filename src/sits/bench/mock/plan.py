"""From a script to a plan: which bytes leave at which offset, and how the answer ends.

A plan is a list of frames ``(offset in ns from the request, body bytes)``; a frame without bytes is an action.
Pure functions: the server only plays what is planned here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sits.bench.mock import answers
from sits.bench.mock.answers import Piece
from sits.bench.mock.script import HALF_MODES, Script

BYTES_PER_TOKEN = 4  # the mock's "tokenizer"


@dataclass(slots=True)
class Plan:
    """How one answer is played. ``ending``: end | close | reset | hang."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    ending: str = "end"
    ending_ns: int = 0
    output_tokens: int = 0
    chunked: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """What the request asks for, as far as a plan depends on it."""

    api: str
    model: str
    stream: bool
    max_tokens: int | None
    include_usage: bool
    prompt_tokens: int
    cached_tokens: int = 0


def token_count(script: Script, asked: Asked) -> int:
    """How many tokens the answer has."""
    tokens = script.tokens or asked.max_tokens or 32
    if script.mode == "early_eos":
        return max(1, tokens // 4)
    if script.mode == "ignore_max_tokens":
        return 3 * tokens
    return 0 if script.mode == "empty" else tokens


def plan_answer(script: Script, asked: Asked) -> Plan:
    """The plan of a successful or faulty 200 answer."""
    tokens = token_count(script, asked)
    choices = 2 if script.mode == "n2" else 1
    counts = answers.usage(asked.api, asked.prompt_tokens, tokens * choices, asked.cached_tokens)
    ttft, itl = int(script.ttft * 1e6), int(script.itl * 1e6)
    last_ns = ttft + max(0, tokens - 1) * itl
    if not asked.stream or script.mode == "not_stream":
        finish = "stop" if script.mode == "early_eos" else "length"
        body = answers.whole(asked.api, asked.model, answers.word(0, tokens), counts, finish)
        return Plan(headers={"content-type": "application/json"}, frames=[(last_ns, body)], output_tokens=tokens)
    events = _events(script, asked, tokens, counts, ttft, itl)
    plan = Plan(headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
    plan.output_tokens = tokens * choices
    plan.frames = _WRITERS.get(script.mode, _plain)(events)
    plan.ending_ns = events[-1][0] if events else ttft
    _apply_fault(plan, script.mode)
    return plan


def _events(
    script: Script, asked: Asked, tokens: int, counts: dict[str, Any], ttft: int, itl: int
) -> list[tuple[int, bytes]]:
    """``(offset, JSON)`` of every event of the stream; ``[DONE]`` included."""
    mode, api, model = script.mode, asked.api, asked.model
    events: list[tuple[int, bytes]] = []

    def add(offset: int, piece: Piece, done_tokens: int = 0) -> None:
        running = None
        if mode == "continuous_usage":
            running = answers.usage(api, asked.prompt_tokens, done_tokens, asked.cached_tokens)
        events.append((offset, answers.chunk(api, model, piece, running)))

    if mode == "empty_choices":
        add(0, Piece("empty_choices"))
    # With role_first the role chunk comes long before the first token; otherwise just before it.
    add(0 if mode == "role_first" else ttft, Piece("role"))
    group = 4 if mode in ("multi_token", "continuous_usage") else 1
    finish = "stop" if mode in ("early_eos", "empty") else ("tool_calls" if mode == "tool_calls" else "length")
    separate_finish = mode in ("finish_after", "early_eos", "empty", "tool_calls")
    for index in range(0, tokens, group):
        count = min(group, tokens - index)
        last = index + count == tokens
        for choice in range(2 if mode == "n2" else 1):
            end = finish if last and not separate_finish and mode != "no_finish" else None
            text = answers.word(index, count)
            add(
                ttft + index * itl,
                Piece(_kind(mode, index, tokens), text, count, choice, end, index == 0),
                index + count,
            )
    end_ns = events[-1][0] if tokens else ttft
    if separate_finish:
        add(end_ns, Piece("finish", finish=finish), tokens)
    if api == "responses":
        events.append((end_ns, answers.responses_end(model, None if mode == "no_usage" else counts, finish)))
        return _break_half(mode, events)
    if asked.include_usage and mode != "no_usage":
        events.append((end_ns, answers.usage_chunk(api, model, counts)))
    if mode != "no_done":
        events.append((end_ns, b"[DONE]"))
    return _break_half(mode, events)


def _kind(mode: str, index: int, tokens: int) -> str:
    if mode == "tool_calls":
        return "tool"
    if mode == "only_reasoning":
        return "reasoning_content"
    if mode in ("reasoning", "reasoning_content") and index < (tokens + 1) // 2:
        return mode
    return "text"


def _break_half(mode: str, events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The midstream faults that change what is sent."""
    half = max(2, len(events) // 2)
    offset = events[min(half, len(events) - 1)][0]
    if mode == "error_midstream":
        return [*events[:half], (offset, answers.error("the engine died", code=500)), (offset, b"[DONE]")]
    if mode == "bad_json":
        return [*events[:half], (offset, b'{"choices": [{"delta": {"content": "x"'), *events[half:]]
    if mode == "big_event":
        padding = b'{"choices":[],"padding":"' + b"x" * (10 << 20) + b'"}'
        return [*events[:half], (offset, padding), *events[half:]]
    if mode == "nan":
        return [(ns, body if body == b"[DONE]" else body[:-1] + b',"logprob":NaN}') for ns, body in events]
    return events[:half] if mode in HALF_MODES else events


def _apply_fault(plan: Plan, mode: str) -> None:
    if mode in ("close_midstream", "reset_midstream", "hang_midstream"):
        plan.ending = mode.split("_")[0]
    elif mode == "hang_end":
        plan.ending = "hang"
    elif mode == "hang_start":
        plan.frames, plan.ending = [], "hang"
    elif mode in ("gzip", "deflate"):
        plan.headers["content-encoding"] = mode
        plan.frames = _compress(plan.frames, 31 if mode == "gzip" else 15)
    elif mode == "connection_close":
        plan.headers["connection"] = "close"
        plan.ending = "end_close"
    elif mode == "identity_close":
        plan.chunked, plan.ending = False, "close"
        plan.headers["connection"] = "close"
    elif mode == "stale":
        plan.ending = "end_close"
    elif mode == "no_content_type":
        del plan.headers["content-type"]
    elif mode == "html":
        plan.headers["content-type"] = "text/html"
        plan.frames = [(0, b"<html><body>Welcome to nginx</body></html>")]


def _sse(lead: bytes, end: bytes) -> Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]]:
    def write(events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return [(offset, lead + body + end) for offset, body in events]

    return write


_plain = _sse(b"data: ", b"\n\n")


def _comment(events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    frames = []
    for offset, body in events:
        frames += [(offset, b": keep-alive\n\n"), (offset, b"data: " + body + b"\n\n")]
    return frames


def _bom(events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    frames = _plain(events)
    return [(frames[0][0], b"\xef\xbb\xbf" + frames[0][1]), *frames[1:]]


def _split(events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    # The pieces leave 0.2 ms apart: written together, the kernel would join them again.
    frames = []
    for offset, frame in _plain(events):
        # A cut inside the first multi-byte character when there is one, and one in the middle of the blank line.
        inside = next((i + 1 for i, byte in enumerate(frame) if byte >= 0xC0), len(frame) // 2)
        edges = sorted({0, 3, inside, len(frame) - 1, len(frame)})
        frames += [(offset + 200_000 * k, frame[a:b]) for k, (a, b) in enumerate(pairwise(edges))]
    return frames


def _coalesced(events: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    frames = _plain(events)
    groups = [frames[i : i + 4] for i in range(0, len(frames), 4)]
    return [(group[-1][0], b"".join(body for _, body in group)) for group in groups]


_WRITERS: dict[str, Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]]] = {
    "crlf": _sse(b"data: ", b"\r\n\r\n"),
    "cr": _sse(b"data: ", b"\r\r"),
    "nospace": _sse(b"data:", b"\n\n"),
    "event": _sse(b"event: message\ndata: ", b"\n\n"),
    "comment": _comment,
    "bom": _bom,
    "split": _split,
    "coalesced": _coalesced,
}


def _compress(frames: list[tuple[int, bytes]], window_bits: int) -> list[tuple[int, bytes]]:
    packer = zlib.compressobj(wbits=window_bits)
    packed = [(offset, packer.compress(body) + packer.flush(zlib.Z_SYNC_FLUSH)) for offset, body in frames]
    packed.append((frames[-1][0] if frames else 0, packer.flush()))
    return packed
