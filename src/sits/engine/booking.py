"""Turns a decision into a step, and advances what its requests will have when it is over."""

from __future__ import annotations

from time import monotonic_ns

from sits.engine.event_log import EventLog
from sits.engine.request import Request
from sits.engine.step_batch import StepBatch
from sits.spec.events import EventKind


def book_step(index: int, decodes: list[Request], chunks: list[tuple[Request, int]], log: EventLog) -> StepBatch:
    """The step ``index`` of requests that compute one token each and of (request, tokens) chunks."""
    now, name = monotonic_ns(), f"step-{index}"
    add = log.add if log.enabled else None
    requests = decodes + [request for request, _ in chunks]
    counts = [1] * len(decodes) + [count for _, count in chunks]
    starts: list[int] = []
    decode_ids: list[int] = []
    sample_rows: list[int] = []
    for row, request in enumerate(requests):
        start, count, known = request.scheduled, counts[row], len(request.token_ids)
        if row < len(decodes):
            decode_ids.append(request.token_ids[start] if start < known else -1 - request.unknown_at)
        starts.append(start)
        request.scheduled = end = start + count
        if end >= known:  # the last token there is
            request.unknown += 1
            request.unknown_at = len(sample_rows)
            sample_rows.append(row)
        if not request.first_scheduled_ns:
            request.first_scheduled_ns = now
        if add is not None:
            cause = request.last_event
            request.last_event = add(EventKind.SCHEDULED, request.request_id, cause, count, name, now)
    return StepBatch(index, name, requests, counts, len(decodes), sample_rows, starts, decode_ids)
