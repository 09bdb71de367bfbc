"""Send one request and await its answer: pool, stale connections, redirects, timeouts.

The watchdog looks at all running exchanges ten times a second instead of arming a timer per read.
"""

from __future__ import annotations

import asyncio
import time

from sits.bench.http.address import Origin, Url
from sits.bench.http.answer import Answer
from sits.bench.http.connection import Connection, Failure
from sits.bench.http.options import EndpointOptions
from sits.bench.http.pool import Pool

USER_AGENT = "sits-bench"
_SWEEP_S = 0.1
_DRAIN_NS = 250_000_000  # how long after [DONE] the end of the body may take
_SAFE_ACROSS_HOSTS = {"accept", "content-type", "user-agent", "accept-encoding"}


class Transport:
    """HTTP/1.1 exchanges with per-request, first-byte and idle limits."""

    def __init__(self, options: EndpointOptions):
        self.options = options
        self.pool = Pool(options.pool)
        self.stale_retries = 0
        self.redirected_to: Url | None = None
        self._running: dict[Answer, tuple[Connection, int]] = {}
        self._heads: dict[tuple[str, Url, bool], bytes] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def exchange(self, method: str, url: Url, body: bytes, api: str = "chat") -> Answer:
        """The settled answer, redirects followed. Raises :class:`Failure`; its ``answer`` is what arrived before."""
        first = url
        for _ in range(self.options.max_redirects + 1):
            answer = await self._one(method, url, body, api, first.origin)
            if answer.status not in (301, 302, 307, 308) or b"location" not in answer.headers:
                return answer
            url = url.join(answer.headers[b"location"].decode("latin-1"))
            self.redirected_to = url
        raise Failure("redirect", f"more than {self.options.max_redirects} redirects, the last to {url}")

    async def _one(self, method: str, url: Url, body: bytes, api: str, home: Origin) -> Answer:
        """One request on one connection; a reused connection that was already dead is replaced once."""
        head = self._head(method, url, home)
        request = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body) if body else head + b"\r\n"
        start = time.monotonic_ns()
        while True:
            connection = self.pool.idle(url.origin)
            reused = connection is not None
            if connection is None:
                connection = await self.pool.connect(url.origin)
            answer = Answer(api, self._loop.create_future(), time.monotonic_ns(), self.options.keep_text)
            self._running[answer] = (connection, start)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
            connection.begin(answer, request)
            try:
                failure = await answer.future
            except asyncio.CancelledError as cancelled:
                connection.abort()
                cancelled.answer = answer  # type: ignore[attr-defined]
                raise
            finally:
                del self._running[answer]
            if failure is None:
                return answer
            if failure.kind == "closed" and reused and not connection.started:
                # The server closed it while it was idle; nothing of an answer arrived, so asking again is safe.
                self.stale_retries += 1
                continue
            failure.answer = answer
            raise failure

    def close(self) -> None:
        """Drop every connection and timer."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.pool.close()

    def _sweep(self) -> None:
        options, now = self.options, time.monotonic_ns()
        for answer, (connection, start) in list(self._running.items()):
            # Headers and a role chunk come before the queue and the prefill on most servers: not yet "begun".
            idle = options.idle_timeout_s if answer.log.times else None
            silent = now - answer.last_read_ns
            if answer.log.done and silent > _DRAIN_NS:
                connection.abort()
                answer.finish_early()
            elif options.request_timeout_s is not None and now - start > options.request_timeout_s * 1e9:
                connection.abort()
                text = f"the answer was not complete within {options.request_timeout_s:g} s"
                answer.on_failure(Failure("timeout_request", text))
            elif idle is not None and silent > idle * 1e9:
                connection.abort()
                answer.on_failure(
                    Failure("timeout_idle", f"nothing arrived for {idle:g} s in the middle of an answer")
                )
            elif (
                options.first_token_timeout_s is not None
                and not answer.log.times
                and now - start > options.first_token_timeout_s * 1e9
            ):
                connection.abort()
                text = f"no token within {options.first_token_timeout_s:g} s"
                answer.on_failure(Failure("timeout_first_token", text))
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep) if self._running else None

    def _head(self, method: str, url: Url, home: Origin) -> bytes:
        """Request line and headers up to the content length; credentials stay with the host they were given for."""
        same = url.origin == home or (url.origin.host == home.host and url.origin.scheme == "https")
        key = (method, url, same)
        head = self._heads.get(key)
        if head is not None:
            return head
        options = self.options
        proxy = self.pool.through_proxy(url.origin)
        headers = {"User-Agent": USER_AGENT, "Accept": "text/event-stream, application/json"}
        if method == "POST":
            headers["Content-Type"] = "application/json"
        headers["Accept-Encoding"] = "gzip, deflate" if options.compression else "identity"
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"
        lowered = {name.lower(): name for name in headers}
        for name, value in options.headers.items():
            headers.pop(lowered.get(name.lower(), ""), None)
            headers[name] = value
        if not same:
            headers = {name: value for name, value in headers.items() if name.lower() in _SAFE_ACROSS_HOSTS}
        if proxy is not None and proxy.authorization:
            headers["Proxy-Authorization"] = proxy.authorization
        target = str(url) if proxy is not None else url.target
        lines = [f"{method} {target} HTTP/1.1", f"Host: {url.origin.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n"
        self._heads[key] = head
        return head
