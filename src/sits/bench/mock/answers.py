"""The JSON of mock answers: chunk payloads of the chat, completions and responses APIs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

# Multi-byte characters on purpose: a client that cuts UTF-8 wrongly shows it here.
WORDS = (" the", " naïve", " 東京", " server", " ответ", " 🙂", " token", " fast")
CREATED = int(time.time())
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk before it is written: what kind of token text, how many tokens, of which choice."""

    kind: str  # text | reasoning | reasoning_content | tool | role | empty_choices | finish | blank
    text: str = ""
    tokens: int = 0
    choice: int = 0
    finish: str | None = None
    first: bool = False


def word(index: int, count: int = 1) -> str:
    """The text of ``count`` tokens from position ``index``."""
    return "".join(WORDS[i % len(WORDS)] for i in range(index, index + count))


def usage(api: str, prompt_tokens: int, output_tokens: int, cached: int = 0) -> dict[str, Any]:
    """The usage object of an API."""
    if api == "responses":
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
        }
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chunk(api: str, model: str, piece: Piece, running: dict[str, Any] | None = None) -> bytes:
    """One streamed event of ``piece``; ``running`` is usage so far, for servers that send it."""
    if api == "responses":
        return _responses_event(piece)
    body: dict[str, Any] = {
        "id": "mock-1",
        "object": "chat.completion.chunk" if api == "chat" else "text_completion",
        "created": CREATED,
        "model": model,
    }
    if piece.kind == "empty_choices":
        body["choices"] = []
    elif api == "chat":
        body["choices"] = [{"index": piece.choice, "delta": _delta(piece), "finish_reason": piece.finish}]
    else:
        text = piece.text if piece.kind not in ("role", "finish") else ""
        body["choices"] = [{"index": piece.choice, "text": text, "finish_reason": piece.finish}]
    if running is not None:
        body["usage"] = running
    return _encode(body)


def usage_chunk(api: str, model: str, counts: dict[str, Any]) -> bytes:
    """The usage-only last chunk (``choices: []``)."""
    kind = "chat.completion.chunk" if api == "chat" else "text_completion"
    body = {"id": "mock-1", "object": kind, "created": CREATED, "model": model, "choices": [], "usage": counts}
    return _encode(body)


def responses_end(model: str, counts: dict[str, Any] | None, finish: str) -> bytes:
    """``response.completed``, or ``response.incomplete`` when the token limit ended it."""
    complete = finish != "length"
    response: dict[str, Any] = {"id": "mock-1", "object": "response", "model": model, "usage": counts}
    response["status"] = "completed" if complete else "incomplete"
    if not complete:
        response["incomplete_details"] = {"reason": "max_output_tokens"}
    return _encode({"type": "response.completed" if complete else "response.incomplete", "response": response})


def whole(api: str, model: str, text: str, counts: dict[str, Any], finish: str) -> bytes:
    """The answer as one document (``stream: false``)."""
    body: dict[str, Any] = {"id": "mock-1", "created": CREATED, "model": model, "usage": counts}
    if api == "responses":
        content = [{"type": "output_text", "text": text}]
        message = {"type": "message", "role": "assistant", "content": content}
        return _encode(body | {"object": "response", "status": "completed", "output": [message]})
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if api == "chat":
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    return _encode(body | {"object": "chat.completion" if api == "chat" else "text_completion", "choices": [choice]})


def error(message: str, kind: str = "server_error", code: int = 500) -> bytes:
    """An OpenAI-style error document."""
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def _delta(piece: Piece) -> dict[str, Any]:
    if piece.kind == "role":
        return {"role": "assistant", "content": ""}
    if piece.kind in ("reasoning", "reasoning_content"):
        return {piece.kind: piece.text}
    if piece.kind == "tool":
        head = {"id": "call_1", "type": "function"} if piece.first else {"id": None}
        function = {"name": "look_up" if piece.first else None, "arguments": piece.text}
        return {"content": None, "tool_calls": [{"index": 0, **head, "function": function}]}
    if piece.kind == "finish":
        return {}
    return {"content": piece.text}


def _responses_event(piece: Piece) -> bytes:
    if piece.kind in ("role", "empty_choices"):
        return _encode({"type": "response.created", "response": {"id": "mock-1", "status": "in_progress"}})
    if piece.kind == "finish":
        return _encode({"type": "response.output_text.done", "item_id": "m", "output_index": piece.choice})
    kind = {
        "reasoning": "response.reasoning_text.delta",
        "reasoning_content": "response.reasoning_summary_text.delta",
        "tool": "response.function_call_arguments.delta",
    }.get(piece.kind, "response.output_text.delta")
    return _encode({"type": kind, "item_id": "m", "output_index": piece.choice, "delta": piece.text})
