"""More client processes when one core is not enough.

The parent keeps the one scheduler: it decides when each request is due and hands it to the worker with the fewest in
flight. Workers carry out and stamp; CLOCK_MONOTONIC is one clock for all processes of a Linux machine. Frames are
a 4-byte length and a msgpack array.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from typing import Any

import msgspec

from sits.bench.client import RequestSpec, TargetInfo
from sits.bench.http.bodies import BodyStyle
from sits.bench.http.client import HttpClient
from sits.bench.http.health import LoopWatch
from sits.bench.http.options import EndpointOptions
from sits.errors import SitsError
from sits.spec.records import CANCELLED, ERROR, RequestRecord

_STATS_S = 0.25
_CANCEL_WAIT_S = 1.0


class Setup(msgspec.Struct, array_like=True):
    """First frame to a worker."""

    number: int
    options: EndpointOptions
    style: BodyStyle


class Order(msgspec.Struct, array_like=True):
    """Carry out a request; without ``spec``: cancel it."""

    ticket: int
    t_due: int = 0
    spec: RequestSpec | None = None


class Report(msgspec.Struct, array_like=True):
    """A record, or (ticket -1) what the worker's loop watch noted."""

    ticket: int
    record: RequestRecord | None = None
    at: list[int] = []
    late: list[int] = []
    cpu: list[float] = []


_encode = msgspec.msgpack.Encoder().encode
_decode_setup = msgspec.msgpack.Decoder(Setup).decode
_decode_order = msgspec.msgpack.Decoder(Order).decode
_decode_report = msgspec.msgpack.Decoder(Report).decode


