"""Intervals, ratios and verdicts: against closed forms, scipy's functions and simulation; and ``sits compare``."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sits.cli.compare_command import command
from sits.spec import special
from sits.spec.columns import Samples, read_columns
from sits.spec.compare import Ratio, figure_ratio, judge, percentile_ratio, typical_ratio
from sits.spec.intervals import Pool, Run, block_length, least_samples
from sits.spec.metrics import latency_series


@settings(max_examples=150, deadline=None)
@given(x=st.floats(0, 1), a=st.floats(0.5, 5000), b=st.floats(0.5, 5000))
def test_beta_distribution_against_scipy(x: float, a: float, b: float) -> None:
    # One ulp under 1 with a = b = 0.5 scipy is 3e-9 off: 1 - (2 / pi) sqrt(1.1e-16) is 1 - 6.7e-9.
    assert special.beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), abs=1e-9 if x < 1 - 1e-12 else 1e-8)


@settings(max_examples=100, deadline=None)
@given(p=st.floats(0.5, 0.9999), freedom=st.floats(1, 1e4))
def test_student_quantile_against_scipy(p: float, freedom: float) -> None:
    assert special.student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-6, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 20_000), p=st.floats(0.01, 0.999), c=st.floats(0.01, 0.99))
def test_binomial_quantile_against_scipy(n: int, p: float, c: float) -> None:
    k = special.binomial_quantile(c, n, p)
    assert special.binomial_cdf(k, n, p) >= c - 1e-9
    assert special.binomial_cdf(k - 1, n, p) < c + 1e-9
    assert special.binomial_cdf(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), abs=1e-9)


def test_proportion_bounds_against_scipy() -> None:
    for failed, sent in ((0, 50), (3, 480), (50, 50)):
        low, high = special.proportion_bounds(failed, sent, 0.975)
        exact = stats.binomtest(failed, sent).proportion_ci(0.95, method="exact")
        assert (low, high) == (pytest.approx(exact.low, abs=1e-9), pytest.approx(exact.high, abs=1e-9))


@pytest.mark.parametrize(
    ("q", "confidence", "least"),
    [(0.99, 0.99, 459), (0.95, 0.99, 90), (0.9, 0.99, 44), (0.999, 0.99, 4603), (0.99, 0.95, 299)],
)  # fmt: skip
def test_least_samples_are_mlperfs(q: float, confidence: float, least: int) -> None:
    assert least_samples(q, confidence) == least
    values = np.arange(1, least + 1, dtype=np.float32)
    assert math.isfinite(Pool([Run(Samples.per_request(values))]).bounds(q, confidence, float(least))[1])
    assert math.isinf(Pool([Run(Samples.per_request(values[:-1]))]).bounds(q, confidence, float(least - 1))[1])


def test_bounds_cover_the_true_percentile_as_often_as_they_say() -> None:
    rng, hits, tries = np.random.default_rng(1), 0, 400
    for _ in range(tries):
        pool = Pool([Run(Samples.per_request(rng.exponential(size=600)))])
        low, high = pool.bounds(0.95, 0.95, 600.0)
        truth = -math.log(0.05)
        hits += low <= truth <= high
    assert hits / tries >= 0.88  # two sides of 95% each, less three standard errors


def test_dependent_samples_count_for_less() -> None:
    rng = np.random.default_rng(2)
    counts = np.full(400, 20, dtype=np.int64)
    own = np.repeat(rng.normal(size=400), 20)
    alone = Samples((10 + rng.normal(size=8000)).astype(np.float32), counts)
    together = Samples((10 + own + 0.1 * rng.normal(size=8000)).astype(np.float32), counts)
    assert Pool([Run(alone)]).effective_size(0.5) > 5000
    assert 200 < Pool([Run(together)]).effective_size(0.5) < 900
    batched = np.repeat(rng.normal(size=50), 8)
    pool = Pool([Run(Samples.per_request(10 + batched), block_length(400, 8))])
    assert pool.effective_size(0.5) < 120


def run(values: Any, block: int = 1) -> Run:
    return Run(Samples.per_request(np.asarray(values)), block)


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(0.2, 5), seed=st.integers(0, 1000))
def test_scaling_one_side_scales_every_ratio(scale: float, seed: int) -> None:
    values = np.exp(np.random.default_rng(seed).normal(3, 0.3, 300))
    for ratio in (typical_ratio([run(values)], [run(values * scale)]),
                  percentile_ratio([run(values)], [run(values * scale)], 75)):  # fmt: skip
        assert ratio is not None
        assert ratio.value == pytest.approx(scale, rel=1e-4)
        assert ratio.low < scale < ratio.high
    back = typical_ratio([run(values * scale)], [run(values)])
    assert back is not None
    assert back.value == pytest.approx(1 / scale, rel=1e-4)


def test_stragglers_do_not_move_the_typical_ratio() -> None:
    rng = np.random.default_rng(3)
    values = np.exp(rng.normal(3, 0.1, 500))
    late = values.copy()
    late[rng.random(500) < 0.02] *= 50
    found = typical_ratio([run(values)], [run(late)])
    assert found is not None
    assert found.value == pytest.approx(1.0, abs=0.01)


def test_the_typical_ratio_is_scipys_hodges_lehmann_shift() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(3, 0.2, 200), rng.normal(3.1, 0.2, 150)
    found = typical_ratio([run(np.exp(a))], [run(np.exp(b))])
    assert found is not None
    shift = np.median(np.float32(b)[:, None] - np.float32(a)[None, :])
    assert math.log(found.value) == pytest.approx(shift, abs=2e-3)


def test_noise_between_runs_is_measured_when_there_are_several() -> None:
    rng = np.random.default_rng(5)

    def side(noise: float) -> list[Run]:
        return [run(np.exp(rng.normal(3, 0.05, 200) + rng.normal(0, noise))) for _ in range(6)]

    quiet = typical_ratio(side(0.0), side(0.0))
    loud = typical_ratio(side(0.08), side(0.08))
    single = typical_ratio(side(0.0)[:1], side(0.0)[:1])
    assert quiet is not None
    assert loud is not None
    assert single is not None
    assert loud.between > 10 * quiet.between
    assert single.run_noise_assumed
    assert not loud.run_noise_assumed
    assert single.between == pytest.approx(2 * 0.01**2)


def make(low: float, value: float, high: float) -> Ratio:
    return Ratio(1.0, value, value, low, high, 0.9, 1e-4, 2e-4, (500, 500), (1, 1))


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((1.04, 1.08, 1.12), "worse"),
        ((1.02, 1.08, 1.12), "too_noisy"),
        ((0.98, 1.01, 1.05), "same"),
        ((0.88, 0.92, 0.96), "better"),
        ((0.5, 1.0, 2.0), "too_noisy"),
        ((0.5, 1.0, math.inf), "too_noisy"),
    ],
)
def test_verdicts(interval: tuple[float, float, float], verdict: str) -> None:
    found = judge(make(*interval), 0.03, 0.10)
    assert found.verdict == verdict
    low, value, high = interval
    mirrored = make(1 / high if math.isfinite(high) else 0.0, 1 / value, 1 / low)
    assert judge(mirrored, 0.03, 0.10, higher_is_worse=False).verdict == verdict


@given(
    low=st.floats(0.2, 1.0), high=st.floats(1.0, 5.0), tolerance=st.floats(0.0, 0.2), higher_is_worse=st.booleans()
)
def test_a_verdict_never_calls_an_interval_around_one_worse(
    low: float, high: float, tolerance: float, higher_is_worse: bool
) -> None:
    found = judge(make(low, math.sqrt(low * high), high), tolerance, tolerance + 0.1, higher_is_worse)
    assert found.verdict in ("same", "too_noisy")


def test_too_noisy_says_what_would_settle_it_and_that_much_does() -> None:
    rng = np.random.default_rng(6)

    def verdict(requests: int) -> Any:
        a, b = (np.exp(rng.normal(3, 0.9, requests)) for _ in range(2))
        return judge(typical_ratio([run(a)], [run(b)]), 0.03, 0.10)

    first = verdict(100)
    assert first.verdict == "too_noisy"
    assert first.requests_needed is not None
    assert first.requests_needed > 1000
    settled = [verdict(2 * first.requests_needed).verdict for _ in range(3)]
    assert "same" in settled


def test_single_figures_use_the_intervals_of_the_result() -> None:
    narrow = figure_ratio([(100, 99, 101)], [(110, 109, 111)])
    bare = figure_ratio([(100, None, None)], [(110, None, None)])
    assert narrow is not None
    assert bare is not None
    assert narrow.value == bare.value == pytest.approx(1.1)
    assert narrow.high - narrow.low > bare.high - bare.low
    assert figure_ratio([(0, None, None)], [(1, None, None)]) is None


def test_columns_are_the_series_of_the_metrics(workshop: Any) -> None:
    records = workshop.records(60, failed=5)
    for index, record in enumerate(records):
        if record.ok and index % 3 == 0:  # several tokens a chunk
            record.chunk_tokens = [1 + (k % 3) for k in range(len(record.chunk_times_ns))]
            record.first_visible_ns = record.chunk_times_ns[2]
    shuffled = [records[i] for i in np.random.default_rng(0).permutation(len(records))]
    columns = read_columns(iter(shuffled))[0]
    for name, series in latency_series(records).items():
        mine = np.sort(columns.series(name).values)
        assert np.allclose(mine, series.values, rtol=1e-5, atol=1e-4), name
    assert (columns.sent, columns.failed) == (60, 5)


def test_columns_stay_small(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are turned into arrays block by block: the largest number held at once does not grow with the run."""
    from sits.spec import columns

    monkeypatch.setattr(columns, "_BLOCK", 50)
    held: list[int] = []
    real = columns._block
    monkeypatch.setattr(columns, "_block", lambda records: held.append(len(records)) or real(records))
    found = columns.read_columns(iter(workshop.records(230)))
    assert held == [50, 50, 50, 50, 30]
    assert found[0].itl.values.dtype == np.float32
    assert found[0].sent == 230


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def test_compare_shows_environment_first_then_verdicts(workshop: Any) -> None:
    workshop.run("old", seed=1)
    workshop.run("new", seed=2, shift=1.2, failed=40)
    done = invoke("old", "new", "--html", "page.html", "--json", "data.json")
    assert done.exception is None
    assert done.return_value == 0
    assert "ttft.typical         worse" in done.output
    data = json.loads(Path("data.json").read_text())
    verdicts = {row["metric"]: row["verdict"] for row in data["rows"]}
    assert verdicts["itl.p99"] == verdicts["throughput.output"] == "worse"
    assert data["errors"][0]["verdict"] == "worse"
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert not re.search(r"(src|href)=|@import|url\(", page)  # self-contained


