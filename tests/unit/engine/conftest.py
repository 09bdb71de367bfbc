"""A device without tensors: it keeps the token of every slot and derives the next token from what it *reads*.

So a block that is lost, shared wrongly, reused too early or read before it is written shows as a wrong token.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from zlib import crc32

import pytest

from sits.cache.block_pool import BlockPool
from sits.engine.core import EngineCore
from sits.engine.event_log import EventLog
from sits.engine.request import Request
from sits.engine.sampling_params import SamplingParams
from sits.engine.scheduler import Scheduler
from sits.engine.scheduler_config import SchedulerConfig
from sits.engine.step_batch import StepBatch, StepResult

VOCAB = 997


def next_token(history: list[int]) -> int:
    return crc32(repr(history).encode()) % VOCAB


def expected_output(prompt: list[int], count: int) -> list[int]:
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


class FakeStep:
    """A step given to the device: where its rows write and read, and what they write, as far as the host knows it."""

    def __init__(self, device: FakeDevice, batch: StepBatch):
        self.device, self.ended_ns, self.result = device, 0, None
        self.failure = device.fail_at.pop(batch.index, None)
        sampling = set(batch.sample_rows)
        self.rows = []
        for row, (request, start, count) in enumerate(zip(batch.requests, batch.starts, batch.counts)):
            known = [batch.decode_ids[row]] if row < batch.num_decodes else request.token_ids[start : start + count]
            assert len(known) == count
            slots = [device.slot(request, position) for position in range(start + count)]
            self.rows.append((request.request_id, slots, start, known, row in sampling))

    def compute(self) -> None:
        device, tokens = self.device, []
        for name, slots, start, known, samples in self.rows:
            for position, token in enumerate(known, start):
                if token < 0:  # a reference to the step before
                    token = max(device.chosen[-1 - token], 0)
                device.slots[slots[position]] = (position, token)
            if samples:
                read = [device.slots[slot] for slot in slots]
                assert [position for position, _ in read] == list(range(len(read)))
                bad = (name, len(read)) in device.bad_at
                tokens.append(-1 if bad else next_token([token for _, token in read]))
        device.chosen = tokens
        self.ended_ns = monotonic_ns()
        self.result = StepResult(tokens)

    def fetch(self) -> StepResult:
        while self.result is None:  # in the order in which they were given, and not before somebody waits
            self.device.queue.popleft().compute()
        if self.failure is not None:
            raise self.failure
        return self.result


class FakeDevice:
    """The cache as a dict: slot -> (position, token)."""

    def __init__(self, block_size: int, max_tokens: int):
        self.block_size = block_size
        self.max_tokens = max_tokens  # in one step
        self.slots: dict[int, tuple[int, int]] = {}
        self.chosen: list[int] = []  # by the last step
        self.queue: deque[FakeStep] = deque()
        self.most_ahead = 0
        self.bad_at: set[tuple[str, int]] = set()  # (request, tokens read): the logits are not finite
        self.fail_at: dict[int, Exception] = {}  # step -> what its result raises
        self.refuse_at: dict[int, Exception] = {}  # step -> what handing it over raises
        self.cleared: list[int] = []

    def slot(self, request: Request, position: int) -> int:
        return request.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def execute(self, batch: StepBatch) -> FakeStep:
        assert batch.num_tokens <= self.max_tokens
        assert all(count == 1 for count in batch.counts[: batch.num_decodes])
        assert len({request.row for request in batch.requests}) == len(batch.requests)
        if batch.index in self.refuse_at:
            raise self.refuse_at.pop(batch.index)
        self.queue.append(FakeStep(self, batch))
        self.most_ahead = max(self.most_ahead, len(self.queue))
        return self.queue[-1]

    def zero_blocks(self, blocks: list[int]) -> None:
        assert blocks
        self.cleared += blocks
        while self.queue and self.queue[0].result is None:  # the steps given before come first
            self.queue.popleft().compute()
        for block in blocks:
            for offset in range(self.block_size):
                self.slots.pop(block * self.block_size + offset, None)


class CheckedEngine(EngineCore[FakeDevice]):
    """The real loop; every block is accounted for after every decision."""

    check_every_step = True

    @property
    def device(self) -> FakeDevice:
        return self.runner

    def step(self) -> bool:
        done = super().step()
        if self.check_every_step:
            self.scheduler.check_integrity()
        return done

    def run(self, limit: int = 100_000) -> int:
        steps = 0
        while self.has_work:
            self.step()
            steps += 1
            assert steps < limit, "the scheduler does not make progress"
        return steps


@pytest.fixture(params=[False, True], ids=["in_turns", "one_ahead"])
def overlap(request) -> bool:
    return request.param


@pytest.fixture
def make_engine() -> Callable[..., CheckedEngine]:
    def make(
        blocks: int = 64,
        block_size: int = 4,
        *,
        prefix_caching: bool = True,
        policies: dict | None = None,
        overlap: bool = False,
        **config,
    ) -> CheckedEngine:
        pool = BlockPool(blocks + 1, block_size, prefix_caching=prefix_caching)
        log = EventLog()
        limits = SchedulerConfig(**{"max_model_len": 256, "max_running": 16, "max_step_tokens": 64, **config})
        scheduler = Scheduler(limits, pool, log, **(policies or {}))
        return CheckedEngine(scheduler, FakeDevice(block_size, limits.max_step_tokens), log, overlap=overlap)

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

    def run(seed: int = 7, count: int = 500, **options) -> tuple[CheckedEngine, list[Request]]:
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
        while pending or engine.has_work:
            for _ in range(min(rng.randrange(4), len(pending))):
                engine.scheduler.add(pending.pop(0))
            engine.step()
            steps += 1
            if rng.random() < 0.1:
                engine.scheduler.cancel(rng.choice(requests[: len(requests) - len(pending)] or requests[:1]))
            assert steps < 100_000
        return engine, requests

    return run