def frame(message: Any) -> bytes:
    """A message with its length in front."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class Frames(asyncio.Protocol):
    """Cuts a byte stream into frames."""

    def __init__(self, on_frame: Any, on_lost: Any):
        self._on_frame, self._on_lost = on_frame, on_lost
        self._buffer = bytearray()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= 4:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if end > size:
                break
            self._on_frame(bytes(buffer[start + 4 : end]))
            start = end
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, number: int, child: subprocess.Popen[bytes]):
        self.number, self.child = number, child
        self.waiting: dict[int, asyncio.Future[RequestRecord]] = {}
        self.watch = LoopWatch()
        self.dead = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.frames: Frames

    def on_frame(self, body: bytes) -> None:
        report = _decode_report(body)
        if report.record is None:
            if not self.ready.done():
                self.ready.set_result(None)
            self.watch.at += report.at
            self.watch.late += report.late
            self.watch.cpu += report.cpu
            return
        future = self.waiting.pop(report.ticket, None)
        if future is not None and not future.done():
            future.set_result(report.record)

    def on_lost(self) -> None:
        self.dead = True
        if not self.ready.done():
            self.ready.set_exception(SitsError("a client process did not start"))
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(ConnectionError(f"client process {self.number} died"))
        self.waiting.clear()


class WorkerClient:
    """A client that spreads its requests over ``count`` processes. Probing and metrics stay in the parent."""

    def __init__(self, options: EndpointOptions, count: int):
        self.inner = HttpClient(options)
        self.count = count
        self._workers: list[_Worker] = []
        self._ticket = 0

    @property
    def style(self) -> BodyStyle:
        """How bodies are written (learnt by the parent's probe)."""
        return self.inner.style

    async def open(self) -> TargetInfo:
        """Probe, then start the workers. Raises ``InputError`` or ``SitsError``."""
        info = await self.inner.open()
        loop = asyncio.get_running_loop()
        for number in range(1, self.count + 1):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            command = [sys.executable, "-m", "sits.bench.http.workers", str(theirs.fileno())]
            child = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
            theirs.close()
            worker = _Worker(number, child)
            _, worker.frames = await loop.create_connection(lambda w=worker: Frames(w.on_frame, w.on_lost), sock=ours)  # type: ignore[misc]
            worker.frames.transport.write(frame(Setup(number, self.inner.options, self.style)))
            self._workers.append(worker)
        await asyncio.gather(*(worker.ready for worker in self._workers))
        info.notes.append(f"{self.count} client processes")
        return info

    async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
        """As :meth:`HttpClient.send`, carried out by a worker."""
        alive = [worker for worker in self._workers if not worker.dead]
        if not alive:
            raise SitsError("all client processes have died")
        worker = min(alive, key=lambda candidate: len(candidate.waiting))
        self._ticket += 1
        ticket = self._ticket
        future: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        worker.waiting[ticket] = future
        worker.frames.transport.write(frame(Order(ticket, t_due, request)))
        try:
            return await asyncio.shield(future)
        except ConnectionError as error:
            return _lost(request, t_due, ERROR, str(error), worker.number)
        except asyncio.CancelledError:
            worker.frames.transport.write(frame(Order(ticket)))
            await asyncio.wait({future}, timeout=_CANCEL_WAIT_S)
            if future.done() and future.exception() is None:
                return future.result()
            return _lost(request, t_due, CANCELLED, "cancelled", worker.number)

    def load_of_workers(self, start_ns: int, end_ns: int) -> list[tuple[float | None, float | None]]:
        """(loop lag p99 ms, CPU share) of each worker between two times."""
        return [worker.watch.within(start_ns, end_ns) for worker in self._workers]

    async def snapshot(self) -> dict[str, float]:
        """The server's gauges and counters."""
        return await self.inner.snapshot()

    async def close(self) -> None:
        """End the workers. Safe to call twice."""
        await self.inner.close()
        for worker in self._workers:
            worker.frames.transport.close()
        for worker in self._workers:
            try:
                await asyncio.get_running_loop().run_in_executor(None, worker.child.wait, 2)
            except subprocess.TimeoutExpired:
                worker.child.kill()
                worker.child.wait()
        self._workers = []


def _lost(request: RequestSpec, t_due: int, status: str, error: str, worker: int) -> RequestRecord:
    return RequestRecord(
        request_id=request.request_id,
        t_due=t_due,
        t_sent=t_due,
        t_end=time.monotonic_ns(),
        status=status,
        error=error,
        error_kind="client_process" if status == ERROR else "cancelled",
        requested_output_tokens=request.max_tokens,
        worker=worker,
    )


class _WorkerMain:
    """The worker's end."""

    def __init__(self) -> None:
        self.client: HttpClient | None = None
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.watch = LoopWatch()
        self.frames = Frames(self.on_frame, self.on_lost)
        self.ended = asyncio.get_running_loop().create_future()

    def on_frame(self, body: bytes) -> None:
        if self.client is None:
            setup = _decode_setup(body)
            self.client = HttpClient(setup.options, setup.style)
            self.client.worker = setup.number
            self.watch.start()
            self.report_load()  # the first one says: ready
            return
        order = _decode_order(body)
        if order.spec is None:
            task = self.tasks.get(order.ticket)
            if task is not None:
                task.cancel()
            return
        task = asyncio.get_running_loop().create_task(self.carry_out(order.ticket, order.spec, order.t_due))
        self.tasks[order.ticket] = task

    async def carry_out(self, ticket: int, spec: RequestSpec, t_due: int) -> None:
        assert self.client is not None
        record = await self.client.send(spec, t_due)
        del self.tasks[ticket]
        self.frames.transport.write(frame(Report(ticket, record)))

    def report_load(self) -> None:
        watch = self.watch
        self.frames.transport.write(frame(Report(-1, None, watch.at, watch.late, watch.cpu)))
        watch.at, watch.late, watch.cpu = [], [], []
        asyncio.get_running_loop().call_later(_STATS_S, self.report_load)

    def on_lost(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def worker_main(descriptor: int) -> None:
    """Serve orders on a socket until the parent closes it."""
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    main = _WorkerMain()
    await asyncio.get_running_loop().create_connection(lambda: main.frames, sock=sock)
    await main.ended
    os._exit(0)


if __name__ == "__main__":
    import signal

    from sits.bench.mock.process import run_event_loop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    run_event_loop(worker_main(int(sys.argv[1])))
