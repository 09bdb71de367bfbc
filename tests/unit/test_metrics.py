"""The figures of a load point against hand-computed values and properties that must always hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.spec import bootstrap, metrics, slo
from sits.spec.convergence import loss_convergence, settled, timing_convergence
from sits.spec.records import RequestRecord
from sits.spec.timeline import Window, build_timeline, chunk_token_counts, steady_window

MS = 1_000_000


def request(
    due_ms: float = 0.0,
    chunks_ms: list[float] | None = None,
    *,
    status: str = "ok",
    tokens: list[int] | None = None,
    end_ms: float | None = None,
    **more: object,
) -> RequestRecord:
    chunks = chunks_ms or []
    end = end_ms if end_ms is not None else (chunks[-1] if chunks else 0.0)
    return RequestRecord(
        request_id="r",
        t_due=round(due_ms * MS),
        t_sent=round(due_ms * MS),
        t_end=round(due_ms * MS) + round(end * MS),
        status=status,
        chunk_times_ns=[round(t * MS) for t in chunks],
        chunk_tokens=tokens,
        output_tokens=sum(tokens) if tokens else len(chunks),
        **more,  # type: ignore[arg-type]
    )


def closed_loop(concurrency: int, rounds: int, tokens: int, gap_ms: float, ttft_ms: float) -> list[RequestRecord]:
    """Workers that each send their next request the moment the last one ends."""
    length = ttft_ms + (tokens - 1) * gap_ms
    chunks = [ttft_ms + k * gap_ms for k in range(tokens)]
    return [request(r * length, chunks) for r in range(rounds) for _ in range(concurrency)]


gap_lists = st.lists(st.floats(0.5, 500.0), min_size=1, max_size=30)
runs = st.lists(st.tuples(st.floats(0, 1000), gap_lists), min_size=1, max_size=12)


def records_of(run: list[tuple[float, list[float]]], scale: float = 1.0) -> list[RequestRecord]:
    return [request(due * scale, list(np.cumsum(gaps) * scale)) for due, gaps in run]


def value(figures: dict, key: str) -> float:
    assert figures[key].value is not None, f"{key}: {figures[key].reason}"
    return figures[key].value


@pytest.mark.parametrize(("l99", "rate", "expected"), [(12.3, 1842, 22.7), (48.6, 3120, 151.6)])
def test_tltb_of_the_article(l99: float, rate: float, expected: float) -> None:
    assert round(metrics.tltb(l99, rate), 1) == expected


def test_tail_inflation_is_one_for_constant_gaps() -> None:
    figures = metrics.point_metrics(closed_loop(8, 5, 20, gap_ms=10, ttft_ms=10), concurrency=8)
    assert value(figures, "itl.p99") == pytest.approx(10)
    assert value(figures, "throughput.output") == pytest.approx(800, rel=0.01)
    assert value(figures, "tltb") == pytest.approx(8, rel=0.01)
    assert value(figures, "tail_inflation") == pytest.approx(1, rel=0.01)
    with pytest.raises(ValueError, match="above zero"):
        metrics.tail_inflation(1.0, 0)


def test_a_slow_tail_inflates() -> None:
    records = closed_loop(4, 10, 20, gap_ms=10, ttft_ms=10)
    for record in records[::2]:  # one gap in forty is ten times as long
        for k in range(10, 20):
            record.chunk_times_ns[k] += 90 * MS
    figures = metrics.point_metrics(records, concurrency=4)
    assert value(figures, "itl.p50") == pytest.approx(10)
    assert value(figures, "itl.p99") == pytest.approx(100)
    assert value(figures, "tail_inflation") > 5


def test_ttft_counts_from_the_due_time() -> None:
    late = request(100, [50, 60])
    late.t_sent += 30 * MS
    assert value(metrics.point_metrics([late]), "ttft.p50") == pytest.approx(50)


def test_pooled_percentiles_are_of_gaps_not_of_request_means() -> None:
    steady = request(0, [float(10 * k) for k in range(1, 100)])
    stalled = request(0, [10.0, 20.0, 1020.0])
    figures = metrics.point_metrics([steady, stalled])
    assert figures["itl.p99"].n == 100
    assert value(figures, "itl.p99") == pytest.approx(10)
    assert value(figures, "itl.max") == pytest.approx(1000)
    assert value(figures, "tpot.p99") == pytest.approx(505)


def test_one_token_has_a_ttft_but_no_gap() -> None:
    figures = metrics.point_metrics([request(0, [25.0])], concurrency=1)
    assert value(figures, "ttft.p50") == pytest.approx(25)
    for key in ("itl.p99", "tpot.mean", "tltb", "tail_inflation"):
        assert figures[key].value is None
        assert figures[key].reason


def test_nothing_is_null_not_zero() -> None:
    for records in ([], [request(0, [], status="error", end_ms=5)]):
        figures = metrics.point_metrics(records, concurrency=1, slo={"ttft_ms": 100.0})
        for key in ("ttft.p50", "itl.mean", "e2e.p99", "throughput.output", "tltb"):
            assert figures[key].value is None, key
            assert figures[key].reason, key
    assert value(figures, "error_rate") == 1.0
    assert value(figures, "goodput") == 0.0


def test_a_chunk_of_several_tokens_is_that_many_gaps() -> None:
    bundled = request(0, [20.0, 40.0, 60.0], tokens=[1, 4, 4])
    figures = metrics.point_metrics([bundled])
    assert figures["itl.mean"].n == 8
    assert value(figures, "itl.p99") == pytest.approx(5)
    assert value(figures, "tpot.mean") == pytest.approx(5)
    assert build_timeline([bundled]).tokens_per_chunk() == pytest.approx(3)


def test_tokens_inside_the_first_chunk_do_not_shorten_tpot() -> None:
    # 32 tokens, 4 a chunk, 5 ms each: dividing by 31 would give 4.5 ms.
    chunks = [20.0 * (k + 1) for k in range(8)]
    figures = metrics.point_metrics([request(0, chunks, tokens=[4] * 8)])
    assert value(figures, "tpot.mean") == pytest.approx(5)
    assert value(figures, "itl.mean") == pytest.approx(5)


@pytest.mark.parametrize(
    ("chunks", "total", "expected"),
    [
        (8, 32, [4] * 8),  # only usage told the count
        (32, 33, None),  # the invisible end-of-sequence token
        (32, 32, None),
        (0, 0, None),
        (4, 2, [0, 1, 0, 1]),  # pieces of characters
    ],
)
def test_tokens_per_chunk_where_only_the_total_is_known(chunks: int, total: int, expected: list[int] | None) -> None:
    record = request(0, [float(k + 1) for k in range(chunks)])
    record.output_tokens = total
    assert chunk_token_counts(record) == expected


@given(st.integers(1, 60), st.integers(1, 300))
def test_spread_tokens_add_up(chunks: int, total: int) -> None:
    record = request(0, [float(k + 1) for k in range(chunks)])
    record.output_tokens = total
    counts = chunk_token_counts(record)
    assert counts is None or sum(counts) == total


@settings(max_examples=60)
@given(runs, st.integers(0, 1000))
def test_failures_improve_nothing(run: list[tuple[float, list[float]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    good = records_of(run)
    objectives = {"ttft_ms": 200.0, "itl_ms": 200.0}
    window = build_timeline(good).span
    before = metrics.point_metrics(good, slo=objectives, window=window, resamples=0)
    failed = [
        request(due, list(np.cumsum(gaps[: rng.integers(0, len(gaps) + 1)])), status=rng.choice(["error", "timeout"]))
        for due, gaps in run
    ]
    after = metrics.point_metrics(good + failed, slo=objectives, window=window, resamples=0)
    for key, figure in before.items():
        if key.split(".")[0] in ("ttft", "itl", "tpot", "e2e", "throughput", "tltb"):
            assert after[key].value == figure.value, key
    assert after["error_rate"].value == pytest.approx(0.5)
    assert value(after, "goodput") <= value(before, "goodput") + 1e-9
    assert value(after, "attainment") == pytest.approx(value(before, "attainment") / 2)


def test_requests_the_harness_cancelled_count_nowhere() -> None:
    figures = metrics.point_metrics([request(0, [10, 20]), request(0, [10], status="cancelled", end_ms=15)])
    assert value(figures, "error_rate") == 0.0
    assert figures["error_rate"].n == 1
    assert figures["ttft.p50"].n == 1


@settings(max_examples=60)
@given(runs, st.floats(0.1, 10.0))
def test_time_scales_through(run: list[tuple[float, list[float]]], scale: float) -> None:
    plain = metrics.point_metrics(records_of(run), resamples=50)
    scaled = metrics.point_metrics(records_of(run, scale), resamples=50)
    for key, figure in plain.items():
        if figure.value is None or scaled[key].value is None:
            assert (figure.value is None) == (scaled[key].value is None), key
            continue
        power = {"ms": 1, "tok/s": -1, "req/s": -1}.get(figure.unit, 0)
        if key.startswith("throughput") or key in ("tltb", "tail_inflation", "concurrency"):
            continue  # the bridge over short dips is partly in seconds, so the window may differ
        assert scaled[key].value == pytest.approx(figure.value * scale**power, rel=1e-3, abs=1e-5), key


@settings(max_examples=60)
@given(runs, st.integers(0, 1000))
def test_every_interval_holds_its_value_and_every_bound_its_percentile(
    run: list[tuple[float, list[float]]], seed: int
) -> None:
    figures = metrics.point_metrics(records_of(run), slo={"ttft_ms": 100.0}, seed=seed, resamples=100)
    for key, figure in figures.items():
        if figure.value is None:
            assert figure.reason, key
            continue
        assert math.isfinite(figure.value), key
        if figure.ci_low is not None and figure.ci_high is not None:
            assert figure.ci_low <= figure.value <= figure.ci_high, key
        if figure.upper_bound is not None:
            assert figure.upper_bound >= figure.value, key
    for name in ("ttft", "itl", "tpot", "e2e"):
        steps = [figures[f"{name}.{k}"].value for k in ("p50", "p90", "p95", "p99", "max")]
        assert steps == sorted(steps, key=lambda v: -1 if v is None else v), name


@settings(max_examples=40)
@given(runs, st.randoms())
def test_the_order_of_records_does_not_matter(run: list[tuple[float, list[float]]], random: object) -> None:
    records = records_of(run)
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b = (metrics.point_metrics(r, resamples=0) for r in (records, shuffled))
    assert {k: f.value for k, f in a.items()} == pytest.approx({k: f.value for k, f in b.items()})


def test_warm_up_is_left_out() -> None:
    cold = request(0, [5000.0, 6000.0], phase="warmup")
    figures = metrics.point_metrics([cold, request(7000, [10.0, 20.0])])
    assert value(figures, "ttft.max") == pytest.approx(10)
    assert figures["error_rate"].n == 1


def test_steady_window_drops_ramp_and_drain_and_bridges_hand_overs() -> None:
    records = [request(100 * w, [float(k) for k in range(10, 3000 - 100 * w, 10)]) for w in range(4)]
    records += [request(3000.5, [float(k) for k in range(10, 2000 + 500 * w, 10)]) for w in range(4)]
    window = steady_window(build_timeline(records), 4)
    assert window.steady
    assert (window.start, window.end) == pytest.approx((0.3, 4.99), abs=0.02)


def test_a_load_never_reached_has_no_steady_window() -> None:
    window = steady_window(build_timeline([request(0, [10.0, 1000.0])]), 4)
    assert not window.steady
    assert (window.start, window.end) == (0.0, 1.0)


def test_throughput_counts_only_tokens_inside_the_window() -> None:
    record = request(0, [float(k) for k in range(100, 1100, 100)])
    figures = metrics.point_metrics([record], window=Window(0.05, 0.55))
    assert value(figures, "throughput.output") == pytest.approx(10)


def test_goodput_needs_every_objective() -> None:
    fast, late = request(0, [10, 20, 30]), request(0, [500, 510, 520])
    stalled = request(0, [10, 20, 320], end_ms=1000)
    objectives = slo.parse_slo("ttft=100ms,itl=0.2s")
    figures = metrics.point_metrics([fast, late, stalled], slo=objectives)
    assert value(figures, "goodput") == pytest.approx(1.0)
    assert value(figures, "attainment") == pytest.approx(1 / 3)


def test_energy_per_token() -> None:
    figures = metrics.point_metrics([request(0, [10, 20, 30, 40])], energy_joules=10)
    assert value(figures, "energy_per_token") == 2.5
    assert metrics.energy_per_token(5.0, 0) is None


def test_visible_tokens_are_a_series_of_their_own() -> None:
    figures = metrics.point_metrics([request(0, [10, 20, 30], first_visible_ns=30 * MS)])
    assert value(figures, "ttft.p50") == pytest.approx(10)
    assert value(figures, "ttft_visible.p50") == pytest.approx(30)


def test_every_figure_has_a_definition() -> None:
    figures = metrics.point_metrics([request(0, [10, 20], first_visible_ns=1)], slo={"ttft_ms": 1}, energy_joules=1)
    for key in figures:
        assert key in metrics.DEFINITIONS or key.split(".")[0] in metrics.DEFINITIONS, key


def heavy_tailed(requests: int, seed: int, shift: float = 1.0) -> bootstrap.Series:
    """Gaps with a level per request (dependence) and a heavy tail."""
    rng = np.random.default_rng(seed)
    level = rng.lognormal(0, 0.2, requests)
    gaps = shift * 10 * level[:, None] * rng.lognormal(0, 0.3, (requests, 40))
    return bootstrap.Series.pooled(gaps.ravel(), np.repeat(np.arange(requests), 40), requests)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth = heavy_tailed(20_000, 99)
    for q in (50, 99):
        target, hits = truth.percentile(q), 0
        for seed in range(100):
            series = heavy_tailed(200, seed)
            sums = bootstrap.resample_sums(bootstrap.percentile_terms(series, q), 300, seed)
            low, high = bootstrap.interval(bootstrap.percentile_samples(series, q, sums), series.percentile(q))  # type: ignore[misc]
            hits += low <= target <= high
        assert hits >= 87, f"p{q}: {hits} of 100"


def test_convergence_of_the_loss() -> None:
    assert loss_convergence([2.0, 2.0005, 2.001]).status == "converged"
    assert loss_convergence([2.0, 2.001, 2.002]).status == "not_converged"
    assert loss_convergence([0.5, 0.5, 0.5012]).status == "not_converged"  # 0.24% though under 0.0015
    assert loss_convergence([2.0, 2.0]).status == "not_checked"


def test_convergence_of_timing_looks_at_the_last_rounds() -> None:
    assert timing_convergence("itl.p50", [50.0, 20.0, 20.1, 20.2], 0.05).status == "converged"
    assert timing_convergence("itl.p50", [20.0, 20.0, 20.0, 30.0], 0.05).status == "not_converged"


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=10), st.floats(0.001, 0.5))
def test_a_drift_beyond_the_tolerance_never_settles(values: list[float], tolerance: float) -> None:
    last = values[-3:]
    drifted = max(last) - min(last) > tolerance * min(last)
    assert settled(values, absolute=None, relative=tolerance) == (not drifted)
