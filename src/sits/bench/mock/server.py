"""The mock endpoint: what its connections share, from the queue for slots to the prefix cache."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sits.bench.mock.connection import Connection
from sits.bench.mock.metrics_page import Counters
from sits.bench.mock.plan import BYTES_PER_TOKEN, Asked, Plan, plan_answer
from sits.bench.mock.player import Player
from sits.bench.mock.script import Script
from sits.bench.timer import PreciseTimer
from sits.errors import InputError


@dataclass(slots=True)
class MockSettings:
    """What the server does when a request says nothing else."""

    script: Script = field(default_factory=Script)
    models: tuple[str, ...] = ("mock",)
    slots: int = 0  # answers played at once; further ones queue. 0 = no limit
    api_key: str | None = None
    metrics_flavor: str = "vllm"
    max_model_len: int = 131072
    keep_alive_requests: int = 0  # close the connection after this many answers; 0 = never
    requests: list[dict[str, Any]] = field(default_factory=list)  # last requests seen, for tests (log_requests)
    log_requests: bool = False


class MockServer:
    """All state shared by the connections of one mock endpoint."""

    def __init__(self, settings: MockSettings | None = None):
        self.settings = settings or MockSettings()
        self.counters = Counters()
        self.requests = 0
        self._active = 0
        self._queue: deque[Player] = deque()
        self._plans: dict[tuple[Script, Asked], Plan] = {}
        self._prefixes: set[int] = set()
        self.timer: PreciseTimer
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0, ssl_context: Any = None) -> int:
        """Listen; returns the port. Raises ``InputError`` when the address cannot be used."""
        loop = asyncio.get_running_loop()
        self.timer = PreciseTimer(loop)
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, ssl=ssl_context, backlog=4096, reuse_address=True
            )
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port}: {_reason(error)}", "Choose another --port") from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def serve_forever(self) -> None:
        """Serve until cancelled."""
        assert self._server is not None
        await self._server.serve_forever()

    async def close(self) -> None:
        """Stop listening and playing."""
        if self._server is not None:
            self._server.close()
            self.timer.close()

    def is_queued(self, player: Player) -> bool:
        """Whether an answer still waits for a slot."""
        return player in self._queue

    def admit(self, player: Player) -> None:
        """Start playing, or queue when all slots are taken."""
        self.counters.waiting += 1
        if self.settings.slots and self._active >= self.settings.slots:
            self._queue.append(player)
        else:
            self._begin(player)

    def release(self) -> None:
        """An answer ended; the next one in the queue starts."""
        self._active -= 1
        self.counters.running -= 1
        while self._queue:
            player = self._queue.popleft()
            if player.alive:
                self._begin(player)
                return
            self.counters.waiting -= 1

    def _begin(self, player: Player) -> None:
        self._active += 1
        self.counters.waiting -= 1
        self.counters.running += 1
        player.begin()

    def plan(self, script: Script, asked: Asked) -> Plan:
        """The plan of an answer; planning the same answer twice costs one dictionary look-up."""
        key = (script, asked)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > 512:
                self._plans.clear()
            plan = plan_answer(script, asked)
            if plan.chunked:
                plan.frames = [(ns, b"%x\r\n%b\r\n" % (len(body), body)) for ns, body in plan.frames if body]
            self._plans[key] = plan
        return plan

    def cached_tokens(self, text: bytes) -> int:
        """Prefix-cache hits of a prompt in blocks of 16 tokens, and remember its blocks."""
        block = 16 * BYTES_PER_TOKEN
        hits, chain, missed = 0, 0, False
        for start in range(0, len(text) - block + 1, block):
            chain = hash((chain, text[start : start + block]))
            if chain not in self._prefixes:
                missed = True
                if len(self._prefixes) < 1_000_000:
                    self._prefixes.add(chain)
            elif not missed:
                hits += 16
        self.counters.prefix_queries += len(text) // BYTES_PER_TOKEN
        self.counters.prefix_hits += hits
        return hits


def _reason(error: OSError) -> str:
    """The system's words; event loops put their own in front."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
