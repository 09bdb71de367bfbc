"""Plays the plan of one answer into a connection, each piece on its exact deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sits.bench.mock.plan import Plan

if TYPE_CHECKING:
    from sits.bench.mock.connection import Connection


class Player:
    """Plays one plan into one connection."""

    __slots__ = ("alive", "connection", "index", "plan", "server", "start_ns")

    def __init__(self, connection: Connection, plan: Plan, start_ns: int):
        self.connection = connection
        self.server = connection.server
        self.plan = plan
        self.start_ns = start_ns
        self.index = 0
        self.alive = True

    def begin(self) -> None:
        # Time spent in the queue delays everything, as on a real server.
        if self.server.settings.slots:
            self.start_ns = max(self.start_ns, time.monotonic_ns())
        if self.plan.ending != "hang_headers":
            self.connection.write_head(self.plan)
        self.step()

    def step(self) -> None:
        """Write every frame that is due, then sleep until the next one."""
        frames, write = self.plan.frames, self.connection.write
        while self.alive and self.index < len(frames):
            offset, body = frames[self.index]
            if self.start_ns + offset > time.monotonic_ns():
                self.server.timer.call_at_ns(self.start_ns + offset, self.step)
                return
            self.index += 1
            write(body)
            if offset == 0 and self.index < len(frames):
                # A server without delays still writes one event at a time, in turn with its other streams.
                self.connection.loop.call_soon(self.step)
                return
        if self.alive:
            self.finish()

    def finish(self) -> None:
        plan = self.plan
        if plan.ending == "hang":
            return
        self.alive = False
        counters = self.server.counters
        counters.output_tokens += plan.output_tokens
        counters.finished += 1
        self.server.release()
        self.connection.end(plan)

    def abandon(self) -> None:
        """The client went away."""
        if self.alive:
            self.alive = False
            if not self.server.is_queued(self):
                self.server.release()
