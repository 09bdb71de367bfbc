"""Which tokens the next step computes, and what its result means for each request.

Continuous batching: every running request decodes in every step, and prefill chunks fill the rest of the token
budget of the *same* step, so a long prompt never stops the others. A request that needs a block when there is
none takes it from a victim, which will be computed again. Torch-free: it deals in ids and counts.

``add`` and ``cancel`` may be called from any thread and return at once; all else belongs to the engine thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns

from sits.cache.block_pool import BlockPool
from sits.cache.prefix_hash import root_digest
from sits.engine.event_log import EventLog
from sits.engine.request import CANCELLED, FAILED, Request, RequestState
from sits.engine.residency import Residency
from sits.engine.scheduler_config import QueueFullError, SchedulerConfig, SchedulerCounters
from sits.engine.step_batch import StepBatch, StepResult
from sits.engine.stopping import check_fits, finish_reason_after
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
        """Decide the next step; ``None`` when there is nothing to compute."""
        self.drop_cancelled()
        decodes, preempted = self._grow_decodes()
        budget = min(self.budget.decide(len(decodes), len(self.waiting)), self.config.max_step_tokens)
        left = budget - len(decodes)
        chunks: list[tuple[Request, int]] = []
        for request in self.running:
            if left <= 0:
                break
            missing = len(request.token_ids) - request.num_computed
            if missing > 1:
                chunks.append((request, min(missing, left)))
                left -= chunks[-1][1]
        if self.waiting and not preempted:  # never admit into a cache that just overflowed
            self._admit(left if decodes or chunks else max(left, 1), chunks)
        decodes += [request for request, count in chunks if count == 1]
        chunks = [chunk for chunk in chunks if chunk[1] > 1]
        if not decodes and not chunks:
            return None
        batch = StepBatch(
            index=self.counters.steps,
            name=f"step-{self.counters.steps}",
            requests=decodes + [request for request, _ in chunks],
            counts=[1] * len(decodes) + [count for _, count in chunks],
            num_decodes=len(decodes),
        )
        self._record_schedule(batch)
        return batch

    def complete(self, batch: StepBatch, result: StepResult, end_event: int = -1) -> None:
        """Take in the result of a step; :meth:`take_touched` tells who got a token or ended."""
        now = monotonic_ns()
        log, touched = self.log, self._touched
        sampled = dict(zip(batch.sample_rows, range(len(batch.sample_rows))))
        for row, (request, count) in enumerate(zip(batch.requests, batch.counts)):
            if request.state is not RequestState.RUNNING:
                continue  # ended between the decision and the result
            position = sampled.get(row)
            if position is not None and result.tokens[position] < 0:
                self.fail(request, "the model produced logits that are not finite (NaN or infinity)")
                continue
            request.num_computed += count
            self.residency.publish(request)
            if request.num_computed <= request.prompt_tokens or count > 1:
                done = request.num_computed
                request.last_event = log.add(EventKind.CHUNK, request.request_id, end_event, done, "", now)
            if request.followers and request.num_computed >= request.prompt_tokens:
                self._release_followers(request)
            if position is None or request.cancel_requested:
                continue
            token = result.tokens[position]
            request.token_ids.append(token)
            request.token_times_ns.append(now)
            index = len(request.token_ids) - request.prompt_tokens - 1
            request.last_event = log.add(EventKind.TOKEN, request.request_id, end_event, index, "", now)
            if result.logprobs is not None and (entry := result.logprobs[position]) is not None:
                request.logprobs.append(entry)
            self.counters.output_tokens += 1
            touched[request] = None
            reason = finish_reason_after(request, token)
            if reason is not None:
                self.finish(request, reason)
        log.add(EventKind.PERCEIVED, batch.name, end_event)

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
        """End a request: its blocks and its row are free again."""
        if request.state is RequestState.RUNNING:
            self.residency.leave(request, forget=forget)
            del self.running[request]
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
        self.residency.check_integrity(self.running)

    def _grow_decodes(self) -> tuple[list[Request], bool]:
        """The requests that decode in this step, each with a place for its token; and whether anyone lost theirs."""
        decodes = [r for r in self.running if len(r.token_ids) - r.num_computed == 1]
        before, size = self.counters.preemptions, self.pool.block_size
        for request in decodes:
            if request.state is RequestState.RUNNING and request.num_computed >= len(request.blocks) * size:
                while not self.residency.extend(request):
                    victim = self._choose_victim()
                    self._preempt(victim)
                    if victim is request:
                        break
        if self.counters.preemptions == before:
            return decodes, False
        return [r for r in decodes if r.state is RequestState.RUNNING], True

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
        victim.num_computed = 0
        victim.state = RequestState.WAITING
        self.counters.preemptions += 1
        self.counters.recomputed_tokens += lost
        self._enqueue([victim])

    def _admit(self, left: int, chunks: list[tuple[Request, int]]) -> None:
        while left > 0 and self.waiting and len(self.running) < self.config.max_running:
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

    def _record_schedule(self, batch: StepBatch) -> None:
        now = monotonic_ns()
        log, enabled = self.log, self.log.enabled
        for row, (request, count) in enumerate(zip(batch.requests, batch.counts)):
            if request.num_computed + count == len(request.token_ids):
                batch.sample_rows.append(row)
            if not request.first_scheduled_ns:
                request.first_scheduled_ns = now
            if enabled:
                cause = request.last_event
                request.last_event = log.add(EventKind.SCHEDULED, request.request_id, cause, count, batch.name, now)
        self.counters.steps += 1
        self.counters.step_tokens += batch.num_tokens
