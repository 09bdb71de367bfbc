"""Requests per second and CPU per request of one client core against a 0-ms SSE server on another core.

Interleaves our client with aiohttp (the fastest common Python client) on the same server, so that a busy machine
hits both alike:  python benchmarks/client/throughput.py [--seconds 4] [--rounds 3] [--concurrency 32] [--tokens 32]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable

import msgspec
import uvloop
from common import pin, real_time, save

from sits.bench.client import RequestSpec
from sits.bench.http.client import HttpClient
from sits.bench.http.options import EndpointOptions
from sits.bench.http.workers import WorkerClient
from sits.bench.mock.process import mock_process

PROMPT = "Write a short story about a lighthouse keeper and the sea. " * 4


async def closed_loop(one: Callable[[], Awaitable[int]], concurrency: int, seconds: float) -> tuple[int, int, float]:
    """``(requests, tokens, wall seconds)`` of ``concurrency`` workers calling ``one`` until time is up."""
    requests = tokens = 0
    start = time.monotonic()
    stop = start + seconds

    async def worker() -> None:
        nonlocal requests, tokens
        while time.monotonic() < stop:
            count = await one()
            tokens += count
            requests += 1

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return requests, tokens, time.monotonic() - start


async def ours(url: str, arguments: argparse.Namespace, seconds: float) -> tuple[int, int, float]:
    client = HttpClient(EndpointOptions(url, model="mock", probe=False))
    spec = RequestSpec("r", arguments.tokens, prompt=PROMPT)

    async def one() -> int:
        record = await client.send(spec, time.monotonic_ns())
        assert record.output_tokens == arguments.tokens, record
        return record.output_tokens

    outcome = await closed_loop(one, arguments.concurrency, seconds)
    await client.close()
    return outcome


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


async def with_aiohttp(url: str, arguments: argparse.Namespace, seconds: float) -> tuple[int, int, float]:
    """A careful aiohttp client: no connection cap, big buffer, typed decoding, a stamp per token."""
    import aiohttp

    body = {
        "model": "mock",
        "stream": True,
        "max_tokens": arguments.tokens,
        "stream_options": {"include_usage": True},
    }
    body["messages"] = [{"role": "user", "content": PROMPT}]
    raw, decode = msgspec.json.encode(body), msgspec.json.Decoder(_Chunk).decode
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4 << 20, auto_decompress=False) as session:

        async def one() -> int:
            stamps = []
            async with session.post(f"{url}/v1/chat/completions", data=raw, headers=headers) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        chunk = decode(line[6:])
                        if chunk.choices and chunk.choices[0].delta.content:
                            stamps.append(time.monotonic_ns())
            assert len(stamps) == arguments.tokens
            return len(stamps)

        return await closed_loop(one, arguments.concurrency, seconds)


async def processes(url: str, arguments: argparse.Namespace, seconds: float, count: int) -> dict[str, float]:
    """``count`` worker processes: what a request costs the parent and a worker, which is what limits scaling."""
    client = WorkerClient(EndpointOptions(url, model="mock"), count)
    await client.open()
    spec = RequestSpec("r", arguments.tokens, prompt=PROMPT)

    async def one() -> int:
        return (await client.send(spec, time.monotonic_ns())).output_tokens

    await closed_loop(one, arguments.concurrency, 0.3)
    start, own = time.monotonic_ns(), time.process_time()
    requests, tokens, wall = await closed_loop(one, arguments.concurrency, seconds)
    own = time.process_time() - own
    await asyncio.sleep(0.3)  # the workers' last report
    shares = [share or 0.0 for _, share in client.load_of_workers(start, time.monotonic_ns())]
    await client.close()
    return {
        "workers": count,
        "requests_per_s": round(requests / wall, 1),
        "tokens_per_s": round(tokens / wall, 1),
        "parent_cpu_ms_per_request": round(1e3 * own / requests, 4),
        "worker_cpu_ms_per_request": round(1e3 * sum(shares) * wall / requests, 4),
        "parent_could_feed_requests_per_s": round(requests / own, 0),
    }


CLIENTS = {"sits": ours, "aiohttp": with_aiohttp}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--real-time", action="store_true", help="SCHED_RR for client and server (busy machine)")
    arguments = parser.parse_args()
    scheduling = "SCHED_RR" if arguments.real_time and real_time() else "normal"
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in CLIENTS}
    with mock_process("ttft=0,itl=0", core=0) as url:
        pin(1)
        for _ in range(arguments.rounds):
            for name, client in CLIENTS.items():
                uvloop.run(client(url, arguments, 0.5))
                before = resource.getrusage(resource.RUSAGE_SELF)
                requests, tokens, wall = uvloop.run(client(url, arguments, arguments.seconds))
                after = resource.getrusage(resource.RUSAGE_SELF)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                rows[name].append(
                    {
                        "requests_per_s": requests / wall,
                        "tokens_per_s": tokens / wall,
                        "cpu_ms_per_request": 1e3 * cpu / requests,
                        "cpu_share": cpu / wall,
                        "requests_per_cpu_second": requests / cpu,
                    }
                )
    figures = {
        name: {key: round(statistics.median(row[key] for row in found), 3) for key in found[0]}
        for name, found in rows.items()
    }
    ratio = statistics.median(
        a["requests_per_s"] / b["requests_per_s"] for a, b in zip(rows["sits"], rows["aiohttp"])
    )
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with mock_process("ttft=0,itl=0") as url:
        several = uvloop.run(processes(url, arguments, arguments.seconds, 2))
    bars = {
        "requests_per_s_1400": figures["sits"]["requests_per_s"] >= 1400,
        "not_slower_than_aiohttp": ratio >= 1.0,
        "cpu_ms_per_request_0.35": figures["sits"]["cpu_ms_per_request"] <= 0.35,
    }
    body = {
        "bars": bars,
        "scheduling": scheduling,
        "settings": vars(arguments),
        **figures,
        "sits_over_aiohttp": round(ratio, 3),
    }
    save("client_throughput", {**body, "processes": several})


if __name__ == "__main__":
    main()
