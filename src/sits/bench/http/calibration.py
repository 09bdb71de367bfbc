"""Measure the client itself before it measures anything else: against a built-in loopback server in its own process.

Two parts: how many requests and events a second one core takes (0-ms server, closed loop), and how much the client
adds to a known TTFT at a light load. Both go into the result beside the figures they qualify.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from sits.bench.client import RequestSpec
from sits.bench.http.client import HttpClient
from sits.bench.http.options import EndpointOptions
from sits.bench.http.pool import PoolOptions
from sits.bench.mock.process import mock_process
from sits.spec.records import RequestRecord

_TOKENS = 32
_TTFT_MS = 5.0
_LIGHT_GAP_S = 0.01


async def calibrate(seconds: float = 2.5, concurrency: int = 16, api: str = "chat") -> dict[str, float]:
    """Figures of this machine's client. Takes ``seconds`` plus about 0.3 s to start the server.

    ``loopback_requests_per_s`` (as many callers as ``concurrency``, 32 tokens each; the server's limit or ours),
    ``cpu_ms_per_request``, ``max_events_per_s`` (events a whole core would take at that cost), ``overhead_p50_ms``,
    ``overhead_p99_ms`` (TTFT beyond the scripted one at a light load, the server's own delay included).
    """
    loop = asyncio.get_running_loop()
    starting = mock_process("ttft=0,itl=0")
    url = await loop.run_in_executor(None, starting.__enter__)
    try:
        figures = await _capacity(url, api, 0.6 * seconds, max(1, min(64, concurrency)))
        figures |= await _overhead(url, api, 0.4 * seconds)
    finally:
        await loop.run_in_executor(None, lambda: starting.__exit__(None, None, None))
    return {name: round(value, 4) for name, value in figures.items()} | {"seconds": seconds}


def _client(url: str, api: str, script: str) -> HttpClient:
    return HttpClient(EndpointOptions(url, api, f"mock:{script}", pool=PoolOptions(proxy="none"), probe=False))


async def _capacity(url: str, api: str, seconds: float, concurrency: int) -> dict[str, float]:
    client = _client(url, api, "ttft=0,itl=0")
    spec = RequestSpec("calibration", _TOKENS, prompt="calibration " * 16)
    stop = time.monotonic() + seconds + 0.1
    measure_from = time.monotonic() + 0.1
    ended: list[float] = []

    async def caller() -> None:
        while time.monotonic() < stop:
            await client.send(spec, time.monotonic_ns())
            ended.append(time.monotonic())

    cpu = time.process_time()
    await asyncio.gather(*(caller() for _ in range(concurrency)))
    cpu = time.process_time() - cpu
    await client.close()
    counted = sum(1 for at in ended if measure_from <= at <= stop)
    each = cpu / max(1, len(ended))
    return {
        "loopback_requests_per_s": counted / seconds,
        "cpu_ms_per_request": 1e3 * each,
        "max_events_per_s": _TOKENS / each if each else 0.0,
    }


async def _overhead(url: str, api: str, seconds: float) -> dict[str, float]:
    client = _client(url, api, f"ttft={_TTFT_MS},itl=1")
    spec = RequestSpec("calibration", 4, prompt="calibration")
    tasks: list[asyncio.Task[RequestRecord]] = []
    start = time.monotonic_ns()
    for index in range(max(10, int(seconds / _LIGHT_GAP_S))):
        due = start + round((index + 1) * _LIGHT_GAP_S * 1e9)
        tasks.append(asyncio.ensure_future(client.send(spec, due)))
    records = await asyncio.gather(*tasks)
    await client.close()
    late: Any = np.array([r.chunk_times_ns[0] / 1e6 - _TTFT_MS for r in records if r.chunk_times_ns])
    if not len(late):
        return {}
    return {"overhead_p50_ms": float(np.percentile(late, 50)), "overhead_p99_ms": float(np.percentile(late, 99))}
