"""What the event log costs: seconds of CPU per step with it and without it, and as a share of a real step.

Two measurements, both in CPU time so that a busy machine does not disturb them:
1. The engine's own work per step (decide, pack, take in) over a model that computes nothing, log on and off in
   turns: the difference is the log.
2. The same cost beside a whole decode step of a real model (``--model``), as the share a user pays.

    python benchmarks/event_log_cost.py [--rows 1,8,64,256] [--model smollm2-135m | --model none]
"""

from __future__ import annotations

import argparse
import statistics
from time import process_time_ns, thread_time_ns

import torch

from sits.engine.event_log import EventLog
from sits.engine.options import EngineOptions, build_core
from sits.engine.request import Request
from sits.engine.sampling_params import SamplingParams
from sits.models.config import ModelConfig
from sits.spec.events import EventKind


class NoModel:
    """Answers with constant logits at once: what remains is the engine."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self) -> None:
        self.config = ModelConfig("llama", 1, 8, 1, 1, 8, 8, 32, 4096)
        self._logits = torch.zeros(4096, 32)

    def forward(self, token_ids, batch, kv_cache, logits_rows):  # type: ignore[no-untyped-def]
        return self._logits[: len(logits_rows)]


def step_cost(model: object, rows: int, enabled: bool, steps: int, context: int, warm: int = 8) -> float:
    """Median CPU microseconds of this thread per decode step of ``rows`` requests."""
    options = EngineOptions(
        max_running=rows,
        max_step_tokens=max(rows, 512),
        kv_blocks=rows * (context + steps + warm + 40) // 16 + rows + 8,
        event_log=enabled,
        prefix_caching=False,
        watermark=0.0,
    )
    core, _ = build_core(model, options, 4096)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=steps + warm + 8, ignore_eos=True)
    for index in range(rows):
        core.scheduler.add(Request(f"r{index}", [index % 30 + 1] * context, params))
    while any(request.num_computed < context for request in core.scheduler.running) or core.scheduler.waiting:
        core.step()
    for _ in range(warm):
        core.step()
    times = []
    clock = thread_time_ns if isinstance(model, NoModel) else process_time_ns
    for _ in range(steps):
        before = clock()
        core.step()
        times.append(clock() - before)
    return statistics.median(times) / 1000


def append_cost(count: int = 200_000) -> float:
    """Nanoseconds of one entry."""
    log = EventLog()
    before = thread_time_ns()
    for index in range(count):
        log.add(EventKind.TOKEN, "request-1", index, index)
    return (thread_time_ns() - before) / count


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,8,64,256", help="running requests per step")
    parser.add_argument("--model", default="smollm2-135m", help="for the share of a real step; none to skip")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one entry: {append_cost():.0f} ns of CPU")
    print("rows  engine us/step (log off)  log us/step  log us/request  share of the engine's own work")
    for rows in map(int, arguments.rows.split(",")):
        off, on = [], []
        for _ in range(arguments.rounds):  # in turns, so that drift hits both alike
            off.append(step_cost(NoModel(), rows, False, arguments.steps, 32))
            on.append(step_cost(NoModel(), rows, True, arguments.steps, 32))
        base, cost = min(off), min(on) - min(off)
        print(f"{rows:4}  {base:24.0f}  {cost:11.1f}  {cost / rows:14.2f}  {cost / (base + cost):.1%}")
    if arguments.model == "none":
        return
    from sits.models.loading import load_model

    model = load_model(arguments.model, device="cpu").model
    print(f"whole decode step of {arguments.model} on one CPU thread")
    for rows in (1, 8):
        whole = step_cost(model, rows, True, 12, 32, warm=2)
        cost = step_cost(NoModel(), rows, True, 60, 32) - step_cost(NoModel(), rows, False, 60, 32)
        cost = max(cost, 0.0)
        print(f"{rows:4}  {whole:10.0f} us/step, of which the log {cost:.1f} us = {cost / whole:.3%}")


if __name__ == "__main__":
    main()
