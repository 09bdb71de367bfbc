"""One loop: decide, compute, take in the result, tell whoever waits. Everything runs on the caller's thread."""

from __future__ import annotations

import logging
import os
from time import monotonic

from sits.engine.event_log import EventLog
from sits.engine.request import Request
from sits.engine.runner import Runner
from sits.engine.sampler import Sampled
from sits.engine.scheduler import Scheduler
from sits.engine.step_batch import StepBatch, StepResult
from sits.errors import SitsError
from sits.spec.events import EventKind

logger = logging.getLogger(__name__)


class EngineCore:
    """Scheduler and runner joined by :meth:`step`."""

    def __init__(self, scheduler: Scheduler, runner: Runner, log: EventLog):
        self.scheduler = scheduler
        self.runner = runner
        self.log = log

    def step(self) -> bool:
        """Run one step; False when there was nothing to compute."""
        batch = self.scheduler.schedule()
        if batch is None:
            self._deliver()
            return False
        started = monotonic()
        begin = self.log.add(EventKind.STEP_BEGIN, batch.name, value=batch.num_tokens)
        try:
            result = self._compute(batch)
        except Exception as error:
            self._fail_all(batch, error)
            return True
        end = self.log.add(EventKind.STEP_END, batch.name, begin, len(batch.requests))
        self.scheduler.budget.observe(monotonic() - started, batch.num_tokens, batch.num_decodes)
        poisoned = self._poisoned_blocks(batch, result)
        self.scheduler.complete(batch, result, end)
        if poisoned:
            self.runner.zero_blocks([block for block in poisoned if not self.scheduler.pool.references(block)])
        self._deliver()
        return True

    def run_until_idle(self) -> None:
        """Step until no request is left."""
        while self.scheduler.has_work:
            self.step()

    def _compute(self, batch: StepBatch) -> StepResult:
        sampled: Sampled | None = self.runner.execute(batch)
        if sampled is None:
            self.runner.wait()
            return StepResult([])
        return sampled.fetch()

    def _fail_all(self, batch: StepBatch, error: Exception) -> None:
        """A step that raised tells nothing about single requests, so all of it fail; the engine goes on."""
        if not isinstance(error, SitsError):
            logger.error("step %d failed", batch.index, exc_info=error if os.environ.get("SITS_DEBUG") else None)
        self.log.add(EventKind.STEP_END, batch.name, value=len(batch.requests), detail="failed")
        for request in batch.requests:
            if not request.finished:
                self.scheduler.fail(request, str(error) or type(error).__name__)
        self._deliver()

    def _poisoned_blocks(self, batch: StepBatch, result: StepResult) -> list[int]:
        if -1 not in result.tokens:
            return []
        bad = [row for row, token in zip(batch.sample_rows, result.tokens) if token < 0]
        return sorted({block for row in bad for block in batch.requests[row].blocks})

    def _deliver(self) -> None:
        for request in self.scheduler.take_touched():
            if request.on_update is not None:
                notify(request)


def notify(request: Request) -> None:
    """Call a request's listener; a listener that raises must not take the engine with it."""
    try:
        if request.on_update is not None:
            request.on_update(request)
    except Exception:
        logger.exception("the listener of request %s failed", request.request_id)