def test_compare_of_two_machines_says_so_and_exits_3(workshop: Any) -> None:
    workshop.run("old")
    workshop.run("new", change=lambda r: r.environment.hardware.update(cpu="<b>other</b>"))
    done = invoke("old", "new", "--html", "page.html")
    assert done.return_value == 3
    assert done.output.index("What differs") < done.output.index("At ")
    assert "NOT COMPARABLE" in done.output
    assert "<b>other" not in Path("page.html").read_text()
    assert invoke("old", "new", "--allow-drift", "cpu").return_value == 0


def test_compare_pools_runs_on_each_side(workshop: Any) -> None:
    for index in range(3):
        workshop.run(f"a{index}", seed=index, requests=100)
        workshop.run(f"b{index}", seed=10 + index, requests=100)
    done = invoke("a0", "a1", "a2", "--with", "b0", "b1", "b2", "--json", "-")
    data = json.loads(done.output)
    assert data["rows"][0]["runs"] == [3, 3]
    assert data["rows"][0]["requests"] == [300, 300]


@pytest.mark.parametrize(
    "arguments",
    [["old"], ["old", "--with"], ["old", "nowhere"], ["old", "new", "--tolerance", "x"],
     ["old", "new", "--metric", "x"], ["old", "new", "--allow-drift", "weather"]],
)  # fmt: skip
def test_compare_refuses_wrong_input(workshop: Any, arguments: list[str]) -> None:
    from sits.cli.main import run as run_command

    workshop.run("old", requests=20)
    workshop.run("new", requests=20)
    assert run_command(command, "sits compare", arguments) == 2


def test_millions_of_gaps_are_looked_up_as_they_would_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    from sits.spec import compare

    rng = np.random.default_rng(7)
    values = np.exp(rng.normal(2, 0.3, 70_000)).astype(np.float32)
    other = np.sort(np.log(np.exp(rng.normal(2, 0.3, 4096))))
    quick = compare._placements(values, other, 0.05)
    monkeypatch.setattr(compare, "_TABLE", 1 << 30)
    assert np.abs(quick - compare._placements(values, other, 0.05)).max() < 2e-3
