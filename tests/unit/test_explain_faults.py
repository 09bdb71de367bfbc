"""Every planted fault is named first; the pieces sum to what was measured; percentiles name requests and phases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_run import Setup, simulate

from sits.errors import InputError
from sits.spec.events import Event, EventKind
from sits.traffic.cards import get_card
from sits.traffic.explain_run import RunContext, explain_events
from sits.traffic.explanation import Explanation
from sits.traffic.model_shape import get_shape
from sits.traffic.precision import StepPrecision
from sits.traffic.run_log import read_run


def explain(setup: Setup, graphs: bool | None = None, **more: object) -> Explanation:
    context = RunContext(
        get_shape(setup.model), get_card(setup.card), StepPrecision(setup.weights), graphs=graphs, **more
    )
    return explain_events(simulate(setup), context)


def piece(explanation: Explanation, name: str) -> float:
    assert explanation.waterfall is not None
    return next((p.measured_ms or 0.0 for p in explanation.waterfall.pieces if p.name == name), 0.0)


def test_a_healthy_run_blames_nothing_but_the_hardware():
    explanation = explain(Setup(output=100))
    assert explanation.findings[0].code in ("launch_gaps", "memory_bound", "prefill_interference")
    assert not {"scheduler", "kv_in_host_memory", "batch_capped", "graphs_off"} & {
        finding.code for finding in explanation.findings if finding.cost_ms > 1.0
    }


def test_sleep_in_the_scheduler_is_named_first():
    explanation = explain(Setup(scheduler_ms=6.0))
    assert explanation.findings[0].code == "scheduler"
    assert explanation.waterfall is not None
    assert explanation.waterfall.pieces[0].name == "scheduler"
    assert piece(explanation, "scheduler") == pytest.approx(6.0, rel=0.1)


def test_kv_in_host_memory_is_named_first():
    explanation = explain(Setup(kv_gbps=50.0, prompt=2048, output=80, spacing_ms=40))
    first = explanation.findings[0]
    assert first.code == "kv_in_host_memory"
    assert "GB/s" in first.evidence
    assert explanation.waterfall is not None
    assert explanation.waterfall.pieces[0].name == "kv"


def test_capped_batch_is_named_first_with_the_cap():
    explanation = explain(Setup(requests=24, max_running=2, spacing_ms=1.0))
    first = explanation.findings[0]
    assert first.code == "batch_capped"
    assert "capped at 2" in first.title
    assert any(switch.code == "max_running" for switch in explanation.switches)


@pytest.mark.parametrize("known", [None, False])
def test_graphs_off_is_named_first_also_when_nobody_says_so(known):
    explanation = explain(Setup(extra_launch_us=40.0, output=80), graphs=known)
    assert explanation.findings[0].code == "graphs_off"
    assert explanation.waterfall is not None
    assert explanation.waterfall.pieces[0].name == "launches"
    if known is False:
        assert any(switch.code == "graphs" for switch in explanation.switches)


def test_full_kv_pool_by_its_gauge_where_nothing_was_preempted():
    """Four requests fit exactly: only the pool's gauge tells this from a cap of four."""
    context = RunContext(get_shape("llama-3-8b"), get_card("H200"), StepPrecision())
    events = simulate(Setup(requests=20, spacing_ms=1.0, pool_tokens=2300))
    assert explain_events(events, context, kv_use=0.96).findings[0].code == "kv_pool_full"
    assert explain_events(events, context, kv_use=0.30).findings[0].code == "batch_capped"


def test_full_kv_pool_is_told_from_a_capped_batch():
    explanation = explain(Setup(requests=20, spacing_ms=1.0, pool_tokens=2150))
    codes = [finding.code for finding in explanation.findings]
    assert codes[0] == "kv_pool_full"
    assert "preemption" in codes
    assert "batch_capped" not in codes


def test_others_prefill_is_a_piece_of_its_own():
    explanation = explain(Setup(prompt=6000, spacing_ms=150.0, output=60))
    assert piece(explanation, "prefill_interference") > 0
    assert any(finding.code == "prefill_interference" for finding in explanation.findings)
    tail = next(tail for tail in explanation.tails if tail.metric == "itl")
    assert next(iter(tail.shares)) == "prefill_interference"
    assert "prefill" in tail.slow[0].cause


def test_a_slow_first_token_names_the_requests_that_queued():
    explanation = explain(Setup(requests=24, max_running=2, spacing_ms=1.0))
    tail = next(tail for tail in explanation.tails if tail.metric == "ttft")
    assert tail.slow[0].request_id == "r23"  # the last to arrive waited longest
    assert tail.slow[0].phase == "queue"
    assert tail.p99_ms > tail.p50_ms


