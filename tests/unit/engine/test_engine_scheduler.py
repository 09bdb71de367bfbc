"""The scheduler against a device that answers with what it reads from the cache."""

from __future__ import annotations

import pytest

from sits.engine.request import RequestState
from sits.engine.scheduler_config import QueueFullError, SchedulerConfig
from sits.engine.step_batch import StepResult
from sits.errors import InputError
from sits.policy.queue_order import PriorityOrder
from sits.policy.victim_choice import CheapestFirst, NewestFirst


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1, {}),
        (2, {"policies": {"victims": CheapestFirst()}, "watermark": 0.0}),
        (3, {"prefix_caching": False, "max_running": 40}),
        (4, {"policies": {"order": PriorityOrder()}, "blocks": 30, "block_size": 5}),
        (5, {"block_size": 1, "blocks": 150, "max_step_tokens": 17, "max_running": 17}),
    ],
)
def test_500_requests_under_pressure_end_with_the_right_tokens(run_pressured, oracle, overlap, seed, options):
    engine, requests = run_pressured(seed, overlap=overlap, **options)
    assert engine.device.most_ahead == 1 + overlap
    scheduler = engine.scheduler
    scheduler.check_integrity()
    assert scheduler.pool.used == 0
    assert not scheduler.running
    assert not scheduler.waiting
    assert {request.state for request in requests} == {RequestState.FINISHED}
    for request in requests:
        output = oracle(request.token_ids[: request.prompt_tokens], request.output_tokens)
        assert request.output_ids == output
        assert (request.finish_reason == "length") == (request.output_tokens == request.params.max_tokens)
    reasons = scheduler.counters.finished
    assert sum(reasons.values()) == 500
    assert set(reasons) == {"length", "cancelled"}
    assert scheduler.counters.preemptions > 10
    assert (scheduler.counters.cached_tokens > 0) == scheduler.pool.prefix_caching


def test_decodes_go_on_while_a_long_prompt_is_computed_in_chunks(make_engine, make_request, oracle):
    engine = make_engine(blocks=200, max_step_tokens=16)
    first = make_request("first", [1, 2, 3], 30)
    engine.scheduler.add(first)
    engine.step()
    long = make_request("long", list(range(150)), 3)
    engine.scheduler.add(long)
    while not long.output_tokens:
        before = first.output_tokens
        engine.step()
        assert first.output_tokens == before + 1  # one token each step, however long the other prompt
    assert first.output_tokens == 1 + 10  # 150 prompt tokens at 15 per step
    engine.run()
    assert long.output_ids == oracle(list(range(150)), 3)


def test_a_repeated_prompt_computes_only_its_last_block(make_engine, make_request, oracle):
    engine = make_engine()
    prompt = list(range(16))
    for name in ("cold", "warm"):
        request = make_request(name, prompt, 5)
        engine.scheduler.add(request)
        engine.run()
        assert request.output_ids == oracle(prompt, 5)
    assert request.cached_tokens == 12  # all but one block: a token must remain to be computed


def test_the_last_token_is_never_published_before_it_is_written(make_engine, make_request, oracle):
    engine = make_engine(block_size=4)
    first = make_request("first", [5, 6], 2)  # 2 + 2 tokens fill one block, but the last is never written
    engine.scheduler.add(first)
    engine.run()
    follow = make_request("follow", [*first.token_ids, 9, 9], 4)
    engine.scheduler.add(follow)
    engine.run()
    assert follow.cached_tokens == 0
    assert follow.output_ids == oracle([*first.token_ids[:4], 9, 9], 4)


def test_tenants_do_not_share_blocks(make_engine, make_request):
    engine = make_engine()
    for name, salt, expected in (("a", "one", 0), ("b", "two", 0), ("c", "one", 12)):
        request = make_request(name, list(range(16)), 2)
        engine.scheduler.add(request, salt=salt)
        engine.run()
        assert request.cached_tokens == expected


def test_followers_start_when_they_can_share_the_prompt(make_engine, make_request, oracle):
    engine = make_engine()
    group = [make_request(f"n{i}", list(range(20)), 6) for i in range(4)]
    engine.scheduler.add(group[0], followers=group[1:])
    engine.scheduler.cancel(group[3])
    engine.run()
    assert [r.cached_tokens for r in group[:3]] == [0, 16, 16]
    assert all(r.output_ids == oracle(list(range(20)), 6) for r in group[:3])
    assert group[3].finish_reason == "cancelled"


def test_followers_of_a_cancelled_leader_still_run(make_engine, make_request, oracle):
    engine = make_engine()
    group = [make_request(f"n{i}", [1, 2, 3], 6) for i in range(2)]
    engine.scheduler.add(group[0], followers=group[1:])
    engine.scheduler.cancel(group[0])
    engine.run()
    assert group[0].output_ids == []
    assert group[1].output_ids == oracle([1, 2, 3], 6)


