"""What a load level leaves behind: its records, which of them count, and the records of what did not end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sits.bench.client import RequestSpec
from sits.bench.rounds import Rounds
from sits.spec.records import TIMEOUT, RequestRecord
from sits.spec.result import Convergence


@dataclass(slots=True)
class PointOutcome:
    """What a load level left: all records (phases told apart), and how it ended."""

    records: list[RequestRecord]
    convergence: Convergence
    started_ns: int = 0
    partial: bool = False
    next_index: int = 0  # first prompt index that was not used
    notes: list[str] = field(default_factory=list)


def leave_out_early(records: list[RequestRecord], rounds: Rounds, window_start_ns: int | None) -> str | None:
    """Mark the requests of rounds before the last ones as warm-up: the window moved on past them.

    ``window_start_ns`` is where the last rounds begin if they end by the clock; None if they end by count. Returns a
    note for the result.
    """
    measured = [record for record in records if record.phase == "measure"]
    if window_start_ns is not None:
        early = [record for record in measured if record.t_due < window_start_ns]
    else:
        early = measured[: max(0, len(measured) - rounds.requests)] if rounds.requests else []
    for record in early:
        record.phase = "warmup"
    extra = len(rounds.values) - rounds.rounds
    return (
        f"{extra} rounds before the last {rounds.rounds} are left out (not settled)" if early and extra > 0 else None
    )


def unfinished(spec: RequestSpec, due: int, status: str) -> RequestRecord:
    """The record of a request that was cut off, or never came back from its client."""
    now = time.monotonic_ns()
    return RequestRecord(
        request_id=spec.request_id,
        t_due=due,
        t_sent=due,
        t_end=now,
        status=status,
        prompt_tokens=spec.prompt_tokens,
        requested_output_tokens=spec.max_tokens,
        error="cut off by the load generator" if status == TIMEOUT else None,
        error_kind="timeout_drain" if status == TIMEOUT else None,
    )
