"""What requests can do next; the step they then count on; the tokens that its result gives them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from time import monotonic_ns

from sits.engine.event_log import EventLog
from sits.engine.request import Request, RequestState
from sits.engine.step_batch import StepBatch, StepResult
from sits.spec.events import EventKind


def find_candidates(
    running: Iterable[Request], block_size: int
) -> tuple[list[Request], list[Request], list[Request]] | None:
    """Who has one token to compute next, who has more, and who of the first has no place for it in their blocks.

    ``None`` when somebody needs a token of the step in flight on the host.
    """
    decodes: list[Request] = []
    prompts: list[Request] = []
    full: list[Request] = []
    for request in running:
        scheduled, unknown = request.scheduled, request.unknown
        if request.cancel_requested:
            continue  # ends with the next decision
        if unknown:
            if request.output_tokens + unknown >= request.max_tokens:
                continue  # ends with the step in flight
            if request.needs_known_tokens:
                return None
        elif len(request.token_ids) - scheduled > 1:
            prompts.append(request)
            continue
        decodes.append(request)
        if scheduled >= len(request.blocks) * block_size:
            full.append(request)
    return decodes, prompts, full


def book_step(index: int, decodes: list[Request], chunks: list[tuple[Request, int]], log: EventLog) -> StepBatch:
    """The step ``index`` of requests that compute one token each and of (request, tokens) chunks.

    Advances what each of them has scheduled, and whether a token of it is unknown until the step is over.
    """
    now, name = monotonic_ns(), f"step-{index}"
    requests = decodes + [request for request, _ in chunks]
    counts = [1] * len(decodes) + [count for _, count in chunks]
    starts: list[int] = []
    decode_ids: list[int] = []
    sample_rows: list[int] = []
    for row, request in enumerate(decodes):
        start, tokens = request.scheduled, request.token_ids
        starts.append(start)
        request.scheduled = start + 1
        last = len(tokens) - 1
        if start >= last:  # the last token there is
            decode_ids.append(tokens[start] if start == last else -1 - request.unknown_at)
            request.unknown += 1
            request.unknown_at = len(sample_rows)
            sample_rows.append(row)
        else:
            decode_ids.append(tokens[start])
        if not request.first_scheduled_ns:
            request.first_scheduled_ns = now
    for row, (request, count) in enumerate(chunks, len(decodes)):
        starts.append(request.scheduled)
        request.scheduled += count
        if request.scheduled == len(request.token_ids):
            request.unknown += 1
            request.unknown_at = len(sample_rows)
            sample_rows.append(row)
        if not request.first_scheduled_ns:
            request.first_scheduled_ns = now
    if log.enabled:
        names, causes = [r.request_id for r in requests], [r.last_event for r in requests]
        events = log.add_each(EventKind.SCHEDULED, names, causes, counts, name, now)
        for request, event in zip(requests, events):
            request.last_event = event
    return StepBatch(index, name, requests, counts, len(decodes), sample_rows, starts, decode_ids)


def take_in(batch: StepBatch, result: StepResult, log: EventLog, end_event: int, now: int) -> list[Request]:
    """Give each request the token that a step chose for it; returns those that got one."""
    got: list[Request] = []
    logprobs = result.logprobs
    running = RequestState.RUNNING
    requests = batch.requests
    for position, (row, token) in enumerate(zip(batch.sample_rows, result.tokens)):
        request = requests[row]
        if request.state is not running or request.cancel_requested:
            continue  # ended between the decision and the result
        request.unknown -= 1
        request.token_ids.append(token)
        request.token_times_ns.append(now)
        if logprobs is not None and (entry := logprobs[position]) is not None:
            request.logprobs.append(entry)
        got.append(request)
    if log.enabled and got:
        names = [request.request_id for request in got]
        indices = [len(request.token_times_ns) - 1 for request in got]
        for request, event in zip(got, log.add_each(EventKind.TOKEN, names, repeat(end_event), indices, "", now)):
            request.last_event = event
    return got
