"""Which waiting request is admitted next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class QueuedRequest(Protocol):
    """What a policy may know of a waiting request."""

    arrival_ns: int
    priority: int  # lower is more urgent

    @property
    def num_tokens(self) -> int:
        """Tokens to compute before the next output token."""


class QueueOrder(Protocol):
    """Decides the next admission. It is asked again after each one."""

    def decide(self, waiting: Sequence[QueuedRequest], now_ns: int) -> int | None:
        """Index into ``waiting`` (never empty) of the next request, or ``None`` to admit nobody in this step."""


class FirstComeFirstServed:
    """By arrival. The queue is kept in that order, preempted requests included, so this is the first one."""

    def decide(self, waiting: Sequence[QueuedRequest], now_ns: int) -> int | None:
        """Always the first."""
        return 0


class PriorityOrder:
    """By priority, then by arrival; a request gains one level for each ``aging_seconds`` it waits."""

    def __init__(self, aging_seconds: float = 10.0):
        self.aging_ns = int(aging_seconds * 1e9)

    def decide(self, waiting: Sequence[QueuedRequest], now_ns: int) -> int | None:
        """The most urgent request, counting how long it has waited."""

        def urgency(index: int) -> tuple[int, int]:
            request = waiting[index]
            return request.priority - (now_ns - request.arrival_ns) // self.aging_ns, request.arrival_ns

        return min(range(len(waiting)), key=urgency)
