"""Request bodies of the three APIs, and what to leave out for a server that rejects a field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from sits.bench.client import RequestSpec
from sits.errors import InputError

_encode = msgspec.json.Encoder().encode
# In the order in which they are given up when a 400 does not name the field.
OPTIONAL_FIELDS = ("ignore_eos", "continuous_usage_stats", "stream_options", "seed", "temperature")
_LIMIT_FIELDS = {
    "chat": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
_WITHOUT = {
    "ignore_eos": "answers may end before the requested length",
    "stream_options": "no usage: tokens are counted as chunks",
    "continuous_usage_stats": "tokens per chunk are estimated",
    "seed": "sampling is not seeded",
    "temperature": "the server's own temperature applies",
}


@dataclass(slots=True)
class BodyStyle:
    """How bodies are written for one server. :meth:`adapt` learns from its rejections."""

    api: str
    model: str
    extra: dict[str, Any] = field(default_factory=dict)
    chunk_usage: bool = False
    limit_field: str = ""
    dropped: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit_field = self.limit_field or _LIMIT_FIELDS[self.api][0]
        if not self.chunk_usage:
            self.dropped.add("continuous_usage_stats")

    def encode(self, request: RequestSpec) -> bytes:
        """The JSON body of ``request``. Raises ``InputError`` when the API cannot express its prompt."""
        dropped = self.dropped
        body: dict[str, Any] = {"model": self.model, "stream": True, self.limit_field: request.max_tokens}
        if self.api == "chat":
            body["messages"] = _messages(request)
        elif self.api == "responses":
            body["input"] = request.messages if request.messages is not None else _prompt(request, self.api)
        else:
            body["prompt"] = _prompt(request, self.api)
        if "stream_options" not in dropped and self.api != "responses":
            options = {"include_usage": True}
            if "continuous_usage_stats" not in dropped:
                options["continuous_usage_stats"] = True
            body["stream_options"] = options
        if request.ignore_eos and "ignore_eos" not in dropped:
            body["ignore_eos"] = True
        if "temperature" not in dropped:
            body["temperature"] = request.temperature
        if request.seed is not None and "seed" not in dropped:
            body["seed"] = request.seed
        body.update(self.extra)
        body.update(request.extra)
        return _encode(body)

    def adapt(self, message: str) -> bool:
        """Change the style after a 400/422 whose text is ``message``; False when nothing is left to change."""
        text = message.lower()
        limits = _LIMIT_FIELDS[self.api]
        if len(limits) > 1 and self.limit_field == limits[0] and _names(text, self.limit_field):
            self.limit_field = limits[1]
            self.notes.append(f"the server rejects {limits[0]}; {limits[1]} is used")
            return True
        left = [name for name in OPTIONAL_FIELDS if name not in self.dropped]
        for name in left:
            if _names(text, name):
                return self._drop(name)
        if "unrecognized" in text or "extra" in text or "unsupported" in text or "unknown" in text or not text:
            return self._drop(left[0]) if left else False
        return False

    def _drop(self, name: str) -> bool:
        self.dropped.add(name)
        self.notes.append(f"the server rejects {name}; left out, so {_WITHOUT[name]}")
        return True


def _names(text: str, field_name: str) -> bool:
    """Does the message name the field itself, not just a longer field that contains it?"""
    start = text.find(field_name)
    while start >= 0:
        end = start + len(field_name)
        before = text[start - 1] if start else " "
        after = text[end] if end < len(text) else " "
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            return True
        start = text.find(field_name, end)
    return False


def _messages(request: RequestSpec) -> list[dict[str, Any]]:
    if request.messages is not None:
        return request.messages
    return [{"role": "user", "content": _prompt(request, "chat")}]


def _prompt(request: RequestSpec, api: str) -> Any:
    if request.prompt is not None:
        return request.prompt
    if request.prompt_ids is not None and api == "completions":
        return request.prompt_ids
    if request.messages is not None:
        # A completion of a conversation: its turns as plain text.
        return "\n".join(str(message.get("content", "")) for message in request.messages)
    raise InputError(f"the {api} API needs a text prompt", "Token ids can only be sent with --api completions")
