"""A device without tensors: it keeps the token of every slot and derives the next token from what it *reads*.

So a block that is lost, shared wrongly, reused too early or read before it is written shows as a wrong token.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import pytest

from sits.cache.block_pool import BlockPool
from sits.engine.event_log import EventLog
from sits.engine.request import Request
from sits.engine.sampling_params import SamplingParams
from sits.engine.scheduler import Scheduler
from sits.engine.scheduler_config import SchedulerConfig
from sits.engine.step_batch import StepBatch, StepResult
from sits.spec.events import EventKind

VOCAB = 997


def next_token(history: list[int]) -> int:
    return crc32(repr(history).encode()) % VOCAB


def expected_output(prompt: list[int], count: int) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


class FakeDevice:
    """The cache as a dict: slot -> (position, token)."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.slots: dict[int, tuple[int, int]] = {}

    def slot(self, request: Request, position: int) -> int:
        return request.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def execute(self, batch: StepBatch) -> StepResult:
        assert all(count == 1 for count in batch.counts[: batch.num_decodes])
        assert len({request.row for request in batch.requests}) == len(batch.requests)
        for request, count in zip(batch.requests, batch.counts):
            for position in range(request.num_computed, request.num_computed + count):
                self.slots[self.slot(request, position)] = (position, request.token_ids[position])
        tokens = []
        for row in batch.sample_rows:
            request = batch.requests[row]
            read = [self.slots[self.slot(request, position)] for position in range(request.num_tokens)]
            assert [position for position, _ in read] == list(range(request.num_tokens))
            tokens.append(next_token([token for _, token in read]))
        return StepResult(tokens)


@dataclass
class FakeEngine:
    scheduler: Scheduler
    device: FakeDevice
    log: EventLog
    check_every_step: bool = True

    def step(self) -> bool:
        batch = self.scheduler.schedule()
        if self.check_every_step:
            self.scheduler.check_integrity()
        if batch is None:
            return False
        assert batch.num_tokens <= self.scheduler.config.max_step_tokens
        begin = self.log.add(EventKind.STEP_BEGIN, batch.name, value=batch.num_tokens)
        result = self.device.execute(batch)
        end = self.log.add(EventKind.STEP_END, batch.name, begin, len(batch.requests))
        self.scheduler.complete(batch, result, end)
        return True

    def run(self, limit: int = 100_000) -> int:
        steps = 0
        while self.scheduler.has_work:
            self.step()
            steps += 1
            assert steps < limit, "the scheduler does not make progress"
        return steps


@pytest.fixture
def make_engine() -> Callable[..., FakeEngine]:
    def make(
        blocks: int = 64, block_size: int = 4, *, prefix_caching: bool = True, policies: dict | None = None, **config
    ) -> FakeEngine:
        pool = BlockPool(blocks + 1, block_size, prefix_caching=prefix_caching)
        log = EventLog()
        limits = SchedulerConfig(**{"max_model_len": 256, "max_running": 16, "max_step_tokens": 64, **config})
        return FakeEngine(Scheduler(limits, pool, log, **(policies or {})), FakeDevice(block_size), log)

    return make


@pytest.fixture
def make_request() -> Callable[..., Request]:
    def make(name: str, prompt: list[int], max_tokens: int = 8, **params) -> Request:
        priority = params.pop("priority", 0)
        return Request(name, prompt, SamplingParams(max_tokens=max_tokens, **params), priority=priority)

    return make


@pytest.fixture
def oracle() -> Callable[[list[int], int], list[int]]:
    return expected_output


@pytest.fixture
def run_pressured(make_engine, make_request):
    """500 requests of random lengths with shared prefixes and cancels, on a pool far too small for them."""

    def run(seed: int = 7, count: int = 500, **options) -> tuple[FakeEngine, list[Request]]:
        rng = random.Random(seed)
        engine = make_engine(**{"blocks": 40, "max_step_tokens": 48, **options})
        shared = [[rng.randrange(VOCAB) for _ in range(30)] for _ in range(5)]
        requests, pending = [], []
        for index in range(count):
            head = rng.choice(shared)[: rng.randrange(30)] if rng.random() < 0.6 else []
            prompt = head + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))]
            requests.append(make_request(f"r{index}", prompt, rng.randrange(1, 60)))
        pending = list(requests)
        steps = 0
        while pending or engine.scheduler.has_work:
            for _ in range(min(rng.randrange(4), len(pending))):
                engine.scheduler.add(pending.pop(0))
            engine.step()
            steps += 1
            if rng.random() < 0.1:
                engine.scheduler.cancel(rng.choice(requests[: len(requests) - len(pending)] or requests[:1]))
            assert steps < 100_000
        return engine, requests

    return run
