"""The runner against a scripted target: who is sent when, what counts, how it ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from sits.bench.arrivals import Arrivals
from sits.bench.benchmark import BenchPlan, run_benchmark
from sits.bench.client import RequestSpec
from sits.bench.lengths import Lengths
from sits.bench.load import Load, RunOptions
from sits.bench.outcome import PointOutcome
from sits.bench.runner import PointRunner
from sits.bench.scripted import ScriptedClient
from sits.bench.workload import SyntheticWorkload
from sits.errors import InputError
from sits.spec.records import RequestRecord
from sits.spec.timeline import build_timeline, concurrency_steps


def workload(output: str = "4", **more: Any) -> SyntheticWorkload:
    return SyntheticWorkload(Lengths.parse("16"), Lengths.parse(output), vocab_size=1000, **more)


def go(coroutine: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(coroutine, 60)

    return asyncio.run(limited())


def run(script: str, load: Load, options: RunOptions = RunOptions(), output: str = "4") -> PointOutcome:  # noqa: B008
    return go(PointRunner(ScriptedClient(script), workload(output), load, options).run())


def phases(outcome: PointOutcome) -> Counter[str]:
    return Counter(record.phase for record in outcome.records)


def test_closed_loop_measures_exactly_what_was_asked() -> None:
    outcome = run("ttft=2,itl=1", Load("closed", concurrency=4, requests=30), RunOptions(tolerance=10))
    assert phases(outcome)["measure"] == 30
    assert phases(outcome)["warmup"] == 4  # the wave that puts the callers out of step
    assert len({record.request_id for record in outcome.records}) == len(outcome.records)
    assert outcome.convergence.status == "converged"
    assert not outcome.partial


def test_closed_loop_never_has_more_in_flight_than_callers_and_keeps_them_busy() -> None:
    outcome = run("ttft=4,itl=2", Load("closed", concurrency=5, requests=40), RunOptions(tolerance=10))
    _, level = concurrency_steps(build_timeline(outcome.records))
    assert level.max() == 5
    measured = build_timeline([record for record in outcome.records if record.phase == "measure"])
    others = build_timeline(outcome.records)
    # Until the last measured request has ended, fillers keep the load up.
    times, level = concurrency_steps(others)
    end = (measured.origin_ns - others.origin_ns) / 1e9 + measured.end.max()
    inside = (times > times[0] + 0.02) & (times < end - 0.02)
    assert level[inside].mean() > 4


def test_the_load_never_reaches_the_target_with_fewer_requests_than_callers() -> None:
    outcome = run("ttft=2,itl=1", Load("closed", concurrency=8, requests=2))
    assert phases(outcome)["measure"] == 2
    assert outcome.convergence.status == "not_checked"


def test_without_fill_and_ramp_nothing_else_is_sent() -> None:
    options = RunOptions(fill=False, ramp=False, tolerance=10)
    outcome = run("ttft=2,itl=1", Load("closed", concurrency=4, requests=30), options)
    assert phases(outcome) == {"measure": 30}


def test_a_target_that_keeps_slowing_down_does_not_converge() -> None:
    options = RunOptions(tolerance=0.05, max_rounds=5, fill=False)
    outcome = run("ttft=1,itl=1,drift=0.05", Load("closed", concurrency=2, requests=24), options)
    assert outcome.convergence.status == "not_converged"
    assert len(outcome.convergence.rounds) == 5
    assert phases(outcome)["measure"] == 24  # the window moved on: still the last three rounds
    measured = [record for record in outcome.records if record.phase == "measure"]
    dropped = [record for record in outcome.records if record.phase == "warmup"]
    assert max(r.t_end for r in dropped) <= max(r.t_end for r in measured)
    assert any("left out" in note for note in outcome.notes)


def test_duration_ends_on_time_and_answers_in_flight_still_count() -> None:
    start = time.monotonic()
    options = RunOptions(tolerance=10)
    outcome = run("ttft=5,itl=5", Load("closed", concurrency=3, duration_s=0.6), options)
    assert time.monotonic() - start < 30
    measured = [record for record in outcome.records if record.phase == "measure"]
    assert all(record.ok for record in measured)
    first = min(record.t_due for record in measured)
    assert all(record.t_due - first <= 0.65e9 for record in measured)
    assert len(outcome.convergence.rounds) == 3


def test_a_slow_target_gets_longer_rounds_not_empty_ones() -> None:
    # An answer takes 0.25 s, a third of the duration 0.1 s.
    load = Load("closed", concurrency=1, duration_s=0.3)
    outcome = run("ttft=100,itl=50", load, RunOptions(tolerance=10))
    assert outcome.convergence.status == "converged", outcome.convergence
    assert phases(outcome)["measure"] >= 3
    silent = run("ttft=2000,itl=0", load, RunOptions(tolerance=10, drain_s=0.1))
    assert silent.convergence.status == "not_converged"


def test_open_loop_is_due_on_schedule_whatever_the_target_does() -> None:
    arrivals = Arrivals.parse("poisson", 200.0)
    load = Load("open", arrivals=arrivals, requests=60)
    outcome = go(
        PointRunner(ScriptedClient("ttft=150,itl=0"), workload(), load, RunOptions(tolerance=10), seed=5).run()
    )
    due = sorted(record.t_due - outcome.started_ns for record in outcome.records)
    assert [round(d / 1e3) for d in due] == [round(t * 1e6) for t in arrivals.first(60, 5)]
    assert all(record.t_sent >= record.t_due for record in outcome.records)


def test_open_loop_by_duration() -> None:
    load = Load("open", arrivals=Arrivals.parse("constant", 100.0), duration_s=0.5)
    outcome = run("ttft=5,itl=1", load, RunOptions(tolerance=10))
    assert 45 <= phases(outcome)["measure"] <= 55


def test_a_trace_is_replayed_as_it_is() -> None:
    offsets = [0.0, 0.05, 0.05, 0.2]
    outcome = run("ttft=2,itl=1", Load("trace", offsets=offsets))
    due = sorted(record.t_due - outcome.started_ns for record in outcome.records)
    assert due == [round(offset * 1e9) for offset in offsets]
    assert outcome.convergence.status == "not_checked"


def test_failures_are_kept_and_a_dead_target_ends_the_point_early() -> None:
    outcome = run("fail=0.5,ttft=1,itl=1", Load("closed", concurrency=2, requests=40), RunOptions(tolerance=10))
    statuses = Counter(record.status for record in outcome.records if record.phase == "measure")
    assert sum(statuses.values()) == 40
    assert 5 < statuses["error"] < 35
    dead = run("fail=1,ttft=0", Load("closed", concurrency=2, requests=100_000), RunOptions(give_up_after=20))
    assert phases(dead)["measure"] < 60
    assert any("failures in a row" in note for note in dead.notes)


def test_a_client_that_raises_is_a_failed_request() -> None:
    class Broken(ScriptedClient):
        async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
            raise RuntimeError("boom")

    outcome = go(PointRunner(Broken(), workload(), Load("closed", concurrency=1, requests=3), RunOptions()).run())
    assert [record.error_kind for record in outcome.records] == ["client_exception"] * 3
    assert "boom" in (outcome.records[0].error or "")


def test_a_workload_that_raises_ends_the_run_instead_of_hanging() -> None:
    class Broken(SyntheticWorkload):
        def request(self, index: int, phase: str = "measure") -> RequestSpec:
            if index > 3:
                raise ZeroDivisionError
            return super().request(index, phase)

    broken = Broken(Lengths.parse("8"), Lengths.parse("2"), vocab_size=100)
    for load in (
        Load("closed", concurrency=2, requests=50),
        Load("open", arrivals=Arrivals.parse("constant", 500.0), requests=50),
    ):
        with pytest.raises(ZeroDivisionError):
            go(PointRunner(ScriptedClient("ttft=1,itl=0"), broken, load, RunOptions(ramp=False)).run())


def test_a_target_that_never_answers_is_a_timeout_not_a_cancel() -> None:
    class Silent(ScriptedClient):
        async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
            if request.request_id.endswith("-2"):
                await asyncio.sleep(1000)
            return await super().send(request, t_due)

    options = RunOptions(drain_s=0.2, ramp=False, fill=False, tolerance=10)
    load = Load("open", arrivals=Arrivals.parse("constant", 200.0), requests=6)
    outcome = go(PointRunner(Silent("ttft=1,itl=1"), workload(), load, options).run())
    assert Counter(record.status for record in outcome.records) == {"ok": 5, "timeout": 1}
    assert any("no answer" in note for note in outcome.notes)


class CountingClient(ScriptedClient):
    answered = 0

    async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
        record = await super().send(request, t_due)
        self.answered += record.ok
        return record


def test_a_stop_keeps_what_was_measured() -> None:
    async def stopped() -> PointOutcome:
        stop = asyncio.Event()
        client = CountingClient("ttft=5,itl=1")
        runner = PointRunner(
            client,
            workload(),
            Load("closed", concurrency=3, requests=100_000),
            RunOptions(ramp=False),
            stop=stop,
        )
        task = asyncio.create_task(runner.run())
        while client.answered <= 10:  # however slow the machine is
            await asyncio.sleep(0.01)
        stop.set()
        return await task

    outcome = go(stopped())
    assert outcome.partial
    statuses = Counter(record.status for record in outcome.records)
    assert statuses["ok"] > 10
    assert statuses["cancelled"] <= 3
    assert set(statuses) <= {"ok", "cancelled"}


def test_conversations_keep_their_caller_and_their_order() -> None:
    class Turns(SyntheticWorkload):
        def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
            if request.turn == 2:
                return None
            spec = self.exact(8, 1000 + request.turn, "measure", 2)
            spec.request_id, spec.turn = f"{request.request_id}.{request.turn + 1}", request.turn + 1
            return 0.01, spec

    turns = Turns(Lengths.parse("8"), Lengths.parse("2"), vocab_size=100)
    for load in (
        Load("open", arrivals=Arrivals.parse("constant", 100.0), requests=12),
        Load("closed", concurrency=2, requests=12),
    ):
        options = RunOptions(ramp=False, fill=False, tolerance=10)
        outcome = go(PointRunner(ScriptedClient("ttft=2,itl=1"), turns, load, options).run())
        assert len(outcome.records) >= 12
        by_id = {record.request_id: record for record in outcome.records}
        for name, record in by_id.items():
            if (parent := by_id.get(name.rpartition(".")[0])) is not None:
                assert record.t_due >= parent.t_end + 9_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "closed", "requests": 1},
        {"mode": "closed", "concurrency": 0, "requests": 1},
        {"mode": "closed", "concurrency": 1},
        {"mode": "closed", "concurrency": 1, "requests": 0},
        {"mode": "closed", "concurrency": 1, "duration_s": 0},
        {"mode": "closed", "concurrency": 1, "duration_s": float("nan")},
        {"mode": "open", "requests": 1},
        {"mode": "trace"},
    ],
)
def test_impossible_loads_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Load(**wrong)


def bench(client: Any, loads: list[Load], stop: asyncio.Event | None = None, **more: Any) -> Any:
    async def whole() -> Any:
        info = await client.open()
        source = workload()
        plan = BenchPlan(loads, source, source, options=RunOptions(tolerance=10), **more)
        return await run_benchmark(client, info, plan, stop=stop)

    return go(whole())


def test_a_sweep_gives_points_a_knee_and_the_right_figures() -> None:
    loads = [Load("closed", concurrency=c, requests=8 * c) for c in (1, 4, 8)]
    outcome = bench(ScriptedClient("ttft=10,itl=10,load=0.05"), loads, slo={"ttft_ms": 1000.0})
    result = outcome.result
    assert result.status == "complete"
    assert [point.concurrency for point in result.points] == [1, 4, 8]
    assert result.knee in (0, 1, 2)
    first = result.points[0].metrics
    assert first["itl.p50"].value == pytest.approx(10, rel=0.01)
    assert first["tail_inflation"].value == pytest.approx(1, rel=0.2)
    assert result.points[2].metrics["goodput"].value > 0
    assert result.warmup["lengths"] == [512, 1024, 2048, 4096, 8188]
    assert result.definitions["tltb"]
    prompts = [record.request_id for record in outcome.records if record.phase == "measure"]
    assert len(set(prompts)) == len(prompts), "load levels must not repeat prompts"


def test_nothing_measured_is_no_data() -> None:
    outcome = bench(ScriptedClient("fail=1,ttft=1"), [Load("closed", concurrency=1, requests=3)])
    assert outcome.result.status == "no_data"
    assert outcome.result.points[0].metrics["ttft.p50"].value is None


def test_the_loss_hook_joins_the_verdict() -> None:
    class Drifting(ScriptedClient):
        losses = iter([2.0, 2.1, 2.2, 2.3])

        def text_loss(self, text: str) -> float:
            return next(self.losses)

    outcome = bench(Drifting("ttft=1,itl=1"), [Load("closed", concurrency=1, requests=3)], warmup="none")
    assert outcome.result.status == "not_converged"
    assert any(entry.metric == "loss" for entry in outcome.result.points[0].convergence)


def test_a_stop_before_the_first_point_is_partial() -> None:
    async def whole() -> Any:
        stop = asyncio.Event()
        stop.set()
        client = ScriptedClient()
        plan = BenchPlan([Load("closed", concurrency=1, requests=3)], workload(), workload())
        return await run_benchmark(client, await client.open(), plan, stop=stop)

    outcome = go(whole())
    assert outcome.result.status == "partial"
    assert outcome.result.points == []


def test_a_stop_during_warm_up_ends_it_with_the_request_under_way() -> None:
    class Keeping(ScriptedClient):
        """Returns what had arrived when it is cancelled, as the HTTP and the embedded client do."""

        sent, losses = 0, 0

        async def send(self, request: RequestSpec, t_due: int) -> RequestRecord:
            self.sent += 1
            try:
                stop.set()
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
            return RequestRecord(request_id=request.request_id, t_due=t_due, t_sent=t_due, status="cancelled")

        def text_loss(self, text: str) -> float:
            self.losses += 1
            return 1.0

    stop, client = asyncio.Event(), Keeping()
    outcome = bench(client, [Load("closed", concurrency=1, requests=3)], stop=stop)
    assert outcome.result.status == "partial"
    assert (client.sent, client.losses) == (1, 0)
