"""One HTTP/1.1 connection: bytes in, httptools callbacks out, one exchange at a time.

Knows nothing of SSE or JSON. The receive time is taken once per read, before anything is parsed, so that parsing
never shifts a time stamp.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import httptools

MAX_HEADER_BYTES = 256 << 10


class Failure(Exception):
    """An exchange that did not work: a short kind for counting (``connect``, ``closed``, ...) and a text."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.answer: Any = None  # what had arrived, where an exchange had begun


class Exchange(Protocol):
    """Who listens to an answer. ``now_ns`` is the time of the read that carried it."""

    def on_head(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None: ...

    def on_body(self, piece: bytes, now_ns: int) -> None: ...

    def on_end(self, now_ns: int) -> None: ...

    def on_failure(self, failure: Failure) -> None: ...


class Connection(asyncio.Protocol):
    """Serves one exchange at a time; ``on_idle(connection)`` is called when it can take the next one."""

    __slots__ = (
        "_body_until_close",
        "_decoder",
        "_header_bytes",
        "_headers",
        "_on_closed",
        "_on_idle",
        "_parser",
        "answers",
        "bytes_received",
        "closed",
        "exchange",
        "idle_since_ns",
        "keep_alive_s",
        "max_answers",
        "now_ns",
        "origin",
        "started",
        "transport",
    )

    def __init__(self, on_idle: Callable[[Connection], None], on_closed: Callable[[Connection], None]):
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._decoder: Any = None
        self._body_until_close = False
        self.transport: Any = None
        self.origin: Any = None  # whom it belongs to; set and read by the pool
        self.exchange: Exchange | None = None
        self.started = False  # a byte of the current answer has arrived
        self.closed = False
        self.answers = 0
        self.now_ns = 0
        self.bytes_received = 0
        self.idle_since_ns = 0
        self.keep_alive_s: float | None = None
        self.max_answers: int | None = None

    # -- use ---------------------------------------------------------------------------------------------------
    def begin(self, exchange: Exchange, request: bytes) -> None:
        """Send ``request``; the answer goes to ``exchange``."""
        self.exchange = exchange
        self.started = False
        self.transport.write(request)

    def abort(self) -> None:
        """Give up the connection and whatever runs on it, without telling the exchange."""
        self.exchange = None
        if self.transport is not None and not self.closed:
            self.transport.abort()

    # -- asyncio.Protocol --------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.now_ns = time.monotonic_ns()
        self.bytes_received += len(data)
        if self.exchange is None:
            # Bytes nobody asked for (a late timeout page, a second answer): never reuse this connection.
            self.abort()
            return
        self.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if isinstance(cause, Failure):
                self._fail(cause)
            else:
                self._fail(Failure("protocol", f"the answer is not HTTP/1.1 ({error})"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        exchange, self.exchange = self.exchange, None
        self._on_closed(self)
        if exchange is None:
            return
        if self._body_until_close and exc is None:
            try:
                self._flush_decoder(exchange)
            except Failure as failure:
                exchange.on_failure(failure)
                return
            exchange.on_end(time.monotonic_ns())
            return
        what = "before the answer" if not self.started else "in the middle of the answer"
        detail = f": {exc.__class__.__name__}" if exc is not None else ""
        kind = "closed_midstream" if self.started else "closed"
        exchange.on_failure(Failure(kind, f"the server closed the connection {what}{detail}"))

    # -- httptools ---------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        if self.exchange is None:
            # A second answer in the same read: nobody asked for it, so the connection is out of step.
            self.transport.abort()
        self._headers = {}
        self._header_bytes = 0
        self._decoder = None
        self._body_until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise Failure("protocol", "the answer's headers are larger than 256 KiB")
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        headers = self._headers
        coding = headers.get(b"content-encoding", b"identity").strip().lower()
        if coding in (b"gzip", b"x-gzip", b"deflate"):
            self._decoder = _Inflater(raw_allowed=coding == b"deflate")
        elif coding not in (b"", b"identity"):
            raise Failure(
                "protocol", f"the answer uses content-encoding {coding.decode('latin-1')}, which was not asked for"
            )
        chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        self._body_until_close = not chunked and b"content-length" not in headers and status not in (204, 304)
        if self.exchange is not None:
            self.exchange.on_head(status, headers, self.now_ns)

    def on_body(self, piece: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        if self._decoder is not None:
            piece = self._decoder.feed(piece)
        exchange.on_body(piece, self.now_ns)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200 or self.exchange is None:
            return
        exchange = self.exchange
        self._flush_decoder(exchange)
        self.exchange = None
        self.answers += 1
        if self.max_answers is None:
            self._read_keep_alive()
        reusable = self._parser.should_keep_alive() and not self._body_until_close
        if not reusable or (self.max_answers is not None and self.answers >= self.max_answers):
            self.transport.close()
        else:
            self.idle_since_ns = self.now_ns
            self._on_idle(self)
        exchange.on_end(self.now_ns)

    # -- inside ------------------------------------------------------------------------------------------------
    def _flush_decoder(self, exchange: Exchange) -> None:
        if self._decoder is not None:
            rest = self._decoder.finish()
            if rest:
                exchange.on_body(rest, self.now_ns)

    def _fail(self, failure: Failure) -> None:
        exchange, self.exchange = self.exchange, None
        self.transport.abort()
        if exchange is not None:
            exchange.on_failure(failure)

    def _read_keep_alive(self) -> None:
        """``Keep-Alive: timeout=5, max=100``: leave before the server does."""
        self.max_answers = 1 << 62
        for part in self._headers.get(b"keep-alive", b"").split(b","):
            name, _, value = part.strip().partition(b"=")
            if value.isdigit():
                if name == b"timeout":
                    self.keep_alive_s = max(0.0, int(value) - 1.0)
                elif name == b"max":
                    self.max_answers = self.answers + int(value)


class _Inflater:
    """gzip or zlib; raw deflate where a server means that by ``deflate``."""

    def __init__(self, raw_allowed: bool):
        self._raw_allowed = raw_allowed
        self._first = True
        self._inflate = zlib.decompressobj(wbits=47)

    def feed(self, piece: bytes) -> bytes:
        try:
            text = self._inflate.decompress(piece)
        except zlib.error as error:
            if not (self._first and self._raw_allowed):
                raise Failure("protocol", f"the compressed answer is damaged ({error})") from None
            self._inflate = zlib.decompressobj(wbits=-15)
            try:
                text = self._inflate.decompress(piece)
            except zlib.error as second:
                raise Failure("protocol", f"the compressed answer is damaged ({second})") from None
        self._first = False
        return text

    def finish(self) -> bytes:
        return self._inflate.flush()
