"""A small engine simulator that writes the event log a real engine would, with faults one can plant.

Step times follow the prediction model of a card, so that a healthy run is "as predicted" by construction and each
fault changes exactly one thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sits.spec.events import Event, EventKind
from sits.traffic.cards import get_card
from sits.traffic.model_shape import get_shape
from sits.traffic.operators import Step, kv_bytes_per_token
from sits.traffic.precision import StepPrecision
from sits.traffic.predict import predict_step


@dataclass
class Setup:
    """One run. Times in ms; ``scheduler_ms`` lies between steps, ``kv_gbps`` slows only the KV reads."""

    model: str = "llama-3-8b"
    card: str = "H200"
    weights: str = "bf16"
    requests: int = 12
    spacing_ms: float = 8.0
    prompt: int = 512
    output: int = 40
    max_running: int = 64
    scheduler_ms: float = 0.05
    kv_gbps: float | None = None
    extra_launch_us: float = 0.0
    pool_tokens: int = 1 << 40
    chunk: int = 8192
    events: list[Event] = field(default_factory=list)


@dataclass
class _Request:
    name: str
    arrival: float
    prompt: int
    computed: int = 0
    tokens: int = 0
    running: bool = False
    last: int = -1


class _Log:
    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def add(self, ms: float, kind: EventKind, entity: str, cause: int = -1, value: int = 0, detail: str = "") -> int:
        self.events.append(Event(len(self.events), int(ms * 1e6) + 1_000_000, kind, entity, cause, value, detail))
        return len(self.events) - 1


def simulate(setup: Setup) -> list[Event]:
    """Run the queue to its end and return the events."""
    shape, card, precision = get_shape(setup.model), get_card(setup.card), StepPrecision(setup.weights)
    log = _Log(setup.events)
    future = [_Request(f"r{i}", i * setup.spacing_ms, setup.prompt) for i in range(setup.requests)]
    waiting: list[_Request] = []
    running: list[_Request] = []
    now, number = 0.0, 0
    while future or waiting or running:
        if not waiting and not running and future:
            now = max(now, future[0].arrival)
        now += setup.scheduler_ms
        while future and future[0].arrival <= now:
            request = future.pop(0)
            request.last = log.add(request.arrival, EventKind.ARRIVAL, request.name)
            waiting.append(request)
        _preempt(setup, log, now, running, waiting)
        while waiting and len(running) < setup.max_running and _fits(setup, running, waiting[0]):
            request = waiting.pop(0)
            request.last = log.add(now, EventKind.ADMITTED, request.name, request.last, 0)
            running.append(request)
        if not running:
            continue
        step, name = f"step-{number}", []
        number += 1
        left = setup.chunk
        for request in running:
            missing = request.prompt + request.tokens - request.computed
            count = min(missing, left)
            if count > 0:
                left -= count
                name.append((request, count))
                request.last = log.add(now, EventKind.SCHEDULED, request.name, request.last, count, step)
        begin = log.add(now, EventKind.STEP_BEGIN, step, value=sum(count for _, count in name))
        contexts = tuple(r.computed for r, count in name if count == 1 and r.tokens)
        prefill = tuple((count, r.computed) for r, count in name if not (count == 1 and r.tokens))
        prediction = predict_step(shape, Step(contexts, prefill, precision), card)
        now += prediction.step_ms + setup.extra_launch_us * 9 * shape.layers / 1e3
        if setup.kv_gbps is not None:
            now += sum(contexts) * kv_bytes_per_token(shape, precision) / setup.kv_gbps / 1e6
        end = log.add(now, EventKind.STEP_END, step, begin, len(name))
        for request, count in name:
            request.computed += count
            if request.computed >= request.prompt + request.tokens:
                request.last = log.add(now + 0.001, EventKind.TOKEN, request.name, end, request.tokens)
                request.tokens += 1
                if request.tokens >= setup.output:
                    log.add(now + 0.002, EventKind.FINISHED, request.name, request.last, request.tokens, "length")
                    running.remove(request)
            else:
                log.add(now + 0.001, EventKind.CHUNK, request.name, end, request.computed)
        log.add(now + 0.003, EventKind.PERCEIVED, step, end)
    return sorted(setup.events, key=lambda event: event.sequence)


def _fits(setup: Setup, running: list[_Request], candidate: _Request) -> bool:
    used = sum(request.prompt + request.tokens for request in running)
    return used + candidate.prompt + candidate.tokens + 1 <= setup.pool_tokens


def _preempt(setup: Setup, log: _Log, now: float, running: list[_Request], waiting: list[_Request]) -> None:
    while len(running) > 1 and sum(r.prompt + r.tokens + 1 for r in running) > setup.pool_tokens:
        victim = running.pop()
        log.add(now, EventKind.PREEMPTED, victim.name, victim.last, victim.computed)
        victim.computed = 0
        waiting.insert(0, victim)
