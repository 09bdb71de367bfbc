"""The event log of a pressured run is consistent in time, complete, and every effect follows its cause."""

from __future__ import annotations

import gc
import gzip
import itertools
import threading

import pytest

from sits.engine.event_log import EventLog, read_events
from sits.errors import InputError
from sits.spec.clauses import judge_events
from sits.spec.events import EventKind

K = EventKind
REQUEST_MOVES = {
    None: {K.ARRIVAL},
    K.ARRIVAL: {K.PERCEIVED},
    K.PERCEIVED: {K.ADMITTED, K.FINISHED},
    K.ADMITTED: {K.SCHEDULED, K.PREEMPTED, K.FINISHED},
    K.SCHEDULED: {K.CHUNK, K.TOKEN, K.FINISHED},
    K.CHUNK: {K.TOKEN, K.SCHEDULED, K.PREEMPTED, K.FINISHED},
    K.TOKEN: {K.SCHEDULED, K.PREEMPTED, K.FINISHED},
    K.PREEMPTED: {K.ADMITTED, K.FINISHED},
    K.FINISHED: set(),
}
CAUSES = {
    K.PERCEIVED: {K.ARRIVAL, K.CANCEL_REQUESTED, K.STEP_END},
    K.ADMITTED: {K.PERCEIVED, K.PREEMPTED},
    K.SCHEDULED: {K.ADMITTED, K.CHUNK, K.TOKEN},
    K.STEP_END: {K.STEP_BEGIN},
    K.CHUNK: {K.STEP_END},
    K.TOKEN: {K.STEP_END},
    K.PREEMPTED: {K.ADMITTED, K.CHUNK, K.TOKEN},
    K.FINISHED: {K.TOKEN, K.PERCEIVED},
}


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_clauses_hold_on_a_pressured_run(run_pressured, prefix_caching, overlap):
    engine, requests = run_pressured(11, 150, prefix_caching=prefix_caching, overlap=overlap)
    # One ahead, a request is part of the next step before its token of this one is known.
    moves, causes = dict(REQUEST_MOVES), dict(CAUSES)
    if overlap:
        for kind in (K.SCHEDULED, K.CHUNK, K.TOKEN):
            moves[kind] = moves[kind] | {K.SCHEDULED, K.CHUNK, K.TOKEN}
        causes[K.SCHEDULED] = causes[K.SCHEDULED] | {K.SCHEDULED}
    assert engine.scheduler.counters.preemptions > 0
    assert engine.log.dropped == 0
    events = engine.log.events()
    by_sequence = {event.sequence: event for event in events}
    assert [event.sequence for event in events] == list(range(len(events)))
    entities: dict[str, list] = {}
    for event in events:
        entities.setdefault(event.entity, []).append(event)
        if event.kind in causes:  # Fcau: an effect comes after its cause, which is of the right kind
            cause = by_sequence[event.cause]
            assert cause.kind in causes[event.kind], (cause, event)
            assert cause.sequence < event.sequence
            assert cause.time_ns <= event.time_ns
    for history in entities.values():  # Tc: the time of an entity never goes back
        assert all(a.time_ns <= b.time_ns for a, b in itertools.pairwise(history))
    for request in requests:  # Rs: legal moves only, ending in the terminal state
        state = None
        tokens = 0
        for event in entities[request.request_id]:
            cancel = event.kind is K.CANCEL_REQUESTED or (
                event.kind is K.PERCEIVED and by_sequence[event.cause].kind is K.CANCEL_REQUESTED
            )
            if cancel:
                continue
            assert event.kind in moves[state], (state, event)
            state = event.kind
            tokens += event.kind is K.TOKEN
        assert state is K.FINISHED
        assert tokens == request.output_tokens
    report = judge_events(events)  # and the clauses as the gate computes them
    assert (report.tc.value, report.rs.value, report.fcau.value) == (1.0, 1.0, 1.0)
    assert report.unperceived == 0
    for name, history in entities.items():
        if name.startswith("block-"):
            held = False
            for event in history:
                if event.kind is K.BLOCK_ALLOCATED:
                    assert not held
                held = event.kind is not K.BLOCK_FREED
            assert not held


def test_off_means_off():
    log = EventLog(enabled=False)
    assert log.add(K.ARRIVAL, "x") == -1
    assert len(log) == 0


def test_a_full_ring_drops_the_oldest_and_says_so():
    log = EventLog(10)
    for index in range(25):
        log.add(K.TOKEN, "x", value=index)
    assert log.dropped == 15
    assert [event.value for event in log.events()] == list(range(15, 25))


def test_the_garbage_collector_never_walks_the_log():
    log = EventLog()
    gc.collect()
    before = len(gc.get_objects())
    for index in range(5000):
        log.add(K.TOKEN, "x", index, index)
    log.add_each(K.SCHEDULED, ["x", "y"] * 2500, range(5000), range(5000), "step", 1)
    gc.collect()
    assert len(gc.get_objects()) - before < 500
    assert len(log) == 10_000


def test_many_threads_lose_nothing():
    log = EventLog(1 << 16)
    threads = [threading.Thread(target=lambda: [log.add(K.TOKEN, "x") for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        log.events()
    for thread in threads:
        thread.join()
    assert [event.sequence for event in log.events()] == list(range(8000))


def test_the_file_reads_back_and_damage_is_said_clearly(tmp_path):
    log = EventLog()
    cause = log.add(K.ARRIVAL, "request-1")
    log.add(K.PERCEIVED, "request-1", cause, 3, "why")
    path = tmp_path / "events.jsonl.gz"
    assert log.write(path, {"run": "x"}) == 2
    assert read_events(path) == log.events()
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match="damaged"):
        read_events(path)
    with gzip.open(path, "wb") as file:
        file.write(b'{"other": 1}\n')
    with pytest.raises(InputError, match="not a SITS event log"):
        read_events(path)
    with pytest.raises(InputError, match="does not exist"):
        read_events(tmp_path / "no")
