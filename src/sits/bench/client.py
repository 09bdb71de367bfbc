"""What a benchmark drives: a target that answers one request at a time, many at once.

The HTTP client (``bench/http``) and the embedded engine (``engine/bench_client.py``) both implement
:class:`Client`. The runner decides *when* a request is due; the client only carries it out and stamps times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from sits.spec.records import RequestRecord


@dataclass(slots=True)
class RequestSpec:
    """One request of a workload. Exactly one of ``prompt_ids``, ``prompt`` and ``messages`` is set."""

    request_id: str
    max_tokens: int
    prompt_ids: list[int] | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt_tokens: int | None = None  # length, where known or estimated
    ignore_eos: bool = True
    temperature: float = 0.0
    seed: int | None = None
    tenant: str | None = None
    session: str | None = None
    turn: int = 0
    extra: dict[str, Any] = field(default_factory=dict)  # further body fields for an endpoint


@dataclass(slots=True)
class TargetInfo:
    """What the target says of itself when opened; goes into the result."""

    kind: str  # embedded | endpoint
    name: str
    card: dict[str, Any] = field(default_factory=dict)  # model card with hash, dtype, parameters, ...
    max_context: int | None = None
    vocab_size: int | None = None
    notes: list[str] = field(default_factory=list)


class Client(Protocol):
    """A benchmark target. ``send`` must not raise for a failed request: the record says what failed."""

    async def open(self) -> TargetInfo:
        """Load or probe the target. Raises ``InputError`` when it cannot be used at all."""

    async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
        """Carry out one request; ``t_due`` is its scheduled time (``time.monotonic_ns``)."""

    async def snapshot(self) -> dict[str, float]:
        """Server-side gauges and counters at this moment (queue, KV use, ...); may be empty."""

    async def close(self) -> None:
        """Release everything. Safe to call twice."""
