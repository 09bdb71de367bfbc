"""What the host does for each decode step, in microseconds of CPU, part by part, over a model that computes nothing.

CPU time of the engine's thread, so that a busy machine disturbs it little; the least of ``--rounds`` medians. Parts:
``schedule`` decides, ``pack`` fills the buffer for the device, ``execute`` is the rest of handing over (views, greedy
choice over 32 logits), ``complete`` takes the result in, ``deliver`` calls one listener per request; the event log is
on. ``--before`` takes an earlier result of this script as the peer.

    PYTHONPATH=src python benchmarks/engine_host_cost.py --out benchmarks/results [--before earlier.json]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Any

import torch
from event_log_cost import NoModel

from sits.engine.options import EngineOptions, build_core
from sits.engine.request import Request
from sits.engine.sampling_params import SamplingParams

PARTS = ("schedule", "pack", "execute", "complete", "deliver")


class Clock:
    """CPU time of nested parts; a part does not count what is measured inside it."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = dict.fromkeys(PARTS, 0)
        self._inner = [0]

    def wrap(self, owner: Any, method: str, part: str) -> None:
        function: Callable[..., Any] = getattr(owner, method)

        def measured(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0)
            begin = thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                took = thread_time_ns() - begin
                self.spent[part] += took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, method, measured)


def listen(request: Request) -> None:
    """What ``LLM.generate`` does for each token."""
    if request.finished:
        raise RuntimeError("a request ended while steps were measured")


def step_parts(rows: int, steps: int) -> dict[str, float]:
    """Microseconds of one decode step of ``rows`` requests: each part, and ``total`` measured without them."""
    found: dict[str, float] = {}
    for instrumented in (False, True):
        options = EngineOptions(
            max_running=rows,
            max_step_tokens=max(rows, 512),
            kv_blocks=rows * (64 + 2 * steps) // 16 + rows + 8,
            prefix_caching=False,
            watermark=0.0,
        )
        core, _ = build_core(NoModel(), options, 4096)  # type: ignore[arg-type]
        for index in range(rows):
            request = Request(f"request-{index}", [index % 30 + 1] * 32, SamplingParams(max_tokens=2 * steps + 20))
            request.on_update = listen
            core.scheduler.add(request)
        while core.scheduler.waiting or any(request.num_computed < 32 for request in core.scheduler.running):
            core.step()
        for _ in range(8):
            core.step()
        clock = Clock()
        if instrumented:
            clock.wrap(core.scheduler, "schedule", "schedule")
            clock.wrap(core.scheduler, "complete", "complete")
            clock.wrap(core.runner, "execute", "execute")
            clock.wrap(core.runner._builder, "pack", "pack")
            clock.wrap(core, "_deliver", "deliver")
        times: dict[str, list[int]] = {part: [] for part in (*PARTS, "total")}
        for _ in range(steps):
            clock.spent = dict.fromkeys(PARTS, 0)
            begin = thread_time_ns()
            core.step()
            times["total"].append(thread_time_ns() - begin)
            for part in PARTS:
                times[part].append(clock.spent[part])
        names = PARTS if instrumented else ("total",)
        found |= {name: statistics.median(times[name]) / 1e3 for name in names}
    return found


def main() -> None:
    """Print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256], help="requests in a step")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="an earlier result, as the peer")
    parser.add_argument("--out", type=Path, help="folder of engine_host_cost.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    before: dict[str, float] = {}
    if options.before:
        before = {row["case"]: row["ours"] for row in json.loads(options.before.read_text())["rows"]}
    rows: list[dict[str, Any]] = []
    print(f"{'rows':>5s}" + "".join(f"{name:>10s}" for name in (*PARTS, "total")) + "   us of CPU per step")
    for count in options.rows:
        rounds = [step_parts(count, options.steps) for _ in range(options.rounds)]
        least = {name: min(found[name] for found in rounds) for name in (*PARTS, "total")}
        print(f"{count:5d}" + "".join(f"{value:10.1f}" for value in least.values()), flush=True)
        for name, value in least.items():
            case = f"engine-host/rows{count}/{name}"
            row = {"case": case, "unit": "us", "ours": round(value, 1), "peer": before.get(case)}
            rows.append({**row, "peer_name": "before" if case in before else None})
    if options.out is None:
        return
    data = {
        "name": "engine_host_cost",
        "card": platform.processor() or platform.machine(),
        "driver": None,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "command": "python benchmarks/engine_host_cost.py",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rows": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    partial = options.out / "engine_host_cost.json.partial"
    partial.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(partial, options.out / "engine_host_cost.json")


if __name__ == "__main__":
    main()
