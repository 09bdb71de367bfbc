"""P3197 clauses over event logs: sound ones hold, and each way to break one is seen by exactly that clause."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.errors import InputError
from sits.spec.clauses import ClauseReport, judge_events, judge_log
from sits.spec.events import Event, EventKind

K = EventKind


def simulate(seed: int, requests: int, blocks: int, preempt: float, cancel: float) -> list[Event]:
    """A random but sound engine: arrivals, admission, steps, preemption, cancels, shared blocks, all ended."""
    rng = random.Random(seed)
    events: list[Event] = []
    clock = [1000]

    def add(kind: EventKind, entity: str, cause: int = -1, value: int = 0) -> int:
        clock[0] += rng.randrange(0, 5000)
        events.append(Event(len(events), clock[0], kind, entity, cause, value))
        return len(events) - 1

    free = [f"block-{i}" for i in range(blocks)]
    last: dict[str, int] = {}
    held: dict[str, list[str]] = {}
    waiting, left = [], {}
    for index in range(requests):
        name = f"q{index}"
        last[name] = add(K.PERCEIVED, name, add(K.ARRIVAL, name))
        waiting.append(name)
        left[name] = rng.randrange(1, 4)
    step = 0

    def leave(name: str) -> None:
        for block in held.pop(name):
            add(K.BLOCK_FREED, block, last[name])
            free.append(block)

    while waiting or held:
        while waiting and free:
            name = waiting.pop(0)
            block = free.pop(rng.randrange(len(free)))
            add(rng.choice([K.BLOCK_ALLOCATED, K.BLOCK_REUSED]), block, last[name])
            held[name] = [block]
            last[name] = add(K.ADMITTED, name, last[name])
        for name in held:
            last[name] = add(K.SCHEDULED, name, last[name], 1)
        end = add(K.STEP_END, f"step-{step}", add(K.STEP_BEGIN, f"step-{step}"))
        step += 1
        for name in list(held):
            last[name] = add(rng.choice([K.TOKEN, K.CHUNK]), name, end)
            left[name] -= 1
            if rng.random() < cancel:
                last[name] = add(K.PERCEIVED, name, add(K.CANCEL_REQUESTED, name))
                left[name] = 0
            if left[name] <= 0:
                last[name] = add(K.FINISHED, name, last[name])
                leave(name)
            elif rng.random() < preempt and len(held) > 1:
                leave(name)
                last[name] = add(K.PREEMPTED, name, last[name])
                waiting.append(name)
        add(K.PERCEIVED, f"step-{step - 1}", end)
    return events


logs = st.builds(
    simulate, st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.floats(0, 0.4), st.floats(0, 0.3)
)
PROPERTY = settings(max_examples=60, deadline=None)


def holds(report: ClauseReport) -> dict[str, bool]:
    shares = {"tc": report.tc, "rs": report.rs, "fcau": report.fcau}
    return {name: share.value in (1.0, None) for name, share in shares.items()}


@PROPERTY
@given(logs)
def test_a_sound_log_holds_every_clause(events: list[Event]) -> None:
    report = judge_events(events)
    assert holds(report) == {"tc": True, "rs": True, "fcau": True}, (report.rs.first_wrong, report.fcau.first_wrong)
    assert report.unperceived == 0
    assert len(report.delays_us) == sum(event.kind == K.PERCEIVED for event in events)
    assert max(report.delays_us) <= 5.0 * max(1, len(events))


@PROPERTY
@given(logs, st.data())
def test_a_time_that_goes_back_breaks_tc(events: list[Event], data: st.DataObject) -> None:
    later = [i for i, e in enumerate(events) if any(o.entity == e.entity for o in events[:i])]
    index = data.draw(st.sampled_from(later))
    before = max(o.time_ns for o in events[:index] if o.entity == events[index].entity)
    events[index] = events[index]._replace(time_ns=before - data.draw(st.integers(1, 1000)))
    report = judge_events(events)
    assert not holds(report)["tc"]
    assert report.tc.total - report.tc.right >= 1
    assert f"(event {index})" in str(report.tc.first_wrong)


@PROPERTY
@given(logs, st.data())
def test_a_lost_end_breaks_rs(events: list[Event], data: st.DataObject) -> None:
    following: dict[str, EventKind] = {}
    ends = []
    for index in reversed(range(len(events))):
        event = events[index]
        # A block that is freed and at once reused looks the same as one that is shared.
        if event.kind in (K.FINISHED, K.BLOCK_FREED) and following.get(event.entity) != K.BLOCK_REUSED:
            ends.append(index)
        following[event.entity] = event.kind
    lost = data.draw(st.sampled_from(ends))
    report = judge_events([event for i, event in enumerate(events) if i != lost])
    assert not holds(report)["rs"]
    assert holds(report)["tc"]


@PROPERTY
@given(logs, st.sampled_from([K.TOKEN, K.ADMITTED, K.FINISHED, K.SCHEDULED, K.PREEMPTED]), st.data())
def test_an_event_after_the_end_breaks_rs(events: list[Event], kind: EventKind, data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([e for e in events if e.kind == K.FINISHED]))
    extra = Event(len(events), events[-1].time_ns + 1, kind, end.entity, end.sequence)
    report = judge_events([*events, extra])
    assert not holds(report)["rs"]
    assert end.entity in str(report.rs.first_wrong)


@PROPERTY
@given(logs, st.data())
def test_a_block_given_out_twice_breaks_rs(events: list[Event], data: st.DataObject) -> None:
    takes = [i for i, e in enumerate(events) if e.kind == K.BLOCK_ALLOCATED]
    if not takes:
        return
    at = data.draw(st.sampled_from(takes))
    twice = [*events[: at + 1], events[at]._replace(sequence=10**6), *events[at + 1 :]]
    renumbered = [event._replace(sequence=i, cause=-1) for i, event in enumerate(twice)]
    assert not holds(judge_events(renumbered))["rs"]


@PROPERTY
@given(logs, st.data())
def test_an_effect_before_its_cause_breaks_fcau(events: list[Event], data: st.DataObject) -> None:
    effects = [i for i, e in enumerate(events) if e.cause >= 0]
    index = data.draw(st.sampled_from(effects))
    how = data.draw(st.sampled_from(["order", "time", "missing"]))
    event = events[index]
    if how == "order":
        events[index] = event._replace(cause=data.draw(st.integers(index + 1, len(events) + 5)))
    elif how == "time":
        events[index] = event._replace(time_ns=events[event.cause].time_ns - 1)
    else:
        token = next(i for i, e in enumerate(events) if e.kind in (K.TOKEN, K.CHUNK))
        events[token] = events[token]._replace(cause=-1)
    report = judge_events(events)
    assert not holds(report)["fcau"]
    assert holds(report)["rs"]


def test_unseen_arrivals_and_cancels_are_counted(workshop: Any) -> None:
    events = [e for e in workshop.events() if not (e.kind == K.PERCEIVED and e.entity == "r1")]
    report = judge_events(events)
    assert report.unperceived == 1


def test_a_ring_that_dropped_its_beginning_is_judged_on_the_rest(workshop: Any) -> None:
    events = workshop.events(requests=4)
    for cut in range(1, len(events) - 1):
        report = judge_events(events[cut:], {"dropped": cut})
        assert holds(report)["fcau"], report.fcau.first_wrong
        assert holds(report)["tc"]
        assert not (report.rs.first_wrong or "").startswith("FINISHED"), report.rs.first_wrong


def test_the_window_is_three_times_the_largest_round_trip() -> None:
    trips = [Event(i, i, K.ROUND_TRIP, "a-b", -1, ns) for i, ns in enumerate((100_000, 700_000, 200_000))]
    report = judge_events(trips)
    assert report.window_ms == pytest.approx(2.1)
    assert judge_events([]).window_ms is None
    assert judge_events([]).tc.value is None


@pytest.mark.parametrize(
    "lines",
    [
        ["{}"],
        ["[1]"],
        ['{"sits_events": 1}', "{}"],
        ['{"sits_events": 1}', "[1, 2]"],
        ['{"sits_events": 1}', '["1", 2, 3, "r"]'],
        ['{"sits_events": 1}', "[1, 2.5, 3, 4]"],
        ['{"sits_events": 1}', '[true, 2, 3, "r"]'],
        ['{"sits_events": 1}', "not json"],
    ],
)
def test_a_foreign_or_damaged_log_is_an_input_error(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(InputError):
        judge_log(path)


def test_a_truncated_log_is_an_input_error_and_an_unknown_kind_is_not(workshop: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    workshop.write_events(path, workshop.events())
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(InputError, match="damaged"):
        judge_log(path)
    rows = [json.dumps({"sits_events": 1}), json.dumps([0, 1, 99, "x"])]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    assert judge_log(path).unknown == 1


def test_what_the_header_says_of_dropped_events_and_workers_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    rows = [json.dumps({"sits_events": 1, "dropped": 91_356, "workers": 2}), json.dumps([91_356, 5, 1, "q"])]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    report = judge_log(path)
    assert (report.dropped, report.workers) == (91_356, 2)
