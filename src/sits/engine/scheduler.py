"""Which tokens the next step computes, and what its result means for each request.

Continuous batching: every running request decodes in every step, and prefill chunks fill the rest of the token
budget of the *same* step, so a long prompt never stops the others. A request that needs a block when there is
none takes it from a victim, which will be computed again. Torch-free: it deals in ids and counts.

A step may be decided while the one before it runs (``docs/engine.md``, "One step ahead"): its decode rows continue
with tokens that only the device knows yet. What must know them here, or must take blocks from a victim, waits.

``add`` and ``cancel`` may be called from any thread and return at once; all else belongs to the engine thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns

from sits.cache.block_pool import BlockPool
from sits.cache.prefix_hash import root_digest
from sits.engine.booking import book_step, find_candidates, take_in
from sits.engine.event_log import EventLog
from sits.engine.request import CANCELLED, FAILED, Request, RequestState
from sits.engine.residency import Residency
from sits.engine.scheduler_config import QueueFullError, SchedulerConfig, SchedulerCounters
from sits.engine.step_batch import StepBatch, StepResult
from sits.engine.stopping import check_fits, finish_reason
from sits.errors import SitsError
from sits.policy.queue_order import FirstComeFirstServed, QueueOrder
from sits.policy.token_budget import FixedTokenBudget, TokenBudget
from sits.policy.victim_choice import NewestFirst, VictimChoice
from sits.spec.events import EventKind


class Scheduler:
    """The queue, the running requests and their blocks."""

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        log: EventLog | None = None,
        *,
        budget: TokenBudget | None = None,
        order: QueueOrder | None = None,
        victims: VictimChoice | None = None,
    ):
        self.config = config
        self.pool = pool
        self.log = log if log is not None else EventLog(enabled=False)
        self.budget = budget or FixedTokenBudget(config.max_step_tokens)
        self.order = order or FirstComeFirstServed()
        self.victims = victims or NewestFirst()
        self.counters = SchedulerCounters()
        self.residency = Residency(pool, self.log, config.max_running)
        self.waiting: list[Request] = []  # by arrival; changed under the lock
        self.running: dict[Request, None] = {}  # by admission
        self._reserve = int(config.watermark * pool.capacity)
        self._cancels: deque[Request] = deque()
        self._touched: dict[Request, None] = {}
        self._in_flight = 0  # steps decided and not yet completed
        self._leaving: list[tuple[Request, bool]] = []  # ended, but the step in flight writes into their blocks
        self._lock = threading.Lock()
        self._roots: dict[str, bytes] = {}

    # Any thread.

    def add(self, request: Request, *, salt: str = "", followers: Sequence[Request] = ()) -> None:
        """Queue a request, and ``followers`` of the same prompt, which start when they can share its blocks.

        Raises ``InputError`` when it can never be served and ``QueueFullError`` when too many wait; then nothing
        is queued.
        """
        group = [request, *followers]
        root = self._roots.get(salt) or self._roots.setdefault(salt, root_digest(salt))
        for one in group:
            check_fits(one, self.config.max_model_len, self.pool.block_size, self.pool.capacity)
            one.root = root
        with self._lock:
            if len(self.waiting) >= self.config.max_waiting:
                raise QueueFullError(f"{len(self.waiting)} requests wait already", "Try again later")
            for one in group:
                one.arrival_ns = one.arrival_ns or monotonic_ns()
                arrival = self.log.add(EventKind.ARRIVAL, one.request_id, time_ns=one.arrival_ns)
                one.last_event = self.log.add(EventKind.PERCEIVED, one.request_id, arrival)
            request.followers = list(followers)
            self.waiting.append(request)

    def cancel(self, request: Request) -> bool:
        """End a request; it gets no further token. False when it has ended already."""
        with self._lock:
            if request.finished or request.cancel_requested:
                return False
            asked = self.log.add(EventKind.CANCEL_REQUESTED, request.request_id)
            request.cancel_requested = True
            self._cancels.append(request)
            request.cancel_event = self.log.add(EventKind.PERCEIVED, request.request_id, asked)
            return True

    @property
    def has_work(self) -> bool:
        """Whether :meth:`schedule` has anything to decide."""
        return bool(self.running or self.waiting or self._cancels)

    # Engine thread.

    def schedule(self) -> StepBatch | None:
        """Decide the next step; ``None`` when there is nothing to compute, or nothing before the steps in flight end.

        At most one step may be in flight.
        """
        self.drop_cancelled()
        found = self._find_work()
        if found is None:
            return None
        decodes, prompts, preempted = found
        budget = min(self.budget.decide(len(decodes), len(self.waiting)), self.config.max_step_tokens)
        left = budget - len(decodes)
        chunks: list[tuple[Request, int]] = []
        for request in prompts:
            if left <= 0:
                break
            chunks.append((request, min(len(request.token_ids) - request.scheduled, left)))
            left -= chunks[-1][1]
        if self.waiting and not preempted:  # never admit into a cache that just overflowed
            self._admit(left if decodes or chunks else max(left, 1), chunks)
        decodes += [request for request, count in chunks if count == 1]
        chunks = [chunk for chunk in chunks if chunk[1] > 1]
        if not decodes and not chunks:
            return None
        self._in_flight += 1
        self.counters.steps += 1
        batch = book_step(self.counters.steps - 1, decodes, chunks, self.log)
        self.counters.step_tokens += batch.num_tokens
        return batch

    def complete(self, batch: StepBatch, result: StepResult, end_event: int = -1) -> None:
        """Take in the result of a step; :meth:`take_touched` tells who got a token or ended."""
        bad = batch.without_token(result)
        self._step_over(bad)
        now, log, touched, size = monotonic_ns(), self.log, self._touched, self.pool.block_size
        running, publish = RequestState.RUNNING, self.residency.publish
        for request, start, count in zip(batch.requests, batch.starts, batch.counts):
            if request.state is not running:
                continue  # ended between the decision and the result
            if request in bad:
                self.fail(request, "the model produced logits that are not finite (NaN or infinity)")
                continue
            request.num_computed = computed = start + count
            if computed // size > request.published:
                publish(request)
            if count > 1 or computed <= request.prompt_tokens:
                request.last_event = log.add(EventKind.CHUNK, request.request_id, end_event, computed, "", now)
            if request.followers and computed >= request.prompt_tokens:
                self._release_followers(request)
        got = take_in(batch, result, log, end_event, now)
        self.counters.output_tokens += len(got)
        touched.update(dict.fromkeys(got))
        for request in got:
            reason = finish_reason(request)
            if reason is not None:
                self.finish(request, reason)
        log.add(EventKind.PERCEIVED, batch.name, end_event)

    def abandon(self, batch: StepBatch, message: str) -> None:
        """End all requests of a step that has no result: what raised tells nothing about single requests."""
        self._step_over(set(batch.requests))
        for request in batch.requests:
            if not request.finished:
                self.fail(request, message)

    def take_touched(self) -> list[Request]:
        """Requests that got a token or ended since the last call, in that order."""
        touched, self._touched = self._touched, {}
        return list(touched)

    def drop_cancelled(self) -> None:
        """End the requests whose callers asked for it."""
        while self._cancels:
            request = self._cancels.popleft()
            if not request.finished:
                request.last_event = request.cancel_event
                self.finish(request, CANCELLED)

    def fail(self, request: Request, message: str) -> None:
        """End a request with an error. What it wrote into the cache must not be reused."""
        request.error = message
        self.finish(request, FAILED, forget=True)

    def finish(self, request: Request, reason: str, *, forget: bool = False) -> None:
        """End a request: its blocks and its row are free again, at once or after the step in flight."""
        if request.state is RequestState.RUNNING:
            del self.running[request]
            if self._in_flight and request.scheduled > request.num_computed:
                self._leaving.append((request, forget))
            else:
                self.residency.leave(request, forget=forget)
        with self._lock:
            if request.state is RequestState.WAITING and request in self.waiting:
                self.waiting.remove(request)
            request.state = RequestState.FINISHED
        request.finish_reason = reason
        if request.followers:
            self._release_followers(request)
        request.finished_ns = monotonic_ns()
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        request.last_event = self.log.add(
            EventKind.FINISHED, request.request_id, request.last_event, request.output_tokens, reason
        )
        self._touched[request] = None

    def check_integrity(self) -> None:
        """Raise ``SitsError`` unless every block and every row has exactly its owners."""
        self.residency.check_integrity([*self.running, *(request for request, _ in self._leaving)])

    def _step_over(self, bad: set[Request]) -> None:
        """Let those go who ended before the step did; what ``bad`` ones wrote must not be reused."""
        self._in_flight -= 1
        leaving, self._leaving = self._leaving, []
        for request, forget in leaving:
            self.residency.leave(request, forget=forget or request in bad)

    def _find_work(self) -> tuple[list[Request], list[Request], bool] | None:
        """Who decodes in this step, each with a place for its token; who has more than one token to compute; whether
        anyone lost their blocks. ``None`` when that can only be said after the step in flight."""
        found = find_candidates(self.running, self.pool.block_size)
        if found is None:
            return None
        decodes, prompts, full = found
        before = self.counters.preemptions
        for request in full:
            while request.state is RequestState.RUNNING and not self.residency.extend(request):
                if self._in_flight:
                    return None
                self._preempt(self._choose_victim())
        if self.counters.preemptions == before:
            return decodes, prompts, False
        running = RequestState.RUNNING
        return [r for r in decodes if r.state is running], [r for r in prompts if r.state is running], True

    def _choose_victim(self) -> Request:
        candidates = list(self.running)
        if len(candidates) == 1:
            raise SitsError("the KV cache is full with a single request", "This is a bug in SITS")
        candidates.remove(min(candidates, key=lambda request: request.arrival_ns))  # so that something finishes
        return candidates[self.victims.decide(candidates)]

    def _preempt(self, victim: Request) -> None:
        self.residency.leave(victim)
        del self.running[victim]
        lost = victim.num_computed
        victim.last_event = self.log.add(EventKind.PREEMPTED, victim.request_id, victim.last_event, lost)
        victim.preemptions += 1
        victim.num_computed = victim.scheduled = 0
        victim.state = RequestState.WAITING
        self.counters.preemptions += 1
        self.counters.recomputed_tokens += lost
        self._enqueue([victim])

    def _admit(self, left: int, chunks: list[tuple[Request, int]]) -> None:
        while left > 0 and self.waiting and len(self.running) + len(self._leaving) < self.config.max_running:
            index = self.order.decide(self.waiting, monotonic_ns())
            if index is None:
                return
            request = self.waiting[index]
            if not self.residency.enter(request, self._reserve if self.running else 0):
                return
            with self._lock:
                self.waiting.remove(request)
            request.state = RequestState.RUNNING
            self.running[request] = None
            found = request.num_computed
            if request.admitted_ns:
                self.counters.recomputed_tokens -= found
            else:
                request.admitted_ns = monotonic_ns()
                request.cached_tokens = found
                self.counters.prompt_tokens += request.prompt_tokens
                self.counters.cached_tokens += found
            request.last_event = self.log.add(EventKind.ADMITTED, request.request_id, request.last_event, found)
            chunks.append((request, min(request.num_tokens - found, left)))
            left -= chunks[-1][1]

    def _enqueue(self, requests: list[Request]) -> None:
        """Put requests that are not new into the queue, which stays in order of arrival."""
        with self._lock:
            self.waiting = sorted([*self.waiting, *requests], key=lambda request: request.arrival_ns)

    def _release_followers(self, leader: Request) -> None:
        followers, leader.followers = leader.followers, []
        self._enqueue([request for request in followers if not request.finished])
