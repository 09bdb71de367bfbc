"""Faults planted into the engine on a GPU: ``sits explain`` must name each first from the engine's own event log.

Run from the repository root: PYTHONPATH=src python3 benchmarks/gpu/explain_faults.py --out benchmarks/results
Each row: the first finding, whether it is the planted one, what could not be attributed, and (healthy runs) the
measured against the predicted step.
"""

from __future__ import annotations

import random
import time

import torch
from _common import Report

from sits import LLM, SamplingParams
from sits.traffic.cards import get_card
from sits.traffic.explain_run import RunContext, explain_events, precision_of
from sits.traffic.model_shape import ModelShape


def add_options(parser):
    parser.add_argument("--model", default="synthetic:llama-3-8b?layers=16")


def main():
    report = Report("explain_faults", __doc__ or "", add_options)
    random.seed(0)
    card = get_card(torch.cuda.get_device_name())

    def case(name, expected, requests=4, tokens=128, prompt=512, plant=None, **settings):
        with LLM(report.options.model, max_model_len=4096, prefix_caching=False, **settings) as llm:
            graphs = llm.core.runner.no_graphs_because is None

            def run():
                llm.core.log.clear()
                prompts = [[random.randrange(3, 30_000) for _ in range(prompt)] for _ in range(requests)]
                llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))
                return llm.core.log.events()

            run()  # captures and compiles
            if plant is not None:
                plant(llm)
            events = run()
            shape = ModelShape.from_card(llm.card, "toy")
            context = RunContext(shape, card, precision_of(llm.card), graphs=graphs)
            blind = RunContext(shape, card, precision_of(llm.card))  # nobody says whether graphs are on
            told, guessed = explain_events(events, context), explain_events(events, blind)
        waterfall = told.waterfall
        lost = sum(p.measured_ms or 0.0 for p in waterfall.pieces if p.name == "unattributed") / waterfall.total_ms
        first = told.findings[0]
        report.row(
            f"explain/{name}", "ms per token", waterfall.total_ms, first=first.code,
            first_blind=guessed.findings[0].code,
            expected=expected, named_first=expected is None or first.code == expected, evidence=first.evidence,
            unattributed=lost, residual=waterfall.residual_share, predicted_ms=waterfall.predicted_ms,
            pieces={p.name: round(p.measured_ms or 0.0, 4) for p in waterfall.pieces},
        )  # fmt: skip

    def slow_scheduler(llm):
        schedule = llm.core.scheduler.schedule

        def slow():
            time.sleep(0.01)
            return schedule()

        llm.core.scheduler.schedule = slow

    def slow_kv(llm):
        """What KV in host memory does to a step: the bytes of its contexts at the speed of the host link."""
        execute = llm.core.runner.execute
        per_token = sum(k.nbytes + v.nbytes for k, v in llm.core.runner.kv_cache)
        per_token /= llm.core.runner.num_blocks * llm.options.block_size

        def slow(batch):
            until = time.perf_counter() + per_token * sum(r.num_computed for r in batch.requests) / 50e9
            while time.perf_counter() < until:
                pass
            return execute(batch)

        llm.core.runner.execute = slow

    case("healthy", None)
    case("scheduler-sleep", "scheduler", plant=slow_scheduler)
    case("kv-at-host-link-speed", "kv_in_host_memory", requests=16, prompt=1024, plant=slow_kv)
    case("batch-capped", "batch_capped", requests=24, max_running=4)
    case("graphs-off", "graphs_off", cuda_graphs=False)
    report.save()


if __name__ == "__main__":
    main()