@settings(max_examples=20, deadline=None)
@given(
    st.builds(
        Setup,
        requests=st.integers(1, 12),
        spacing_ms=st.sampled_from([0.5, 10.0, 300.0]),
        prompt=st.integers(1, 900),
        output=st.integers(1, 12),
        max_running=st.integers(1, 8),
        scheduler_ms=st.sampled_from([0.0, 0.2, 5.0]),
        pool_tokens=st.sampled_from([1 << 40, 1500]),
        chunk=st.sampled_from([64, 512, 8192]),
    )
)
def test_pieces_sum_to_the_measured_time(setup):
    """Within 2% of (token gaps + queueing) / tokens, worked out here from the events alone."""
    events = simulate(setup)
    explanation = explain_events(events, RunContext(get_shape(setup.model), get_card("H200"), StepPrecision()))
    waterfall = explanation.waterfall
    assert waterfall is not None
    times: dict[str, list[int]] = {}
    queue = tokens = 0
    first_scheduled: dict[str, int] = {}
    for event in events:
        if event.kind == EventKind.ARRIVAL:
            times[event.entity] = [event.time_ns]
        elif event.kind == EventKind.SCHEDULED and event.entity not in first_scheduled:
            first_scheduled[event.entity] = event.time_ns
            queue += event.time_ns - times[event.entity][0]
        elif event.kind == EventKind.TOKEN:
            times[event.entity].append(event.time_ns)
            tokens += 1
    gaps = sum(row[-1] - row[1] for row in times.values())
    expected = (gaps + queue) / tokens / 1e6
    assert waterfall.total_ms == pytest.approx(expected, rel=0.02, abs=1e-9)
    assert waterfall.residual_share <= 0.02
    assert piece(explanation, "unattributed") <= 0.02 * expected + 1e-9


def test_vision_sampling_is_advised_for_the_prefill_it_saves():
    explanation = explain(Setup(prompt=4000, spacing_ms=300.0), vision_tokens=2000)
    switch = next(switch for switch in explanation.switches if switch.code == "vision_sampling")
    ttft = next(tail for tail in explanation.tails if tail.metric == "ttft")
    share = ttft.shares["prefill"]
    assert share > 0.5
    assert switch.gain == pytest.approx(share * 0.5 * 0.6)


def test_idle_time_between_requests_is_nobodys():
    """Requests far apart: the long idle time before an arrival must not count as the scheduler's."""
    explanation = explain(Setup(requests=3, spacing_ms=5000.0, output=20))
    assert piece(explanation, "scheduler") < 1.0


def test_steps_without_shapes_stay_one_piece():
    explanation = explain_events(simulate(Setup(requests=2)), RunContext())
    assert explanation.waterfall is not None
    assert {p.name for p in explanation.waterfall.pieces} >= {"execution"}
    assert any("--model" in note for note in explanation.notes)


def test_a_log_whose_beginning_was_lost_is_still_explained():
    """The ring keeps the newest events: requests that began before are members of steps, but nobody's prefill."""
    events = simulate(Setup(requests=12, scheduler_ms=6.0, spacing_ms=60.0))
    explanation = explain_events(events[len(events) // 2 :], RunContext(get_shape("llama-3-8b"), get_card("H200")))
    assert explanation.findings[0].code == "scheduler"
    assert piece(explanation, "unattributed") == 0
    with pytest.raises(InputError, match="no request"):
        explain_events(events[-30:], RunContext())


def test_a_log_without_steps_is_refused():
    with pytest.raises(InputError, match="no complete step"):
        read_run([Event(0, 1, EventKind.ARRIVAL, "r")])


def test_overlapped_steps_do_not_count_time_twice():
    """The next step may begin before the last one ended (asynchronous scheduling)."""
    rows = [
        (0, EventKind.ARRIVAL, "r", 0, ""), (1, EventKind.ADMITTED, "r", 0, ""),
        (1, EventKind.SCHEDULED, "r", 4, "s0"), (2, EventKind.STEP_BEGIN, "s0", 4, ""),
        (12, EventKind.STEP_END, "s0", 1, ""), (12, EventKind.TOKEN, "r", 0, ""),
        (10, EventKind.SCHEDULED, "r", 1, "s1"), (11, EventKind.STEP_BEGIN, "s1", 1, ""),
        (22, EventKind.STEP_END, "s1", 1, ""), (22, EventKind.TOKEN, "r", 1, ""),
        (22, EventKind.FINISHED, "r", 2, "length"),
    ]  # fmt: skip
    events = [
        Event(i, ms * 1_000_000, kind, who, -1, value, text) for i, (ms, kind, who, value, text) in enumerate(rows)
    ]
    waterfall = explain_events(events, RunContext()).waterfall
    assert waterfall is not None
    assert waterfall.total_ms == pytest.approx((10 + 1) / 2)  # one gap of 10 ms and 1 ms in the queue, two tokens
