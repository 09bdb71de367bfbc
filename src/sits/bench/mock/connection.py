"""The mock endpoint's HTTP side: parse a request, refuse it or have its answer planned and played."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import httptools
import msgspec

from sits.bench.mock import answers
from sits.bench.mock.metrics_page import render
from sits.bench.mock.plan import BYTES_PER_TOKEN, Asked, Plan
from sits.bench.mock.player import Player
from sits.bench.mock.script import Script, script_for
from sits.errors import InputError

if TYPE_CHECKING:
    from sits.bench.mock.server import MockServer

APIS = {"/chat/completions": "chat", "/completions": "completions", "/responses": "responses"}
_TEMPLATE_TOKENS = 7
_REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
_REASONS |= {405: "Method Not Allowed", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Unavailable"}


class _Body(msgspec.Struct):
    model: str = "mock"
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stream_options: dict[str, Any] | None = None
    ignore_eos: Any = None
    prompt: Any = None
    messages: Any = None
    input: Any = None


_decode = msgspec.json.Decoder(_Body).decode


class Connection(asyncio.Protocol):
    """One client connection; answers one request at a time (pipelined ones wait in the kernel)."""

    def __init__(self, server: MockServer):
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.player: Player | None = None
        self.answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.player is not None:
            self.player.abandon()

    def data_received(self, data: bytes) -> None:
        self.received_ns = time.monotonic_ns()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.reply(400, answers.error(f"bad request: {error}"))
            self.transport.close()

    def on_message_begin(self) -> None:
        self.url = b""
        self.body: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        path = httptools.parse_url(self.url).path.decode("latin-1")
        key = self.server.settings.api_key
        if key and self.headers.get(b"authorization", b"").decode("latin-1") != f"Bearer {key}":
            self.reply(401, answers.error("Incorrect API key provided", "invalid_request_error", 401))
            return
        if self.parser.get_method() == b"GET":
            self._get(path)
            return
        api = APIS.get(path.removeprefix("/v1"))
        if api is None:
            self.reply(404, answers.error(f"no route {path}", "not_found", 404))
            return
        try:
            self._post(path, api)
        except (msgspec.DecodeError, InputError) as error:
            self.reply(400, answers.error(str(error), "invalid_request_error", 400))

    def _get(self, path: str) -> None:
        settings = self.server.settings
        if path == "/metrics":
            page = render(settings.metrics_flavor, self.server.counters, settings.slots)
            self.reply(200, page.encode(), "text/plain; version=0.0.4")
        elif path.removeprefix("/v1") == "/models":
            entry = {"object": "model", "owned_by": "sits", "max_model_len": settings.max_model_len}
            rows = [{"id": name, **entry} for name in settings.models]
            self.reply(200, msgspec.json.encode({"object": "list", "data": rows}))
        elif path in ("/health", "/"):
            self.reply(200, b"{}")
        else:
            self.reply(404, answers.error(f"no route {path}", "not_found", 404))

    def _post(self, path: str, api: str) -> None:
        server = self.server
        raw = b"".join(self.body)
        body = _decode(raw)
        header = self.headers.get(b"x-mock")
        script = script_for(body.model, header.decode("latin-1") if header else None, server.settings.script)
        server.requests += 1
        if server.settings.log_requests:
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in self.headers.items()}
            server.settings.requests.append({"path": path, "headers": headers, "body": msgspec.json.decode(raw)})
        if server.requests <= script.after or (server.requests * 0.6180339887) % 1.0 > script.fault_rate:
            script = script.override("normal")
        if self._refuse(script, body, path):
            return
        prompt = msgspec.json.encode(body.messages or body.input or body.prompt or "")
        prompt_tokens = _TEMPLATE_TOKENS + len(_text(body)) // BYTES_PER_TOKEN
        limit = body.max_completion_tokens or body.max_tokens or body.max_output_tokens
        usage = bool((body.stream_options or {}).get("include_usage"))
        cached = server.cached_tokens(prompt)
        asked = Asked(api, body.model, body.stream, limit, usage, prompt_tokens, cached)
        server.counters.prompt_tokens += prompt_tokens
        plan = server.plan(script, asked)
        self.player = Player(self, plan, self.received_ns)
        server.admit(self.player)

    def _refuse(self, script: Script, body: _Body, path: str) -> bool:
        """Answer the modes that refuse a request; True when answered."""
        mode, retry = script.mode, {}
        if mode in ("http_500", "http_503", "http_401"):
            status = int(mode.removeprefix("http_"))
            self.reply(status, answers.error("scripted failure", code=status))
        elif mode == "http_429" and self.server.requests % 2:
            retry = {"retry-after": "0.05"}
            self.reply(429, answers.error("slow down", "rate_limit", 429), headers=retry)
        elif mode == "strict" and (body.ignore_eos is not None or body.stream_options or body.max_completion_tokens):
            names = [
                n for n in ("ignore_eos", "stream_options", "max_completion_tokens") if getattr(body, n) is not None
            ]
            self.reply(
                400,
                answers.error(f"Unrecognized request argument supplied: {names[0]}", "invalid_request_error", 400),
            )
        elif mode == "strict_max_tokens" and body.max_tokens is not None:
            text = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            self.reply(400, answers.error(text, "invalid_request_error", 400))
        elif mode in ("redirect", "redirect_loop"):
            target = path if mode == "redirect_loop" or "hop" in self.url.decode("latin-1") else path + "?hop"
            if target == path and mode == "redirect":
                return False
            self.reply(307, b"", headers={"location": target})
        elif mode == "not_http":
            self.transport.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            self.transport.close()
        else:
            return mode == "hang_headers"
        return True

    def reply(
        self, status: int, body: bytes, content_type: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        """One plain answer."""
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}", f"content-type: {content_type}"]
        lines += [f"content-length: {len(body)}", *(f"{k}: {v}" for k, v in (headers or {}).items())]
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def write_head(self, plan: Plan) -> None:
        """Status line and headers of a planned answer."""
        lines = [f"HTTP/1.1 {plan.status} {_REASONS[plan.status]}", *(f"{k}: {v}" for k, v in plan.headers.items())]
        if plan.chunked:
            lines.append("transfer-encoding: chunked")
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n")

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def end(self, plan: Plan) -> None:
        """End the answer as planned: properly, by closing, or by a reset."""
        self.player = None
        self.answered += 1
        if plan.ending == "reset":
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
            return
        if plan.chunked and plan.ending in ("end", "end_close"):
            self.write(b"0\r\n\r\n")
        limit = self.server.settings.keep_alive_requests
        if plan.ending in ("close", "end_close") or (limit and self.answered >= limit):
            self.transport.close()


def _text(body: _Body) -> bytes:
    """The prompt's text, without JSON around it."""
    source = body.messages if body.messages is not None else (body.input if body.input is not None else body.prompt)
    parts: list[str] = []
    stack = [source]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, list):
            if item and isinstance(item[0], int):
                parts.append("x" * (len(item) * BYTES_PER_TOKEN))
            else:
                stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.get(key) for key in ("content", "text") if key in item)
    return "".join(parts).encode()
