"""One step ahead: what a step in flight may assume, and what happens to a row that turns out to be one too many."""

from __future__ import annotations

from time import monotonic_ns

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sits.engine.device_clock import DeviceClock
from sits.errors import SitsError
from sits.spec.events import EventKind as K


@pytest.fixture
def ahead(make_engine):
    def make(**options):
        return make_engine(overlap=True, **options)

    return make


def test_the_next_step_is_handed_over_before_the_result_of_this_one(ahead, make_request, oracle):
    engine = ahead()
    request = make_request("x", [1, 2, 3], 10)
    engine.scheduler.add(request)
    engine.run()
    assert request.output_ids == oracle([1, 2, 3], 10)
    assert engine.scheduler.counters.steps == 10  # an end that is known in advance costs no row too many
    marks = [(e.kind, e.entity) for e in engine.log.events() if e.kind in (K.STEP_BEGIN, K.STEP_END)]
    assert marks[0] == (K.STEP_BEGIN, "step-0")
    assert marks[1:-1] == [
        mark for step in range(9) for mark in ((K.STEP_BEGIN, f"step-{step + 1}"), (K.STEP_END, f"step-{step}"))
    ]


def test_blocks_of_a_request_that_ended_are_free_after_the_step_that_writes_to_them(ahead, make_request, oracle):
    engine = ahead()
    request = make_request("x", [1, 2, 3], 20)
    request.stop_ids = frozenset({oracle([1, 2, 3], 4)[-1]})
    engine.scheduler.add(request)
    while not request.finished:
        engine.step()
    assert request.output_ids == oracle([1, 2, 3], 4)
    assert engine.scheduler.pool.used == 2
    engine.scheduler.check_integrity()
    engine.drain()
    assert engine.scheduler.pool.used == 0
    assert engine.scheduler.counters.steps == 5  # one row too many
    assert engine.scheduler.counters.output_tokens == 4


def test_a_row_of_the_tables_is_not_given_away_while_a_step_in_flight_uses_it(ahead, make_request, oracle):
    engine = ahead(max_running=2, max_step_tokens=8)
    requests = [make_request(f"r{i}", [i, i + 1], 12) for i in range(5)]
    for index, request in enumerate(requests):
        request.stop_ids = frozenset({oracle([index, index + 1], 3)[-1]})
        engine.scheduler.add(request)
    engine.run()
    assert [r.output_ids for r in requests] == [oracle([i, i + 1], 3) for i in range(5)]


def test_a_dropped_row_with_bad_logits_leaves_nothing_behind(ahead, make_request, oracle):
    prompt = list(range(12))
    engine = ahead()
    request = make_request("x", prompt, 20)
    request.stop_ids = frozenset({oracle(prompt, 4)[-1]})
    engine.device.bad_at.add(("x", 16))  # the row after the end
    engine.scheduler.add(request)
    engine.run()
    assert request.finish_reason == "stop"
    assert len(engine.device.cleared) == 4
    again = make_request("again", prompt, 5)
    engine.scheduler.add(again)
    engine.run()
    assert again.cached_tokens == 0
    assert again.output_ids == oracle(prompt, 5)


def test_bad_logits_clear_the_blocks_after_the_row_in_flight(ahead, make_request, oracle):
    engine = ahead()
    bad, good = make_request("bad", list(range(9)), 20), make_request("good", [7, 8], 20)
    engine.device.bad_at.add(("bad", 12))
    for request in (bad, good):
        engine.scheduler.add(request)
    engine.run()
    assert bad.finish_reason == "error"
    assert bad.output_ids == oracle(list(range(9)), 3)
    assert len(engine.device.cleared) == 4
    assert good.output_ids == oracle([7, 8], 20)


def test_a_penalised_request_waits_for_its_token(ahead, make_request, oracle):
    engine = ahead()
    plain, penalised = make_request("plain", [1, 2], 20), make_request("p", [3], 6, presence_penalty=1.0)
    engine.scheduler.add(penalised)
    engine.step()
    engine.scheduler.add(plain)
    while penalised.output_tokens < 5:
        engine.step()
    assert engine.device.most_ahead == 1
    assert plain.output_tokens > 0
    engine.run()
    assert engine.device.most_ahead == 2  # now nobody waits
    assert plain.output_ids == oracle([1, 2], 20)


