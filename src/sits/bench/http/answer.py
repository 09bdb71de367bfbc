"""One exchange with a generation endpoint: from HTTP callbacks to a :class:`TokenLog` and an outcome."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from sits.bench.http.connection import Failure
from sits.bench.http.dialects import StreamFault, read_document, read_event
from sits.bench.http.sse import EventTooLarge, SseParser
from sits.bench.http.token_log import TokenLog, message_of

_MAX_DOCUMENT = 64 << 20


class Answer:
    """Implements ``Exchange``. ``future`` resolves once, with None or a :class:`Failure`.

    ``api`` is one of the three, or ``raw``: keep the body as it is.
    """

    __slots__ = (
        "_document",
        "_parser",
        "_size",
        "_streaming",
        "api",
        "future",
        "headers",
        "last_ns",
        "last_read_ns",
        "log",
        "status",
        "streamed",
    )

    def __init__(self, api: str, future: asyncio.Future[Failure | None], now_ns: int, keep_text: bool = False):
        self.api = api
        self.future = future
        self.log = TokenLog(text=[] if keep_text else None)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.last_read_ns = now_ns  # last sign of life, for the idle timeout
        self.last_ns = now_ns  # last read that carried an event
        self.streamed = True
        self._parser: SseParser | None = None
        self._streaming: bool | None = None  # None: not known before the first body byte
        self._document: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None:
        self.status = status
        self.headers = headers
        self.last_read_ns = now_ns
        kind = headers.get(b"content-type", b"").lower()
        if status != 200 or self.api == "raw":
            self._streaming = False
        elif kind.startswith(b"text/event-stream"):
            self._streaming = True
        elif b"json" in kind:
            self._streaming = False

    def on_body(self, piece: bytes, now_ns: int) -> None:
        self.last_read_ns = now_ns
        if self._streaming is None and piece.strip():
            # No usable content type: a document starts with { or <, anything else is taken for a stream.
            self._streaming = piece.lstrip()[:1] not in (b"{", b"[", b"<")
        if not self._streaming:
            self._size += len(piece)
            if self._size > _MAX_DOCUMENT:
                raise Failure("protocol", "the answer is larger than 64 MB")
            self._document.append(piece)
            return
        parser = self._parser
        if parser is None:
            parser = self._parser = SseParser()
        try:
            events = parser.feed(piece)
            if events:
                self.last_ns = now_ns
                log, api = self.log, self.api
                for name, data in events:
                    read_event(api, name, data, now_ns, log)
        except StreamFault as fault:
            raise Failure("stream_error", str(fault)) from None
        except EventTooLarge as fault:
            raise Failure("protocol", str(fault)) from None

    def on_end(self, now_ns: int) -> None:
        self.last_read_ns = now_ns
        try:
            failure = self._judge(now_ns)
        except Failure as found:
            failure = found
        self._resolve(failure)

    def on_failure(self, failure: Failure) -> None:
        # Some servers cut the connection right after the last event; what was promised did arrive.
        if failure.kind == "closed_midstream" and self.log.done and self.log.tokens_seen:
            self._resolve(None)
        else:
            self._resolve(failure)

    @property
    def document(self) -> bytes:
        """The body of an answer that was not a stream."""
        return b"".join(self._document)

    def finish_early(self) -> bool:
        """[DONE] was read but the body does not end: take the answer as complete. True when that resolved it."""
        if self.log.done and not self.future.done():
            self._resolve(self._verdict())
            return True
        return False

    def _resolve(self, failure: Failure | None) -> None:
        if not self.future.done():
            self.future.set_result(failure)

    def _judge(self, now_ns: int) -> Failure | None:
        if self.status != 200 or self.api == "raw":
            return None  # what a status means is for the caller to say
        if self._streaming:
            try:
                for name, data in self._parser.finish() if self._parser else ():
                    read_event(self.api, name, data, now_ns, self.log)
            except StreamFault as fault:
                return Failure("stream_error", str(fault))
        else:
            document = self.document
            if document.lstrip()[:1] == b"<":
                return Failure("not_api", "the answer is a web page, not an OpenAI-compatible API")
            self.streamed = False
            self.last_ns = now_ns
            try:
                read_document(self.api, document, now_ns, self.log)
            except StreamFault as fault:
                return Failure("stream_error" if document else "no_tokens", str(fault))
        return self._verdict()

    def _verdict(self) -> Failure | None:
        log = self.log
        if not log.ended:
            return Failure("truncated", "the stream ended without finish_reason or [DONE]")
        if not log.tokens_seen:
            return Failure("no_tokens", "the answer ended without a single token")
        return None


def error_text(raw: bytes) -> str:
    """The readable part of an error body: JSON message, or page text without its tags."""
    text = raw[: 64 << 10].decode("utf-8", "replace").strip()
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        bare = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE)
        return " ".join(bare.split())[:200]
    return message_of(document) if document else ""
