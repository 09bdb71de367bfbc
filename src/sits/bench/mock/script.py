"""What one mock answer should be: timing, length and fault, from flags, the model name or a request header.

Model names follow ``name[:mode][,key=value...]``, for instance ``mock:crlf,ttft=20,itl=5,tokens=32``; the header
``x-mock`` takes the same text after the colon. A request setting wins over the header, the header over the flags.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace

from sits.errors import InputError

MODES: dict[str, str] = {
    "normal": "LF line ends, one event a write, usage when asked for",
    "crlf": "CRLF line ends",
    "cr": "CR line ends only",
    "nospace": "`data:` without the space",
    "comment": "a `: keep-alive` comment before every event, in its own write",
    "event": "an `event: message` line before every data line",
    "bom": "a byte-order mark at the start of the stream",
    "empty_choices": "a first chunk with `choices: []`",
    "role_first": "the role-only chunk leaves at once, the first token at the scripted TTFT",
    "split": "every event is cut into several writes, inside JSON and inside UTF-8 characters",
    "coalesced": "four events in one write, every four ITL",
    "multi_token": "four tokens a chunk, every four ITL",
    "continuous_usage": "four tokens a chunk, running usage in every chunk",
    "finish_after": "finish_reason in a chunk of its own, after the last token",
    "no_done": "no [DONE]",
    "no_usage": "usage never, asked or not",
    "no_finish": "[DONE] but no finish_reason",
    "tool_calls": "tool-call deltas instead of text; id and name null after the first",
    "reasoning": "the first half of the tokens as `reasoning`",
    "reasoning_content": "the first half of the tokens as `reasoning_content`",
    "only_reasoning": "every token as `reasoning_content`, nothing visible",
    "n2": "two choices, interleaved, whatever n says",
    "early_eos": "a quarter of the tokens, then finish_reason stop with an empty text",
    "ignore_max_tokens": "three times the tokens asked for",
    "empty": "no token at all, but a proper end",
    "error_midstream": "an error object half way, HTTP 200, then a proper end",
    "close_midstream": "the connection closes half way",
    "end_midstream": "the body ends cleanly half way, without finish_reason or [DONE]",
    "reset_midstream": "the connection is reset half way",
    "hang_start": "headers, then nothing",
    "hang_headers": "nothing at all",
    "hang_midstream": "nothing more after half of the tokens",
    "hang_end": "everything up to [DONE], but the body never ends",
    "bad_json": "half way an event that is not JSON",
    "nan": "a NaN in every chunk",
    "big_event": "half way an event of 10 MB",
    "gzip": "the body compressed with gzip",
    "deflate": "the body compressed with zlib",
    "identity_close": "HTTP/1.0 style: no length, the end of the connection ends the body",
    "connection_close": "Connection: close on every answer",
    "stale": "the connection closes silently after every answer, keep-alive promised",
    "not_stream": "one JSON document although a stream was asked for",
    "no_content_type": "a stream without a content type",
    "http_500": "HTTP 500 for every request",
    "http_429": "every other request gets 429 with Retry-After: 0.05",
    "http_503": "HTTP 503 for every request, no Retry-After",
    "http_401": "HTTP 401 for every request",
    "html": "HTTP 200 with a web page",
    "strict": "400 on ignore_eos, stream_options and max_completion_tokens",
    "strict_max_tokens": "400 on max_tokens (max_completion_tokens is the only limit)",
    "redirect": "307 to the same path under another model name",
    "redirect_loop": "307 to itself",
    "not_http": "bytes that are not HTTP",
}

HALF_MODES = {
    "error_midstream",
    "close_midstream",
    "end_midstream",
    "reset_midstream",
    "hang_midstream",
    "bad_json",
    "big_event",
}


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. Times in milliseconds; ``tokens`` 0 means: what the request asks for (or 32)."""

    mode: str = "normal"
    ttft: float = 20.0
    itl: float = 5.0
    tokens: int = 0
    fault_rate: float = 1.0  # share of requests that get the mode; the others are normal
    after: int = 0  # the mode begins after so many requests

    def override(self, text: str) -> Script:
        """This script changed by ``mode,key=value,...``. Raises ``InputError`` on an unknown mode or key."""
        changes: dict[str, object] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            key, separator, value = part.partition("=")
            if not separator:
                key, value = "mode", part
            if key == "mode" and value not in MODES:
                near = difflib.get_close_matches(value, MODES, n=1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                raise InputError(f"unknown mock mode {value!r}", f"{hint}sits mock-server --list-modes shows all")
            kind = _KINDS.get(key)
            if kind is None:
                raise InputError(f"unknown mock setting {key!r}", f"Known: {', '.join(_KINDS)}")
            try:
                changes[key] = kind(value)
            except ValueError:
                raise InputError(f"mock setting {key}={value!r} is not a number") from None
        script = replace(self, **changes)  # type: ignore[arg-type]
        if min(script.ttft, script.itl, script.tokens, script.fault_rate, script.after) < 0:
            raise InputError("mock settings must not be negative")
        return script


_KINDS: dict[str, type] = {f.name: {"str": str, "int": int, "float": float}[str(f.type)] for f in fields(Script)}


def script_for(model: str, header: str | None, default: Script) -> Script:
    """The script of one request: ``default``, changed by the header, changed by the model name."""
    script = default.override(header) if header else default
    _, separator, text = model.partition(":")
    return script.override(text) if separator else script
