"""Every rule: a case that passes, one that must fail, one without data. A rule without all three fails the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sits.spec.events import EventKind
from sits.spec.result import Result
from sits.validate.config import load_config
from sits.validate.evaluate import evaluate, load_context
from sits.validate.rules.model import Finding, all_rules

K = EventKind


def set_figure(key: str, value: float | None, unit: str = "1", **more: Any) -> Callable[[Result], None]:
    def change(result: Result) -> None:
        from sits.spec.result import Figure

        for point in result.points:
            point.metrics[key] = Figure(value=value, unit=unit, n=100, **more)

    return change


def drop_figures(*keys: str) -> Callable[[Result], None]:
    def change(result: Result) -> None:
        for point in result.points:
            for key in keys:
                point.metrics.pop(key, None)

    return change


def both(*changes: Callable[[Result], object]) -> Callable[[Result], None]:
    def change(result: Result) -> None:
        for one in changes:
            one(result)

    return change


def server(**values: Any) -> dict[str, Any]:
    return {"server": values}


def extra(**values: Any) -> Callable[[Result], None]:
    return lambda result: result.extra.update(values)


def hardware(**values: Any) -> Callable[[Result], None]:
    return lambda result: result.environment.hardware.update(values)


def open_loop(**arrivals: Any) -> dict[str, Any]:
    return {"mode": "open", "rate": 4.0, "arrival": "poisson", "arrivals": arrivals or None}


def broken_events(workshop: Any, kind: EventKind, **change: Any) -> list[Any]:
    """A sound log with the first event of ``kind`` changed."""
    events = workshop.events()
    index = next(i for i, event in enumerate(events) if event.kind == kind)
    events[index] = events[index]._replace(**change)
    return events


Case = dict[str, Any]
EVENTS: Case = {"events": "sound"}
EMPTY: Case = {"point": {"requests": {}, "metrics": {}}, "keep_records": False}
NO_POINTS: Case = {"change": lambda result: result.points.clear(), "keep_records": False}
FEW: Case = {"requests": 8}

# rule -> its configuration, then what makes a run pass, fail and have no data: arguments of Workshop.run; the key
# "baseline" holds those of the baseline (None: there is none), "rule" another configuration.
CASES: dict[str, tuple[str, Case, Case, Case]] = {
    "ttft": ("{p50: 150 ms, p99: 200 ms}", {}, {"ttft": 400}, EMPTY),
    "itl": ("{p50: 15 ms, p99: 20 ms, max: 1 s}", {}, {"itl": 30}, {"tokens": 1}),
    "tpot": ("{p90: 15 ms, mean: 15 ms}", {}, {"itl": 30}, {"tokens": 1}),
    "e2e": ("{p95: 0.5 s}", {}, {"itl": 100}, EMPTY),
    "ttft-visible": (
        "{mean: 150 ms}",
        {"change": set_figure("ttft_visible.mean", 100, "ms")},
        {"change": set_figure("ttft_visible.mean", 200, "ms")},
        {},
    ),
    "goodput": (
        "{min_share: 90%, min: 1}",
        {},
        {"ttft": 400},
        {"change": drop_figures("goodput", "attainment")},
    ),
    "error-rate": ("{max: 1%}", {}, {"failed": 40}, EMPTY),
    "throughput": ("{min_output: 100, min_requests: 5}", {}, {"itl": 400}, EMPTY),
    "tail-inflation": ("{max: 2.0}", {}, {"rule": "{max: 0.2}"}, EMPTY),
    "mabu": (
        "{min_required: 40%}",
        {"change": set_figure("mabu.required", 0.6)},
        {"change": set_figure("mabu.required", 0.2)},
        {},
    ),
    "traffic-amplification": (
        "{max: 1.3}",
        {"change": both(set_figure("mabu.required", 0.5), set_figure("mabu.observed", 0.55))},
        {"change": both(set_figure("mabu.required", 0.5), set_figure("mabu.observed", 0.9))},
        {"change": set_figure("mabu.required", 0.5)},
    ),
    "energy": (
        "{max: 500 mJ}",
        {"change": set_figure("energy_per_token", 0.4, "J/token")},
        {"change": set_figure("energy_per_token", 0.6, "J/token")},
        {"change": set_figure("energy_per_token", None, "J/token", reason="no counter")},
    ),
    "kv-hit-rate": (
        "{min: 40%}",
        {},
        {"rule": "{min: 60%}"},
        {"point": {"tokens": {}}, "keep_records": False},
    ),
    "memory": (
        "{max: 70 GB}",
        {"point": server(memory_gb=60.0)},
        {"point": server(memory_gb={"max": 75.0})},
        {},
    ),
    "regression": ("{tolerance: 3%}", {}, {"shift": 1.15}, {"baseline": None}),
    "error-regression": ("true", {}, {"failed": 60}, {"baseline": None}),
    "environment-drift": (
        "true",
        {},
        {"change": hardware(gpus=[{"name": "another"}])},
        {"baseline": None},
    ),
    "ratio": (
        "{bounds: {e2e.p99: 1.5, throughput.output: 0.7}}",
        {},
        {"shift": 2.0},
        {"baseline": {"change": drop_figures("e2e.p99")}},
    ),
    "event-perception": ("{decide: estimate}", EVENTS, {"events": "deaf"}, {}),
    "synchronisation-window": ("true", {"events": "near"}, {"events": "far"}, {}),
    "temporal-consistency": ("true", EVENTS, {"events": "back"}, {}),
    "state-reachability": ("true", EVENTS, {"events": "endless"}, {}),
    "causal-fidelity": ("true", EVENTS, {"events": "acausal"}, {}),
    "run-complete": ("true", {}, {"change": lambda result: setattr(result, "status", "partial")}, NO_POINTS),
    "convergence": (
        "true",
        {},
        {"point": {"convergence": [{"metric": "ttft.p50", "status": "not_converged"}]}},
        {"point": {"convergence": []}},
    ),
    "warm-up": (
        "true",
        {},
        {"change": lambda result: result.warmup.update(preset="none")},
        {
            "change": lambda result: result.warmup.clear(),
            "point": {"requests": {"sent": 480, "ok": 480, "error": 0, "timeout": 0}},
        },
    ),
    "minimum-run": ("{requests: 400, duration: 5 s}", {}, {"requests": 300}, NO_POINTS),
    "client-bound": (
        "true",
        {},
        {"point": {"client": {"verdict": "client_bound", "slip_p99_ms": 40.0, "advice": "use two processes"}}},
        {"point": {"client": {}}, "change": lambda result: setattr(result.target, "kind", "endpoint")},
    ),
    "arrivals": (
        "{process: poisson}",
        {"point": open_loop(process="poisson", achieved_rate=4.0, ok=True)},
        {"point": open_loop(process="poisson", achieved_rate=9.0, ok=False, detail="rate off")},
        {"point": open_loop()},
    ),
    "records-match": (
        "true",
        {},
        {"change": set_figure("ttft.p99", 42.0, "ms")},
        {"keep_records": False},
    ),
    "output-length": (
        "{min: 90%, max: 110%}",
        {},
        {"rule": "{min: 110%, max: 120%}"},
        {"keep_records": False},
    ),
    "quality": (
        "{max_perplexity_increase: 1%, max_kl: 0.05, min_answers: 80%}",
        {
            "change": extra(quality={"perplexity": 10.02, "kl": 0.01, "answers": {"correct": 95, "total": 100}}),
            "baseline": {"change": extra(quality={"perplexity": 10.0})},
        },
        {
            "change": extra(quality={"perplexity": 10.5, "kl": 0.09, "answers": {"correct": 50, "total": 100}}),
            "baseline": {"change": extra(quality={"perplexity": 10.0})},
        },
        {},
    ),
    "precision-drift": (
        "{max: 0.1}",
        {"change": extra(precision_plan={"layers": {"a": {"planned": 0.3, "live": 0.32}}})},
        {"change": extra(precision_plan={"layers": {"a": {"planned": 0.3, "live": 0.5}, "b": {"drift": 0.0}}})},
        {},
    ),
    "slo-missing": ("true", {}, {"change": lambda result: result.slo.clear()}, {}),
    "kv-watermark": (
        "{max_use: 95%}",
        {"point": server(kv_use=0.7, preemptions=0)},
        {"point": server(kv_use=0.99)},
        {},
    ),
    "token-timing": ("true", {}, {"point": {"tokens_per_chunk": 2.0}}, EMPTY),
    "baseline-age": ("{max_days: 36500}", {}, {"rule": "{max_days: 0}", "today": "2027-06-01"}, {"baseline": None}),
}  # fmt: skip
# Rules on the configuration itself; tested with waivers in test_gate_config.py.
ELSEWHERE = {"waivers", "unused-waiver"}
# A run always says what these ask for, so that there is no run without data.
ALWAYS_DATA = {"slo-missing"}


def judge(workshop: Any, name: str, case: Case) -> list[Finding]:
    """The findings of one rule on the run a case describes."""
    case = dict(case)
    rule = case.pop("rule", CASES[name][0])
    baseline, today = case.pop("baseline", {}), case.pop("today", None)
    kind = case.pop("events", None)
    if kind:
        case["events"], case["events_header"] = EVENT_LOGS[kind](workshop), {"workers": 2}
    workshop.run("candidate", seed=1, **case)
    if baseline is not None:
        workshop.run("baseline", seed=2, **baseline)
    named = "" if baseline is None else "baseline: baseline\n"
    config = load_config(workshop.config(f"result: candidate\n{named}rules:\n  {name}: {rule}\n"))
    from datetime import date

    context = load_context(config, today=date.fromisoformat(today) if today else date(2026, 12, 1))
    return [finding for finding in evaluate(context).findings if finding.rule_name == name]


def _with_round_trip(workshop: Any, nanoseconds: int) -> list[Any]:
    from sits.spec.events import Event

    events = workshop.events()
    return [*events, Event(len(events), events[-1].time_ns + 1, K.ROUND_TRIP, "w0-w1", -1, nanoseconds)]


def _deaf(workshop: Any) -> list[Any]:
    """Every PERCEIVED event comes a millisecond late."""
    late = [e._replace(time_ns=e.time_ns + 1_000_000) if e.kind == K.PERCEIVED else e for e in workshop.events()]
    return late


def _quick(workshop: Any) -> list[Any]:
    return workshop.events()


EVENT_LOGS: dict[str, Callable[[Any], list[Any]]] = {
    "sound": _quick,
    "deaf": _deaf,
    "near": lambda workshop: _with_round_trip(workshop, 500_000),
    "far": lambda workshop: _with_round_trip(workshop, 900_000),
    "back": lambda workshop: broken_events(workshop, K.FINISHED, time_ns=5),
    "endless": lambda workshop: [e for e in workshop.events() if e.kind != K.FINISHED or e.entity != "r1"],
    "acausal": lambda workshop: broken_events(workshop, K.TOKEN, cause=90),
}


@pytest.mark.parametrize("name", sorted(CASES))
class TestEachRule:
    def test_a_good_run_passes(self, workshop: Any, name: str) -> None:
        findings = judge(workshop, name, CASES[name][1])
        assert findings
        assert {finding.outcome for finding in findings} == {"pass"}, [finding.message for finding in findings]

    def test_a_bad_run_must_fail(self, workshop: Any, name: str) -> None:
        findings = judge(workshop, name, CASES[name][2])
        failed = [finding for finding in findings if finding.outcome == "fail"]
        assert failed, [finding.message for finding in findings]
        assert all(finding.treated_as in ("critical", "warn") for finding in failed)

    def test_without_data_it_never_passes(self, workshop: Any, name: str) -> None:
        if name in ALWAYS_DATA:
            assert judge(workshop, name, CASES[name][3])[0].outcome == "pass"
            return
        findings = judge(workshop, name, CASES[name][3])
        assert any(finding.outcome == "no_data" for finding in findings), [f.message for f in findings]
        assert not [f for f in findings if f.outcome == "error"], [f.message for f in findings]
        without = [finding for finding in findings if finding.outcome == "no_data"]
        assert all(finding.treated_as in ("unjudged", "warn", "skipped") for finding in without)


def test_every_rule_is_tested_here() -> None:
    assert {rule.name for rule in all_rules().values()} == set(CASES) | ELSEWHERE


def test_messages_carry_measured_bound_margin_and_confidence(workshop: Any) -> None:
    (finding,) = judge(workshop, "ttft", {"rule": "{p90: 200 ms}"})
    assert finding.metric == "ttft.p90"
    assert finding.bound == 200
    assert finding.unit == "ms"
    assert finding.measured is not None
    assert finding.measured == pytest.approx(114, rel=0.05)
    assert finding.margin == pytest.approx((200 - finding.measured) / 200)
    assert finding.confidence == 0.95
    assert "95% confidence" in finding.message
    assert finding.scope == "concurrency 8"


@pytest.mark.parametrize(
    ("bound", "outcome"), [("60 ms", "fail"), ("126 ms", "inconclusive"), ("300 ms", "pass")]
)  # fmt: skip
def test_a_bound_inside_the_interval_is_inconclusive_and_says_what_would_settle_it(
    workshop: Any, bound: str, outcome: str
) -> None:
    (finding,) = judge(workshop, "ttft", {"rule": f"{{p99: {bound}}}"})
    assert finding.outcome == outcome
    if outcome == "inconclusive":
        assert "requests" in (finding.hint or "")
        assert finding.treated_as == "warn"


def test_p99_of_few_requests_is_never_a_pass(workshop: Any) -> None:
    (finding,) = judge(workshop, "ttft", {"requests": 100, "rule": "{p99: 10 s}"})
    assert finding.outcome == "inconclusive"
    assert finding.high is None


def test_the_early_stopping_floor_is_mlperfs(workshop: Any) -> None:
    for requests, outcome in ((458, "inconclusive"), (459, "pass")):
        (finding,) = judge(workshop, "ttft", {"requests": requests, "rule": "{p99: 10 s, confidence: 0.99}"})
        assert finding.outcome == outcome


def test_drift_makes_a_comparison_invalid_not_green(workshop: Any) -> None:
    for change in (hardware(gpus=[{"name": "H200", "driver": "1"}]), lambda r: r.workload.update(input_len=999),
                   lambda r: r.target.card.update(sha256="cd" * 32)):  # fmt: skip
        findings = judge(workshop, "regression", {"change": change})
        assert [finding.outcome for finding in findings] == ["invalid"]
        assert findings[0].treated_as == "unjudged"
    allowed = judge(workshop, "regression", {"change": hardware(cpu="other"), "rule": "{allow_drift: [cpu]}"})
    assert {finding.outcome for finding in allowed} == {"pass"}


def test_several_runs_are_pooled_and_noise_between_them_widens_the_interval(workshop: Any) -> None:
    def width(shifts: list[float]) -> float:
        for index, shift in enumerate(shifts):
            workshop.run(f"new{index}", seed=10 + index, requests=120, shift=shift)
            workshop.run(f"old{index}", seed=20 + index, requests=120)
        path = workshop.config("result: new*\nbaseline: old*\nrules:\n  regression: {metrics: [itl.typical]}\n")
        findings = [f for f in evaluate(load_context(load_config(path))).findings if f.rule_name == "regression"]
        assert len(findings) == 1
        assert findings[0].low is not None
        assert findings[0].high is not None
        return findings[0].high - findings[0].low

    assert width([1.0, 1.0, 1.0, 1.0]) < 0.6 * width([0.9, 1.1, 0.95, 1.05])


def test_broken_figures_are_no_data(workshop: Any) -> None:
    run = workshop.run("candidate", keep_records=False)
    path = run / "result.json"
    for wrong in (float("nan"), float("inf"), -1.0):
        data = json.loads(path.read_text())
        data["points"][0]["metrics"]["throughput.output"]["value"] = wrong
        path.write_text(json.dumps(data))
        config = load_config(workshop.config("result: candidate\nrules:\n  throughput: {min_output: 1}\n"))
        findings = [f for f in evaluate(load_context(config)).findings if f.rule_name == "throughput"]
        assert [finding.outcome for finding in findings] == ["no_data"]


def test_a_rule_that_breaks_is_an_error_and_never_a_pass(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sits.validate.rules import bounds

    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(bounds, "percentile_estimate", explode)
    workshop.run("candidate")
    config = load_config(workshop.config("result: candidate\nrules:\n  ttft: {p50: 1 s}\n"))
    verdict = evaluate(load_context(config))
    assert int(verdict.code) == 3
    assert any("boom" in finding.message for finding in verdict.findings)


def test_points_select_load_levels(workshop: Any, tmp_path: Path) -> None:
    records = [*workshop.records(100, point=0), *workshop.records(100, point=1, ttft=400)]
    workshop.run("candidate", records=records, change=lambda r: setattr(r.points[1], "concurrency", 32))
    text = "result: candidate\nrules:\n  ttft:\n    - {p50: 200 ms, points: {concurrency: 8}}\n"
    text += "    - {p50: 800 ms, points: {concurrency: [32]}}\n"
    findings = evaluate(load_context(load_config(workshop.config(text)))).findings
    assert [(f.scope, f.outcome) for f in findings if f.rule_name == "ttft"] == [
        ("concurrency 8", "pass"), ("concurrency 32", "pass"),
    ]  # fmt: skip
    text = "result: candidate\nrules:\n  ttft: {p50: 200 ms, points: {concurrency: 5}}\n"
    findings = evaluate(load_context(load_config(workshop.config(text)))).findings
    assert [f.outcome for f in findings if f.rule_name == "ttft"] == ["no_data"]
