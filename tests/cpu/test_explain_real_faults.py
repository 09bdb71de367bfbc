"""Faults planted into the real engine on a CPU; ``explain`` must name each first from the engine's own event log."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest

from sits import LLM, SamplingParams
from sits.spec.events import Event
from sits.traffic.cards import get_card
from sits.traffic.explain_run import RunContext, explain_events, precision_of
from sits.traffic.explanation import Explanation
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import kv_bytes_per_token

MODEL = "synthetic:smollm2-135m?layers=2"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, max_model_len=1024, max_running=4) as engine:
        engine.warm_up()
        yield engine


def run(llm: LLM, requests: int, prompt: int = 24, output: int = 24) -> list[Event]:
    """Different prompts all at once, so that no prefix is shared; returns the events."""
    llm.core.log.clear()
    prompts = [[100 * i + k + 1 for k in range(prompt)] for i in range(requests)]
    llm.generate(prompts, SamplingParams(max_tokens=output, ignore_eos=True))
    return llm.core.log.events()


def context(llm: LLM, **card: float) -> RunContext:
    shape = ModelShape.from_card(llm.card, "toy")
    return RunContext(shape, dataclasses.replace(get_card("CPU"), **card), precision_of(llm.card))


def check(explanation: Explanation) -> None:
    waterfall = explanation.waterfall
    assert waterfall is not None
    assert waterfall.residual_share <= 0.02
    lost = next((p.measured_ms or 0.0 for p in waterfall.pieces if p.name == "unattributed"), 0.0)
    assert lost <= 0.02 * waterfall.total_ms


def test_sleep_in_the_scheduler(llm, monkeypatch):
    schedule = llm.core.scheduler.schedule

    def slow():
        time.sleep(0.08)
        return schedule()

    monkeypatch.setattr(llm.core.scheduler, "schedule", slow)
    explanation = explain_events(run(llm, 3), context(llm))
    check(explanation)
    assert explanation.findings[0].code == "scheduler"


def test_capped_batch(llm):
    explanation = explain_events(run(llm, 24), context(llm))  # four may run
    check(explanation)
    assert explanation.findings[0].code == "batch_capped"
    assert "capped at 4" in explanation.findings[0].title


def test_kv_read_over_a_slow_link(llm, monkeypatch):
    execute = llm.core.runner.execute
    per_token_s = 0.0004

    def slow(batch):
        time.sleep(per_token_s * sum(request.num_computed for request in batch.requests))
        return execute(batch)

    monkeypatch.setattr(llm.core.runner, "execute", slow)
    known = context(llm)
    assert known.shape is not None
    assert known.precision is not None
    rate = kv_bytes_per_token(known.shape, known.precision) / per_token_s / 1e9
    events = run(llm, 3, prompt=48, output=64)
    explanation = explain_events(events, context(llm, host_gbps=1.5 * rate))
    check(explanation)
    assert explanation.findings[0].code == "kv_in_host_memory"
    assert explain_events(events, known).findings[0].code == "kv_slow"  # no link known that would be so slow


def test_a_fixed_cost_in_every_step(llm, monkeypatch):
    execute = llm.core.runner.execute

    def slow(batch):
        time.sleep(0.1)
        return execute(batch)

    monkeypatch.setattr(llm.core.runner, "execute", slow)
    explanation = explain_events(run(llm, 3), context(llm))
    check(explanation)
    assert explanation.findings[0].code == "operator_overhead"


def test_one_step_ahead_the_same_faults_are_named(monkeypatch):
    """Steps overlap in the log: a slow scheduler is still no slow step, and a slow step no slow scheduler."""
    with LLM(MODEL, max_model_len=1024, max_running=4, overlap=True) as llm:
        llm.warm_up()
        schedule, execute = llm.core.scheduler.schedule, llm.core.runner.execute

        def slow_schedule():
            time.sleep(0.08)
            return schedule()

        def slow_execute(batch):
            time.sleep(0.1)
            return execute(batch)

        for owner, name, slow, expected in (
            (llm.core.scheduler, "schedule", slow_schedule, "scheduler"),
            (llm.core.runner, "execute", slow_execute, "operator_overhead"),
        ):
            monkeypatch.setattr(owner, name, slow)
            explanation = explain_events(run(llm, 3, output=16), context(llm))
            monkeypatch.undo()
            check(explanation)
            assert explanation.findings[0].code == expected
        explanation = explain_events(run(llm, 24), context(llm))
        check(explanation)
        assert explanation.findings[0].code == "batch_capped"