@pytest.mark.parametrize("where", ["fail_at", "refuse_at"])
def test_a_step_that_raises_ends_its_requests_only(ahead, make_request, oracle, where, overlap):
    engine = ahead()
    engine.overlap = overlap
    getattr(engine.device, where)[3] = SitsError("no memory")
    lost = [make_request(f"lost{i}", [i, 1], 20) for i in range(3)]
    for request in lost:
        engine.scheduler.add(request)
    while not all(request.finished for request in lost):
        engine.step()
    kept = make_request("kept", [1, 2], 5)
    engine.scheduler.add(kept)
    engine.run()
    assert {request.error for request in lost} == {"no memory"}
    assert [request.output_ids for request in lost] == [oracle([i, 1], 3) for i in range(3)]
    assert kept.output_ids == oracle([1, 2], 5)
    assert engine.scheduler.pool.used == 0
    ends = [e for e in engine.log.events() if e.kind is K.STEP_END]
    assert [e.detail for e in ends].count("failed") == 1
    assert all(e.cause >= 0 for e in ends)


class Event:
    """A timed event that happened at ``at_ms`` of a device whose clock starts at any time."""

    def __init__(self, at_ms: float, happened: bool):
        self.at_ms, self.happened = at_ms, happened

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened = True

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


def test_the_clock_of_the_device_tells_when_a_late_host_missed_the_end():
    clock = DeviceClock()
    before = monotonic_ns()
    first = clock.wait(Event(100.0, False))
    assert before <= first <= monotonic_ns()
    while monotonic_ns() < first + 5_000_000:  # the host is busy elsewhere
        pass
    assert clock.wait(Event(102.0, True)) == first + 2_000_000
    assert clock.wait(Event(102.5, True)) == first + 2_500_000
    assert clock.wait(Event(1e9, True)) <= monotonic_ns()  # never in the future
    late = monotonic_ns()
    assert clock.wait(Event(2e9, False)) >= late  # it was waited for: seen by the host itself


SHARED = [[(seed * 31 + index * 7) % 97 for index in range(40)] for seed in range(2)]
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "head": st.tuples(st.sampled_from([0, 1]), st.integers(0, 24)),
            "tail": st.integers(1, 12),
            "max_tokens": st.integers(1, 20),
            "stop_after": st.none() | st.integers(1, 12),
            "penalised": st.integers(0, 9).map(lambda n: n == 0),
            "add_at": st.integers(0, 25),
            "cancel_at": st.none() | st.integers(0, 40),
            "bad_at": st.integers(0, 9).map(lambda n: n == 0),
        }
    ),
    min_size=1,
    max_size=12,
)


@given(
    plan=REQUESTS,
    sizes=st.sampled_from([(4, 14), (1, 60), (3, 18), (8, 40)]),
    max_running=st.sampled_from([1, 3, 16]),
    failing=st.none() | st.tuples(st.sampled_from(["fail_at", "refuse_at"]), st.integers(0, 20)),
    prefix_caching=st.booleans(),
)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_course_of_events_gives_right_tokens_and_loses_no_block(
    make_engine, make_request, oracle, plan, sizes, max_running, failing, prefix_caching
):
    reference: list | None = None
    for overlap in (False, True):
        engine = make_engine(
            blocks=sizes[1], block_size=sizes[0], prefix_caching=prefix_caching, overlap=overlap,
            max_running=max_running, max_step_tokens=24, watermark=0.0,
        )  # fmt: skip
        if failing is not None:
            getattr(engine.device, failing[0])[failing[1]] = SitsError("planted")
        requests = []
        for index, one in enumerate(plan):
            prompt = SHARED[one["head"][0]][: one["head"][1]] + [index * 13 + k for k in range(one["tail"])]
            penalty = {"presence_penalty": 1.0} if one["penalised"] else {}
            request = make_request(f"r{index}", prompt, one["max_tokens"], **penalty)
            if one["stop_after"] is not None:
                request.stop_ids = frozenset({oracle(prompt, one["stop_after"])[-1]})
            if one["bad_at"]:
                engine.device.bad_at.add((request.request_id, len(prompt) + 3))
            requests.append(request)
        step = 0
        while step <= 41 or engine.has_work:
            for request, one in zip(requests, plan):
                if one["add_at"] == step:
                    engine.scheduler.add(request)
                if one["cancel_at"] == step and step > one["add_at"]:
                    engine.scheduler.cancel(request)
            engine.step()
            step += 1
            assert step < 3000
        assert engine.scheduler.pool.used == 0
        for request in requests:
            assert request.finished
            full = oracle(request.token_ids[: request.prompt_tokens], request.output_tokens)
            assert request.output_ids == full
            stopped = bool(full) and full[-1] in request.stop_ids
            assert stopped == (request.finish_reason == "stop")
            assert not request.stop_ids.intersection(full[:-1])
        if failing is None and not any(one["cancel_at"] is not None for one in plan):
            results = [(r.output_ids, r.finish_reason, r.error) for r in requests]
            assert reference in (None, results)
            reference = results
