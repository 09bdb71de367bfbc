"""The blocks and the table row of each running request, and the events that tell of them.

Between ``enter`` and ``leave`` a request owns one row and its blocks; nobody else changes either.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from sits.cache.block_pool import BlockPool
from sits.cache.prefix_hash import extend_digests
from sits.engine.event_log import EventLog
from sits.engine.request import Request
from sits.engine.stopping import blocks_for
from sits.errors import SitsError
from sits.spec.events import EventKind


class Residency:
    """Moves requests in and out of the KV cache."""

    def __init__(self, pool: BlockPool, log: EventLog, rows: int):
        self.pool = pool
        self.log = log
        self.num_rows = rows
        self._rows = list(range(rows))  # heap: low rows first keeps the tables compact

    def enter(self, request: Request, reserve: int) -> bool:
        """Give a request blocks for all its tokens, reused ones first; False when fewer than needed are left.

        ``reserve`` blocks must remain afterwards. Sets ``num_computed`` to what the prefix index provided.
        """
        pool, size = self.pool, self.pool.block_size
        hits: list[int] = []
        if pool.prefix_caching:
            # At least one token must be computed, or there would be no logits to sample from.
            full = (request.num_tokens - 1) // size
            extend_digests(request.digests, request.root, request.token_ids, size, full)
            hits = pool.match(request.digests[:full])
        needed = blocks_for(request.num_tokens, size) - len(hits)
        if pool.available - pool.count_cached(hits) < needed + reserve:
            return False
        pool.acquire(hits)
        room = blocks_for(request.prompt_tokens + request.max_tokens, size) - len(hits)
        fresh = pool.allocate(needed, after=hits[-1] if hits else None, room=room)
        assert fresh is not None  # counted just above
        request.blocks = hits + fresh
        request.num_computed = request.scheduled = len(hits) * size
        request.published = len(hits)
        request.row = heapq.heappop(self._rows)
        self._record(EventKind.BLOCK_REUSED, hits, request)
        self._record(EventKind.BLOCK_ALLOCATED, fresh, request)
        return True

    def extend(self, request: Request) -> bool:
        """One more block for a running request; False when there is none."""
        fresh = self.pool.allocate(1, after=request.blocks[-1])
        if fresh is None:
            return False
        request.blocks += fresh
        self._record(EventKind.BLOCK_ALLOCATED, fresh, request)
        return True

    def publish(self, request: Request) -> None:
        """Offer to others every block that is full and whose K and V are written."""
        full = request.num_computed // self.pool.block_size
        if full > request.published:
            if self.pool.prefix_caching:
                extend_digests(request.digests, request.root, request.token_ids, self.pool.block_size, full)
                for index in range(request.published, full):
                    self.pool.publish(request.blocks[index], request.digests[index])
            request.published = full

    def leave(self, request: Request, *, forget: bool = False) -> None:
        """Take the blocks and the row back. ``forget`` keeps the content from ever being reused."""
        unused = self.pool.release(request.blocks, forget=forget)
        self._record(EventKind.BLOCK_FREED, unused, request)
        request.blocks = []
        heapq.heappush(self._rows, request.row)
        request.row = -1

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Raise ``SitsError`` unless every block and every row has exactly its owners."""
        running = list(running)
        self.pool.check_integrity([request.blocks for request in running])
        if sorted(self._rows + [request.row for request in running]) != list(range(self.num_rows)):
            raise SitsError("a row of the batch tables is lost or used twice", "This is a bug in SITS")

    def _record(self, kind: EventKind, blocks: list[int], request: Request) -> None:
        if self.log.enabled:
            for block in blocks:
                self.log.add(kind, f"block-{block}", request.last_event, 0, request.request_id)
