"""The search finds the capacity of a modelled server, and says honestly when there is none to find."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.search import MOST_PROBES, Search, judge
from sits.errors import InputError
from sits.spec.result import Figure, LoadPoint
from sits.spec.statistics import wilson_interval

SLO = {"ttft_ms": 500.0}


def point(index, share, n=2000, status="complete"):
    low, high = wilson_interval(round(share * n), n)
    figure = Figure(value=share, unit="1", n=n, ci_low=low, ci_high=high)
    return LoadPoint(index=index, mode="open", metrics={"attainment": figure}, status=status)


def run(search, share_at, n=2000):
    points, loads = [], []
    while (load := search.next_load(points)) is not None:
        loads.append(load)
        level = load.concurrency if load.mode == "closed" else load.arrivals.rate
        points.append(point(len(points), share_at(level), n))
        assert len(points) <= MOST_PROBES + 1
    return search.summary(), loads


@given(st.floats(0.05, 900.0), st.floats(0.1, 50.0))
@settings(max_examples=150, deadline=None)
def test_rate_search_brackets_the_capacity(capacity, start):
    search = Search("rate", SLO, start=start, limit=2000, duration_s=10)
    found, _ = run(search, lambda level: 1.0 if level <= capacity else 0.3)
    if found["outcome"] == "never_passed":
        assert capacity < start / 32
        return
    assert found["outcome"] == "found"
    assert found["highest_passing"] <= capacity < found["lowest_failing"]
    assert found["lowest_failing"] / found["highest_passing"] <= 1.05 + 1e-9


@given(st.integers(1, 500), st.integers(1, 64))
@settings(max_examples=150, deadline=None)
def test_concurrency_search_uses_whole_levels(capacity, start):
    search = Search("concurrency", SLO, start=start, limit=1024, precision=0.01, requests=50)
    found, loads = run(search, lambda level: 1.0 if level <= capacity else 0.0)
    assert all(load.concurrency == int(load.concurrency) >= 1 for load in loads)
    assert found["highest_passing"] <= capacity < found["lowest_failing"]
    assert found["lowest_failing"] - found["highest_passing"] <= max(1, 0.01 * found["lowest_failing"] + 1)


def test_server_that_always_or_never_meets_the_slo():
    assert run(Search("rate", SLO, limit=64, duration_s=1), lambda _: 1.0)[0]["outcome"] == "never_failed"
    never, _ = run(Search("concurrency", SLO, start=8, duration_s=1), lambda _: 0.0)
    assert (never["outcome"], never["highest_passing"], never["lowest_failing"]) == ("never_passed", None, 1.0)


def test_unsure_level_is_measured_again_twice_as_long():
    search = Search("rate", SLO, start=4, requests=100)
    assert search.next_load([]).requests == 100
    again = search.next_load([point(0, 0.98, n=100)])
    assert (again.arrivals.rate, again.requests) == (4, 200)
    onward = search.next_load([point(0, 0.98, n=100), point(1, 0.995, n=200)])
    assert onward.arrivals.rate == 8
    assert [step["verdict"] for step in search.summary()["steps"]] == ["unsure", "unsure"]


@pytest.mark.parametrize(("status", "outcome"), [("invalid", "client_bound"), ("partial", "stopped")])
def test_client_bound_or_interrupted_level_ends_the_search(status, outcome):
    search = Search("rate", SLO, duration_s=1)
    search.next_load([])
    assert search.next_load([point(0, 1.0, status=status)]) is None
    assert search.summary()["outcome"] == outcome
    assert search.summary()["highest_passing"] is None


def test_no_data_fails():
    empty = LoadPoint(index=0, mode="open", status="no_data")
    assert judge(empty, 0.99) == "fail"


@pytest.mark.parametrize(
    "bad", [{"slo": {}}, {"start": 0.0}, {"start": 10, "limit": 5}, {"attainment": 1.0}, {"precision": 0.0}]
)
def test_impossible_searches_are_refused(bad):
    with pytest.raises(InputError):
        Search(**{"over": "rate", "slo": SLO, "duration_s": 1, **bad})
