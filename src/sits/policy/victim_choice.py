"""Which running request loses its KV blocks when there are none left.

The scheduler never offers the oldest running request, so whatever is decided here, something always finishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RunningRequest(Protocol):
    """What a policy may know of a request that could be preempted."""

    arrival_ns: int
    priority: int  # lower is more urgent
    num_computed: int  # tokens whose K and V would have to be computed again
    preemptions: int


class VictimChoice(Protocol):
    """Decides who is preempted."""

    def decide(self, running: Sequence[RunningRequest]) -> int:
        """Index into ``running`` (never empty, in order of admission)."""


class NewestFirst:
    """The least urgent, then the latest arrival: work done longest ago is kept."""

    def decide(self, running: Sequence[RunningRequest]) -> int:
        """Index of the latest arrival among the least urgent."""
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_ns))


class CheapestFirst:
    """The least urgent, then the fewest tokens to compute again, counted double for each earlier preemption."""

    def decide(self, running: Sequence[RunningRequest]) -> int:
        """Index of the request that is cheapest to compute again."""

        def cost(index: int) -> tuple[int, int, int]:
            request = running[index]
            return -request.priority, request.num_computed << min(request.preemptions, 16), -request.arrival_ns

        return min(range(len(running)), key=cost)
