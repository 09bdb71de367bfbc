"""SPEC section 2 as pure functions: the figures of one load point from its records.

Latencies are in ms, throughput per second. A failed request never enters a latency percentile or a throughput;
it stays in the denominators of goodput, attainment and error rate. A series without a sample is ``None`` with a
reason, never 0. ``DEFINITIONS`` is written into every result, so that a reader need not know this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from sits.spec import bootstrap
from sits.spec.bootstrap import Series
from sits.spec.records import RequestRecord
from sits.spec.result import Figure
from sits.spec.slo import requests_meeting
from sits.spec.statistics import Array, early_stopping_bound, wilson_interval
from sits.spec.timeline import Timeline, Window, build_timeline, steady_window

Mode = Literal["closed", "open", "trace"]

PERCENTILES: tuple[float, ...] = (50, 90, 95, 99)

DEFINITIONS: dict[str, str] = {
    "percentile": "nearest rank: the smallest sample that at least q percent of the samples do not exceed",
    "ci": "95% bootstrap interval, resampled by whole requests; error_rate and attainment: Wilson interval",
    "upper_bound": "MLPerf early-stopping estimate: the percentile is below it with 99% confidence; null under the "
    "sample floor (p99: 662 independent samples); token gaps are deflated by their design effect",
    "ttft": "t_1 - t_due: from when the request was due, not from when a late client sent it; ms",
    "ttft_visible": "first token a reader sees (not reasoning) - t_due; ms",
    "itl": "gaps t_k - t_(k-1) pooled over successful requests; a chunk of m tokens is m gaps of 1/m; ms",
    "tpot": "(t_n - t_1) / (n - 1) per request, one sample each; n - 1 becomes n - m if the first chunk holds m; ms",
    "e2e": "t_end - t_due of successful requests; ms",
    "steady_window": "closed loop: longest span with at least 90% of the target concurrency in flight; otherwise "
    "the span in which requests came due",
    "throughput.output": "X: output tokens of successful requests that arrived in the steady window, per second",
    "throughput.total": "output tokens as above plus prompt tokens of requests whose first token arrived in it, "
    "per second",
    "throughput.requests": "successful requests that ended in the steady window, per second",
    "tltb": "itl.p99 * throughput.output / 1000: tokens in flight at the tail",
    "tail_inflation": "tltb / concurrency; 1 is perfect, it falls below 1 by the share of time spent before token 1",
    "concurrency": "requests in flight, averaged over the steady window",
    "goodput": "successful requests that meet every objective, per second of the measured window",
    "attainment": "successful requests that meet every objective / requests sent",
    "error_rate": "failed requests / requests sent; requests the harness itself cancelled count in neither",
    "energy_per_token": "energy of the measured window / output tokens of successful requests; J",
}


def tltb(l99_ms: float, tokens_per_second: float) -> float:
    """Tail-latency throughput balance: ``L99 * X / 1000``, the tokens in flight at the tail (Little's law)."""
    return l99_ms * tokens_per_second / 1000.0


def tail_inflation(tltb_value: float, concurrency: float) -> float:
    """TLTB over concurrency: 1.0 when every gap is the mean gap. Raises ``ValueError`` for concurrency <= 0."""
    if concurrency <= 0:
        raise ValueError("concurrency must be above zero")
    return tltb_value / concurrency


def energy_per_token(joules: float, output_tokens: float) -> float | None:
    """Joules per output token; ``None`` without a token."""
    return joules / output_tokens if output_tokens > 0 else None


def latency_series(records: Sequence[RequestRecord]) -> dict[str, Series]:
    """The latency series of a load point by name: ``ttft``, ``ttft_visible``, ``itl``, ``tpot``, ``e2e`` (ms)."""
    timeline = build_timeline([record for record in records if record.phase == "measure"])
    return _latency_series(timeline)


def point_metrics(
    records: Sequence[RequestRecord],
    *,
    mode: Mode = "closed",
    concurrency: float | None = None,
    slo: Mapping[str, float] | None = None,
    energy_joules: float | None = None,
    window: Window | None = None,
    seed: int = 0,
    resamples: int | None = None,
) -> dict[str, Figure]:
    """All figures of one load point; see :class:`sits.spec.result.LoadPoint` for the keys.

    ``records`` may hold warm-up requests, which are left out. ``concurrency`` is the target of a closed loop; in
    the other modes the measured average takes its place. ``window`` overrides the steady window (seconds after
    the first due time). ``resamples`` is chosen by sample size when not given.
    """
    timeline = build_timeline([record for record in records if record.phase == "measure"])
    steady = window or steady_window(timeline, concurrency if mode == "closed" else None)
    return timeline_metrics(
        timeline,
        steady,
        concurrency=concurrency if mode == "closed" else None,
        slo=slo,
        energy_joules=energy_joules,
        seed=seed,
        resamples=resamples,
    )


def timeline_metrics(
    timeline: Timeline,
    steady: Window,
    *,
    concurrency: float | None = None,
    slo: Mapping[str, float] | None = None,
    energy_joules: float | None = None,
    seed: int = 0,
    resamples: int | None = None,
) -> dict[str, Figure]:
    """:func:`point_metrics` for a timeline that is already built and a steady window already found."""
    series = _latency_series(timeline)
    tokens = timeline.tokens_within(steady)
    residence = timeline.residence_within(steady)
    first_at = timeline.due + np.nan_to_num(timeline.first_token, nan=np.inf)
    prompts = timeline.prompt_tokens * (timeline.ok & steady.holds(first_at))
    ended = (timeline.ok & steady.holds(timeline.end)).astype(np.float64)

    # One matrix product gives every bootstrap sum; ``columns`` remembers which belong to what.
    terms: list[Array] = [residence, tokens, tokens + prompts, ended]
    columns: dict[tuple[str, float], int] = {}
    for name, pooled in series.items():
        if len(pooled):
            columns[name, 0.0] = len(terms)  # 0 stands for the mean
            terms += [pooled.sums(), pooled.counts()]
            for q in PERCENTILES:
                columns[name, q] = len(terms)
                terms += [pooled.counts_up_to(pooled.percentile(q)), pooled.counts()]
    n = timeline.requests
    count = bootstrap.default_resamples(n) if resamples is None else resamples
    sums = bootstrap.resample_sums(np.stack(terms, axis=1), count, seed) if n else np.zeros((0, len(terms)))

    figures: dict[str, Figure] = {}
    for name, pooled in series.items():
        figures |= _latency_figures(name, pooled, columns, sums)
    in_flight = float(residence.sum() / steady.seconds) if steady.seconds > 0 else 0.0
    for key, column, unit in (("output", 1, "tok/s"), ("total", 2, "tok/s"), ("requests", 3, "req/s")):
        figures[f"throughput.{key}"] = _rate(terms[column], residence, sums, column, steady, in_flight, unit)
    figures["concurrency"] = (
        Figure(value=in_flight, unit="requests", n=n) if n and steady.seconds > 0 else _empty("requests")
    )
    figures |= _tail_figures(figures, series["itl"], columns, sums, concurrency or in_flight, in_flight)
    figures |= _share_figures(timeline, slo or {})
    if energy_joules is not None:
        produced = float((timeline.output_tokens * timeline.choices)[timeline.ok].sum())
        per_token = energy_per_token(energy_joules, produced)
        figures["energy_per_token"] = Figure(
            value=per_token, unit="J/token", n=int(produced), reason=None if per_token else "no token was produced"
        )
    return figures


def _latency_series(timeline: Timeline) -> dict[str, Series]:
    visible = np.where(timeline.ok, timeline.first_visible * 1000.0, np.nan)
    series = {
        "ttft": Series.per_request(timeline.ttft_ms()),
        "itl": timeline.gaps(),
        "tpot": Series.per_request(timeline.tpot_ms()),
        "e2e": Series.per_request(timeline.e2e_ms()),
    }
    if not np.all(np.isnan(visible)):
        series["ttft_visible"] = Series.per_request(visible)
    return series


def _empty(unit: str, reason: str = "no successful request gave a sample") -> Figure:
    return Figure(value=None, unit=unit, reason=reason)


def _latency_figures(
    name: str, series: Series, columns: Mapping[tuple[str, float], int], sums: Array
) -> dict[str, Figure]:
    keys = ["mean", *(f"p{q:g}" for q in PERCENTILES), "max"]
    n = len(series)
    if n == 0:
        reason = "no request produced a second token" if name in ("itl", "tpot") else None
        return {f"{name}.{key}": _empty("ms", reason or "no successful request gave a sample") for key in keys}
    unit, figures = "ms", {}
    column = columns[name, 0.0]
    mean = float(series.values.mean())
    with np.errstate(invalid="ignore", divide="ignore"):
        bounds = bootstrap.interval(sums[:, column] / sums[:, column + 1], mean)
    low, high = bounds or (None, None)
    figures[f"{name}.mean"] = Figure(value=mean, unit=unit, n=n, ci_low=low, ci_high=high)
    for q in PERCENTILES:
        column = columns[name, q]
        pair = sums[:, column : column + 2]
        value = series.percentile(q)
        # A percentile that is the largest sample has nothing above it to resample: no interval is better than a
        # point posing as one.
        known = value < series.values[-1] or series.values[0] == series.values[-1]
        samples = bootstrap.percentile_samples(series, q, pair) if known else np.empty(0)
        low, high = bootstrap.interval(samples, value) or (None, None)
        deff = bootstrap.design_effect(series, q, pair) if name == "itl" else 1.0
        figures[f"{name}.p{q:g}"] = Figure(
            value=value,
            unit=unit,
            n=n,
            ci_low=low,
            ci_high=high,
            upper_bound=early_stopping_bound(series.values, q, deff),
        )
    figures[f"{name}.max"] = Figure(value=float(series.values[-1]), unit=unit, n=n)
    return figures


def _rate(
    amount: Array, residence: Array, sums: Array, column: int, steady: Window, in_flight: float, unit: str
) -> Figure:
    """Amount per second of the steady window. Its interval holds the concurrency fixed: by Little's law the rate is
    ``in_flight * amount per second of residence``, a ratio of sums over requests."""
    total, present = float(amount.sum()), int(np.count_nonzero(amount))
    if steady.seconds <= 0 or total <= 0:
        return _empty(unit, "nothing was completed in the measured window")
    value = total / steady.seconds
    with np.errstate(invalid="ignore", divide="ignore"):
        bounds = bootstrap.interval(in_flight * sums[:, column] / sums[:, 0], value) if present > 1 else None
    low, high = bounds or (None, None)
    return Figure(value=value, unit=unit, n=present, ci_low=low, ci_high=high)


def _tail_figures(
    figures: Mapping[str, Figure],
    itl: Series,
    columns: Mapping[tuple[str, float], int],
    sums: Array,
    target: float,
    in_flight: float,
) -> dict[str, Figure]:
    rate, l99 = figures["throughput.output"], figures["itl.p99"]
    if rate.value is None or l99.value is None:
        missing = l99.reason if l99.value is None else rate.reason
        return {name: _empty("1", missing or "") for name in ("tltb", "tail_inflation")}
    value = tltb(l99.value, rate.value)
    column = columns["itl", 99]
    tail = bootstrap.percentile_samples(itl, 99, sums[:, column : column + 2])
    with np.errstate(invalid="ignore", divide="ignore"):
        samples = tail * in_flight * sums[:, 1] / sums[:, 0] / 1000.0
    low, high = bootstrap.interval(samples, value) or (None, None)
    result = {"tltb": Figure(value=value, unit="tokens", n=l99.n, ci_low=low, ci_high=high)}
    if target <= 0:
        return result | {"tail_inflation": _empty("1", "the concurrency is not known")}
    result["tail_inflation"] = Figure(
        value=tail_inflation(value, target),
        unit="1",
        n=l99.n,
        ci_low=None if low is None else low / target,
        ci_high=None if high is None else high / target,
    )
    return result


def _share_figures(timeline: Timeline, slo: Mapping[str, float]) -> dict[str, Figure]:
    sent = int(timeline.counted.sum())
    failed = int((timeline.counted & ~timeline.ok).sum())
    bounds = wilson_interval(failed, sent)
    figures = {
        "error_rate": Figure(value=failed / sent, unit="1", n=sent, ci_low=bounds[0], ci_high=bounds[1])
        if bounds
        else _empty("1", "no request was sent")
    }
    if not slo:
        return figures
    met = int(requests_meeting(timeline, slo).sum())
    seconds = timeline.span.seconds
    share = wilson_interval(met, sent)
    if share is None or seconds <= 0:
        return figures | {"goodput": _empty("req/s", "no request was sent"), "attainment": _empty("1")}
    figures["attainment"] = Figure(value=met / sent, unit="1", n=sent, ci_low=share[0], ci_high=share[1])
    scale = sent / seconds
    figures["goodput"] = Figure(
        value=met / seconds, unit="req/s", n=sent, ci_low=share[0] * scale, ci_high=share[1] * scale
    )
    return figures