def test_cancel_at_every_moment(make_engine, make_request):
    for moment in range(12):
        engine = make_engine(max_step_tokens=16)
        request, other = make_request("x", list(range(40)), 6), make_request("other", [1], 20)
        engine.scheduler.add(request)
        engine.scheduler.add(other)
        for _ in range(moment):
            engine.step()
        accepted = engine.scheduler.cancel(request)
        assert accepted == (not request.finished)
        assert not engine.scheduler.cancel(request)
        tokens = request.output_tokens
        engine.run()
        assert request.output_tokens == tokens
        assert other.output_tokens == 20
        assert engine.scheduler.pool.used == 0


def test_a_cancel_during_the_step_drops_its_token(make_engine, make_request):
    engine = make_engine()
    told = []
    request = make_request("x", [1, 2], 6)
    request.on_update = told.append
    engine.scheduler.add(request)
    batch = engine.scheduler.schedule()
    engine.scheduler.cancel(request)
    engine.scheduler.complete(batch, engine.device.execute(batch).fetch())
    assert request.output_tokens == 0
    engine.run()
    assert request.finish_reason == "cancelled"
    assert told == [request]


def test_bad_logits_end_only_their_request_and_poison_no_cache(make_engine, make_request):
    engine = make_engine()
    bad, good = make_request("bad", list(range(9)), 6), make_request("good", list(range(50, 59)), 6)
    engine.scheduler.add(bad)
    engine.scheduler.add(good)
    engine.step()
    batch = engine.scheduler.schedule()
    result = engine.device.execute(batch).fetch()
    engine.scheduler.complete(batch, StepResult([-1, result.tokens[1]]))
    assert bad.finish_reason == "error"
    assert "NaN" in bad.error
    engine.run()
    assert good.finish_reason == "length"
    again = make_request("again", list(range(9)), 2)
    engine.scheduler.add(again)
    engine.run()
    assert again.cached_tokens == 0


def test_stop_tokens_and_min_tokens(make_engine, make_request, oracle):
    expected = oracle([3, 4], 10)
    engine = make_engine()
    request = make_request("x", [3, 4], 10)
    request.stop_ids = frozenset({expected[2]})
    engine.scheduler.add(request)
    later = make_request("later", [3, 4], 10, min_tokens=4)
    later.stop_ids = frozenset({expected[2], expected[5]})
    engine.scheduler.add(later)
    engine.run()
    assert request.output_ids == expected[:3]
    assert request.finish_reason == "stop"
    assert later.output_ids == expected[:6]
    assert later.finish_reason == "stop"


def test_impossible_requests_are_refused_with_the_reason(make_engine, make_request):
    scheduler = make_engine(blocks=8, max_waiting=2).scheduler
    with pytest.raises(InputError, match="prompt is empty"):
        scheduler.add(make_request("x", []))
    with pytest.raises(InputError, match="has 256 tokens, but the context holds 256"):
        scheduler.add(make_request("x", [1] * 256))
    with pytest.raises(InputError, match="need 13 KV blocks of 4 tokens, but the cache has 8"):
        scheduler.add(make_request("x", [1] * 40, 10))
    for name in "ab":
        scheduler.add(make_request(name, [1]))
    with pytest.raises(QueueFullError):
        scheduler.add(make_request("c", [1]))
    with pytest.raises(InputError, match="below max_running"):
        SchedulerConfig(max_model_len=8, max_running=9, max_step_tokens=8)


def test_max_tokens_is_cut_at_the_end_of_the_context(make_engine, make_request):
    engine = make_engine(blocks=64)
    request = make_request("x", [1] * 250, 100)
    engine.scheduler.add(request)
    engine.run()
    assert request.output_tokens == 6
    assert request.finish_reason == "length"


def test_priorities_and_aging(make_request):
    order = PriorityOrder(aging_seconds=1)
    calm, urgent = make_request("calm", [1], priority=1), make_request("urgent", [1], priority=0)
    calm.arrival_ns, urgent.arrival_ns = 10, 20
    assert order.decide([calm, urgent], 30) == 1
    urgent.arrival_ns = 3_000_000_000
    assert order.decide([calm, urgent], 3_000_000_001) == 0


def test_victims(make_request):
    old, new = make_request("old", [1]), make_request("new", [1])
    old.arrival_ns, new.arrival_ns, old.num_computed, new.num_computed = 1, 2, 10, 30
    assert NewestFirst().decide([old, new]) == 1
    assert CheapestFirst().decide([old, new]) == 0
    old.preemptions = 2  # 10 tokens, twice lost already, now weigh 40
    assert CheapestFirst().decide([old, new]) == 1
    old.priority = 5
    assert NewestFirst().decide([old, new]) == CheapestFirst().decide([old, new]) == 0
