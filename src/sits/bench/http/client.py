"""The endpoint client: a :class:`sits.bench.client.Client` over HTTP/1.1 and server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from email.utils import parsedate_to_datetime
from typing import Any

from sits.bench.client import RequestSpec, TargetInfo
from sits.bench.http.address import Endpoint, Url, parse_endpoint
from sits.bench.http.answer import Answer, error_text
from sits.bench.http.bodies import BodyStyle
from sits.bench.http.connection import Failure
from sits.bench.http.options import EndpointOptions
from sits.bench.http.probe import probe_endpoint
from sits.bench.http.prompts import WordText
from sits.bench.http.server_metrics import MetricsScraper
from sits.bench.http.transport import Transport
from sits.bench.timer import PreciseTimer
from sits.errors import InputError
from sits.spec.records import CANCELLED, ERROR, OK, TIMEOUT, RequestRecord

_RETRY_STATUS = (429, 503)


class HttpClient:
    """Drives one endpoint from one event loop. :meth:`open` first; safe for many concurrent :meth:`send`."""

    def __init__(self, options: EndpointOptions, style: BodyStyle | None = None):
        self.options = options
        self.endpoint: Endpoint = parse_endpoint(options.url, options.api)
        self.url: Url = self.endpoint.url
        self.api = self.endpoint.api
        self.style = style or BodyStyle(self.api, options.model or "", options.extra_body, options.chunk_usage)
        self.notes: list[str] = []
        self.worker = 0
        self.text = WordText()  # makes prompts of a wanted length; calibrated by open()
        self._transport: Transport | None = None
        self._timer: PreciseTimer | None = None
        self._metrics: MetricsScraper | None = None

    @property
    def transport(self) -> Transport:
        """The open transport."""
        if self._transport is None:
            self._transport = Transport(self.options)
            self._timer = PreciseTimer()
        return self._transport

    async def open(self) -> TargetInfo:
        """Find the model, learn what the server accepts. Raises ``InputError`` when it cannot be used."""
        transport = self.transport
        info = (
            await probe_endpoint(self, transport) if self.options.probe else TargetInfo("endpoint", self.style.model)
        )
        self._metrics = MetricsScraper(transport, self.endpoint)
        info.notes += self.notes + self.style.notes
        return info

    async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
        """One request, retried after 429/503 with Retry-After. Failures are in the record, never raised.

        Waits until ``t_due`` when that is still ahead. Cancelling the task gives up the connection and returns
        what had arrived, as a record with status ``cancelled``.
        """
        transport = self.transport
        record = RequestRecord(request_id=request.request_id, t_due=t_due, t_sent=t_due, worker=self.worker)
        record.requested_output_tokens = request.max_tokens
        record.session, record.turn = request.session, request.turn
        record.prompt_tokens = request.prompt_tokens
        try:
            body = self.style.encode(request)
            if t_due > time.monotonic_ns():
                assert self._timer is not None
                await self._timer.sleep_until(t_due)
            record.t_sent = time.monotonic_ns()
            while True:
                answer = await transport.exchange("POST", self.url, body, self.api)
                if answer.status == 200:
                    return _settle(record, answer, OK)
                wait = self._retry_wait(answer, record.retries)
                if wait is None:
                    raise _http_failure(answer)
                record.retries += 1
                await asyncio.sleep(wait)
        except Failure as failure:
            record.error_kind, record.error = failure.kind, failure.message
            return _settle(record, failure.answer, TIMEOUT if failure.kind.startswith("timeout") else ERROR)
        except InputError as error:
            record.error_kind, record.error = "request", str(error)
            return _settle(record, None, ERROR)
        except asyncio.CancelledError as cancelled:
            record.error_kind = "cancelled"
            return _settle(record, getattr(cancelled, "answer", None), CANCELLED)

    async def snapshot(self) -> dict[str, float]:
        """The server's own gauges and counters, when it has a /metrics page we know; else empty."""
        return await self._metrics.read() if self._metrics is not None else {}

    async def get_json(self, url: Url) -> Any:
        """A small JSON document, or None when there is none. Raises :class:`Failure` when nobody answers."""
        answer = await self.transport.exchange("GET", url, b"", "raw")
        if answer.status != 200:
            return None
        try:
            return json.loads(answer.document)
        except ValueError:
            return None

    async def close(self) -> None:
        """Drop all connections. Safe to call twice."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _retry_wait(self, answer: Answer, retries: int) -> float | None:
        """Seconds to wait before asking again, or None when the refusal is final."""
        if answer.status not in _RETRY_STATUS or retries >= self.options.retries:
            return None
        seconds = retry_after_seconds(answer.headers.get(b"retry-after", b"").decode("latin-1"), time.time())
        return seconds if seconds is not None and seconds <= self.options.max_retry_after_s else None


def retry_after_seconds(value: str, now: float) -> float | None:
    """Seconds a Retry-After header asks for (a number or an HTTP date); None when absent or unreadable."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError):
        return None


def _http_failure(answer: Answer) -> Failure:
    text = error_text(answer.document)
    failure = Failure(f"http_{answer.status}", f"HTTP {answer.status}" + (f": {text}" if text else ""))
    failure.answer = answer
    return failure


def _settle(record: RequestRecord, answer: Answer | None, status: str) -> RequestRecord:
    record.status = status
    if answer is None:
        record.t_end = time.monotonic_ns()
        return record
    log, due = answer.log, record.t_due
    record.t_end = answer.last_ns if status == OK else time.monotonic_ns()
    record.http_status = answer.status or None
    times, tokens, record.output_tokens, record.token_source = log.settle()
    record.chunk_times_ns = [at - due for at in times]
    record.chunk_tokens = tokens
    record.choices = log.choices
    if log.first_visible is not None:
        record.first_visible_ns = log.first_visible - due
    if log.counts.prompt is not None:
        record.prompt_tokens = log.counts.prompt
    record.cached_tokens = log.counts.cached
    record.finish_reason = log.finish_reason
    if log.text is not None:
        record.text = "".join(log.text)
    return record
