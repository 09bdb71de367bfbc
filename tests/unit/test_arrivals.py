"""Arrival processes: right rate, right shape, one scheduler; and a check that sees when they were not kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.arrivals import PROCESSES, Arrivals, check_arrivals
from sits.errors import InputError


@pytest.mark.parametrize("seed", range(1, 21))
def test_poisson_has_the_rate_it_was_asked_for(seed: int) -> None:
    arrivals = Arrivals.parse("poisson", 10.0)
    check = check_arrivals(arrivals, arrivals.first(1000, seed))
    assert check.achieved_rate == pytest.approx(10.0, abs=3 * 10 / np.sqrt(1000))
    assert check.ks_p_value is not None
    assert check.ks_p_value > 0.01
    assert check.ok, check.detail


@settings(max_examples=30)
@given(st.sampled_from(PROCESSES), st.floats(0.1, 2000), st.integers(0, 2**31))
def test_due_times_ascend_and_repeat_for_a_seed(process: str, rate: float, seed: int) -> None:
    arrivals = Arrivals.parse(process, rate)
    first = arrivals.first(6000, seed)
    assert (np.diff(first) >= 0).all()
    assert first[0] >= 0
    assert (arrivals.first(6000, seed) == first).all()


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_passes_its_own_check(process: str) -> None:
    arrivals = Arrivals.parse(process, 50.0, ramp_seconds=10)
    passed = sum(bool(check_arrivals(arrivals, arrivals.first(800, seed)).ok) for seed in range(40))
    assert passed >= 36


@pytest.mark.parametrize("process", PROCESSES)
def test_a_wrong_rate_is_seen(process: str) -> None:
    arrivals = Arrivals.parse(process, 50.0)
    check = check_arrivals(arrivals, arrivals.first(2000, 1) * 1.4)
    assert check.ok is False
    assert "rate is off" in check.detail


def test_synchronised_workers_are_seen() -> None:
    # Ten workers that share a seed: every gap comes ten times, the rest are zero.
    source = Arrivals.parse("poisson", 1.0).first(100, 1)
    check = check_arrivals(Arrivals.parse("poisson", 10.0), np.repeat(source, 10))
    assert check.ok is False


def test_burst_is_burstier_than_poisson() -> None:
    gaps = np.diff(Arrivals.parse("burst:0.25", 10.0).first(20_000, 3))
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.1)
    assert 1 / gaps.mean() == pytest.approx(10, rel=0.06)


def test_ramp_grows_to_its_rate() -> None:
    times = Arrivals.parse("ramp", 100.0, ramp_seconds=20).first(3000, 5)
    early, late = np.count_nonzero(times < 4), np.count_nonzero((times > 22) & (times < 26))
    assert late > 3 * early
    assert late == pytest.approx(400, rel=0.2)


@pytest.mark.parametrize(
    ("process", "rate"),
    [
        ("uniform", 1.0),
        ("poisson", 0.0),
        ("poisson", -1.0),
        ("poisson", float("nan")),
        ("burst:x", 1.0),
        ("burst:-1", 1),
    ],
)
def test_bad_arrivals_are_refused(process: str, rate: float) -> None:
    with pytest.raises(InputError):
        Arrivals.parse(process, rate)


def test_few_requests_are_not_judged() -> None:
    arrivals = Arrivals.parse("poisson", 10.0)
    assert check_arrivals(arrivals, np.array([])).ok is None
    assert check_arrivals(arrivals, np.array([0.1, 0.2])).ok is None
