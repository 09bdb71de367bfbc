"""Percentiles, bounds and tests of ``spec/statistics.py`` against their definitions and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.spec import statistics

samples = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=200)
percentiles = st.sampled_from([1.0, 25.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0])


@given(samples, percentiles)
def test_percentile_is_the_smallest_sample_that_covers_its_share(values: list[float], q: float) -> None:
    ordered = np.sort(np.array(values))
    value = statistics.percentile(ordered, q)
    assert value in values
    assert np.count_nonzero(ordered <= value) >= q / 100 * len(values) - 1e-6
    smaller = ordered[ordered < value]
    assert len(smaller) < q / 100 * len(values)


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        statistics.percentile(np.array([]), 50)


@pytest.mark.parametrize(
    ("q", "over", "needed"),
    # MLPerf inference rules, appendix on early stopping, d = 0, c = 0.99.
    [
        *[(99, 0, 459), (99, 1, 662), (99, 2, 838), (99, 5, 1307), (99, 10, 2010), (99, 50, 6898)],
        *[(95, 0, 90), (95, 1, 130), (95, 5, 259), (90, 0, 44), (90, 1, 64), (90, 5, 127), (99.9, 0, 4603)],
    ],
)
def test_early_stopping_matches_the_published_table(q: float, over: int, needed: int) -> None:
    assert statistics.allowed_over_limit(needed, q) == over
    assert statistics.allowed_over_limit(needed - 1, q) == over - 1


def test_early_stopping_with_millions_of_samples_stays_near_the_mean() -> None:
    allowed = statistics.allowed_over_limit(10_000_000, 99)
    deviation = math.sqrt(10_000_000 * 0.01 * 0.99)
    assert allowed == pytest.approx(100_000 - 2.326 * deviation, abs=5)


@given(st.integers(1, 3000), st.sampled_from([50.0, 90.0, 95.0, 99.0]), st.integers(0, 2**31))
def test_upper_bound_is_never_under_its_percentile(n: int, q: float, seed: int) -> None:
    ordered = np.sort(np.random.default_rng(seed).lognormal(size=n))
    bound = statistics.early_stopping_bound(ordered, q)
    if bound is None:
        assert statistics.allowed_over_limit(n, q) < 1
    else:
        assert bound >= statistics.percentile(ordered, q)
        assert bound in ordered


def test_upper_bound_holds_in_99_of_100_runs() -> None:
    rng = np.random.default_rng(3)
    true_p99 = math.exp(2.3263478740408408)
    held = sum(
        statistics.early_stopping_bound(np.sort(rng.lognormal(size=2000)), 99) >= true_p99  # type: ignore[operator]
        for _ in range(1000)
    )
    assert held >= 975


def test_dependent_samples_raise_the_floor() -> None:
    ordered = np.arange(1.0, 1001.0)
    assert statistics.early_stopping_bound(ordered, 99) == 999.0
    assert statistics.early_stopping_bound(ordered, 99, design_effect=2.0) is None


def test_wilson_interval() -> None:
    low, high = statistics.wilson_interval(10, 100) or (0, 0)
    assert (low, high) == pytest.approx((0.05523, 0.17437), abs=1e-5)
    assert statistics.wilson_interval(0, 0) is None
    assert statistics.wilson_interval(5, 5)[1] == 1.0  # type: ignore[index]


@given(st.integers(0, 2**31))
def test_exponential_gaps_pass_and_constant_gaps_fail(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, p = statistics.ks_exponential(rng.exponential(0.1, size=300), rate=10.0)
    assert p > 1e-5  # one in a hundred thousand seeds
    _, p = statistics.ks_exponential(np.full(300, 0.1), rate=10.0)
    assert p < 1e-6
    _, p = statistics.ks_exponential(rng.exponential(0.1, size=300), rate=20.0)
    assert p < 1e-3


def test_kolmogorov_agrees_with_scipy() -> None:
    scipy = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for n in (10, 50, 500):
        gaps = rng.exponential(0.5, size=n)
        distance, p = statistics.ks_exponential(gaps, 2.0)
        oracle = scipy.kstest(gaps, scipy.expon(scale=0.5).cdf)
        assert distance == pytest.approx(oracle.statistic, abs=1e-12)
        assert p == pytest.approx(oracle.pvalue, abs=0.02)
