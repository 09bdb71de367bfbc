"""One loop: decide, compute, take in the result, tell whoever waits. Everything runs on the caller's thread.

With ``overlap`` the loop is one step ahead of the device: while it computes a step, the next one is decided and
handed over, and only then is the result of the first taken in. So the device goes from one step into the next.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from time import monotonic_ns
from typing import Generic, Protocol, TypeVar

from sits.engine.event_log import EventLog
from sits.engine.request import Request
from sits.engine.scheduler import Scheduler
from sits.engine.step_batch import StepBatch, StepResult
from sits.errors import SitsError
from sits.spec.events import EventKind

logger = logging.getLogger(__name__)


class RunningStep(Protocol):
    """A step on the device."""

    ended_ns: int  # when the device had finished it (monotonic); set by ``fetch``

    def fetch(self) -> StepResult:
        """Wait for it. Raises what went wrong on the device."""


class StepRunner(Protocol):
    """The device as the loop sees it; steps run in the order in which they were given."""

    def execute(self, batch: StepBatch) -> RunningStep:
        """Hand a step over. Raises ``SitsError`` when there is no memory for it."""

    def zero_blocks(self, blocks: list[int]) -> None:
        """Clear KV blocks, after the steps given so far."""


@dataclass(slots=True)
class _Flight:
    batch: StepBatch
    step: RunningStep
    begin_ns: int
    begin_event: int


RunnerT = TypeVar("RunnerT", bound=StepRunner)


class EngineCore(Generic[RunnerT]):
    """Scheduler and runner joined by :meth:`step`."""

    def __init__(self, scheduler: Scheduler, runner: RunnerT, log: EventLog, *, overlap: bool = False):
        self.scheduler = scheduler
        self.runner = runner
        self.log = log
        self.overlap = overlap
        self._flight: _Flight | None = None  # handed to the device, result not taken in yet
        self._last_end_ns = 0
        self._poisoned: list[int] = []  # blocks to clear as soon as nobody owns them

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do."""
        return self._flight is not None or self.scheduler.has_work

    def step(self) -> bool:
        """Decide and hand over one step, take in one; False when there was nothing to do."""
        before, batch = self._flight, self.scheduler.schedule()
        if batch is None:
            self.drain()
            return before is not None
        begin_ns = monotonic_ns()
        begin = self.log.add(EventKind.STEP_BEGIN, batch.name, value=batch.num_tokens, time_ns=begin_ns)
        failure: Exception | None = None
        try:
            step = self.runner.execute(batch)
        except Exception as error:
            failure = error
        self._flight = None
        if before is not None:
            self._take_in(before)
        if failure is not None:
            self._fail(batch, begin, failure)
        else:
            self._flight = _Flight(batch, step, begin_ns, begin)
            if not self.overlap:
                self.drain()
        self._deliver()
        return True

    def drain(self) -> None:
        """Take in the step in flight, if there is one, and tell whoever waits."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._take_in(flight)
        self._deliver()

    def run_until_idle(self) -> None:
        """Step until no request is left."""
        while self.has_work:
            self.step()

    def _take_in(self, flight: _Flight) -> None:
        batch, step = flight.batch, flight.step
        try:
            result = step.fetch()
        except Exception as error:
            self._fail(batch, flight.begin_event, error)
            return
        ended = max(step.ended_ns, flight.begin_ns)
        end = self.log.add(EventKind.STEP_END, batch.name, flight.begin_event, len(batch.requests), time_ns=ended)
        seconds = (ended - max(flight.begin_ns, self._last_end_ns)) / 1e9  # of the device, which has one at a time
        self._last_end_ns = ended
        self.scheduler.budget.observe(max(seconds, 0.0), batch.num_tokens, batch.num_decodes)
        poisoned = self._poisoned_blocks(batch, result)
        self.scheduler.complete(batch, result, end)
        self._clear(poisoned)

    def _fail(self, batch: StepBatch, begin: int, error: Exception) -> None:
        """A step that raised tells nothing about single requests, so all of it fail; the engine goes on."""
        if not isinstance(error, SitsError):
            logger.error("step %d failed", batch.index, exc_info=error if os.environ.get("SITS_DEBUG") else None)
        self.log.add(EventKind.STEP_END, batch.name, begin, len(batch.requests), "failed")
        self.scheduler.abandon(batch, str(error) or type(error).__name__)

    def _clear(self, poisoned: list[int]) -> None:
        """Clear blocks that hold values that are not finite. Those that the step in flight writes to wait for it."""
        if poisoned or self._poisoned:
            owned = self.scheduler.pool.references
            free = [block for block in {*poisoned, *self._poisoned} if not owned(block)]
            self._poisoned = [block for block in poisoned if owned(block)]
            if free:
                self.runner.zero_blocks(sorted(free))

    def _poisoned_blocks(self, batch: StepBatch, result: StepResult) -> list[int]:
        return sorted({block for request in batch.without_token(result) for block in request.blocks})

    def _deliver(self) -> None:
        for request in self.scheduler.take_touched():
            notify(request)


def notify(request: Request) -> None:
    """Call a request's listener; a listener that raises must not take the engine with it."""
    try:
        if request.on_update is not None:
            request.on_update(request)
    except Exception:
        logger.exception("the listener of request %s failed", request.request_id)
