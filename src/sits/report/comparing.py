"""Two sides, each one or several runs: every figure with its ratio, interval and verdict.

The gate's regression rule and ``sits compare`` both call :func:`compare_runs`, so they can never disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sits.report.loaded import LoadedResult
from sits.report.pairing import Difference, differences, matching_point
from sits.spec.compare import (
    CONFIDENCE,
    RUN_TO_RUN,
    Judgement,
    Ratio,
    figure_ratio,
    judge,
    percentile_ratio,
    typical_ratio,
)
from sits.spec.intervals import Run, block_length
from sits.spec.result import LoadPoint
from sits.spec.statistics import wilson_interval

SERIES = ("ttft", "itl", "tpot", "e2e", "ttft_visible")
LOWER_IS_WORSE = ("throughput.", "goodput", "attainment", "mabu.", "traffic_efficiency")
DEFAULT_METRICS = ("ttft.typical", "itl.typical", "itl.p99", "throughput.output")
ALL_METRICS = (
    "ttft.typical", "ttft.p50", "ttft.p90", "ttft.p99", "itl.typical", "itl.p50", "itl.p99", "tpot.typical",
    "tpot.p99", "e2e.typical", "e2e.p99", "throughput.output", "throughput.requests", "goodput", "tail_inflation",
    "mabu.required", "mabu.observed", "energy_per_token",
)  # fmt: skip
_LATENCY = r"(ttft|itl|tpot|e2e|ttft_visible)\.(typical|mean|max|p[0-9]{1,2}(\.[0-9]{1,3})?)"
_FIGURES = (
    r"throughput\.(output|total|requests)|tltb|tail_inflation|goodput|attainment|mabu\.(required|observed)"
    r"|traffic_efficiency|energy_per_token"
)
METRIC_PATTERN = f"^({_LATENCY}|{_FIGURES})$"
TOLERANCE, RESOLUTION, ERROR_TOLERANCE = 0.03, 0.10, 0.005


@dataclass(frozen=True, slots=True)
class Options:
    """What counts as a change."""

    tolerance: float = TOLERANCE  # a change this small is accepted
    resolution: float = RESOLUTION  # a change this large must not stay hidden
    confidence: float = CONFIDENCE
    run_to_run: float = RUN_TO_RUN


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one load point on both sides. ``ratio`` is ``None`` when there is nothing to compare."""

    point: LoadPoint
    metric: str
    unit: str
    ratio: Ratio | None
    judgement: Judgement
    higher_is_worse: bool
    reason: str = ""  # why there is no ratio
    baseline_n: int = 0
    candidate_n: int = 0

    @property
    def verdict(self) -> str:
        return self.judgement.verdict if self.ratio is not None else "no data"


@dataclass(slots=True)
class Comparison:
    """What differs around the runs, then the figures. ``invalid`` when a difference forbids the comparison."""

    baseline: list[LoadedResult]
    candidate: list[LoadedResult]
    environment: list[Difference] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    errors: list[ErrorRow] = field(default_factory=list)
    unmatched: list[LoadPoint] = field(default_factory=list)  # load points of the candidate without a partner
    options: Options = Options()

    @property
    def invalid(self) -> list[Difference]:
        return [difference for difference in self.environment if difference.breaks]


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The share of failed requests on both sides: a difference, because a ratio of zeros says nothing."""

    point: LoadPoint
    baseline: tuple[int, int]  # failed, sent
    candidate: tuple[int, int]
    difference: float
    low: float
    high: float
    verdict: str


def compare_runs(
    baseline: Sequence[LoadedResult], candidate: Sequence[LoadedResult], metrics: Sequence[str] = ALL_METRICS,
    options: Options | None = None, allow: Sequence[str] = (), skip_missing: bool = True,
) -> Comparison:  # fmt: skip
    """Compare every load point of the candidate's runs with its partner. Raises ``InputError`` on damaged records.

    ``skip_missing`` leaves out figures that neither side has (the table of ``sits compare``); the gate keeps them.
    """
    options = options or Options()
    found = Comparison(list(baseline), list(candidate), options=options)
    seen: dict[tuple[str, str, str], Difference] = {}
    first = baseline[0].result
    for loaded in [*baseline[1:], *candidate]:
        for difference in differences(first, loaded.result, list(allow)):
            seen.setdefault((difference.name, difference.baseline, difference.candidate), difference)
    found.environment = sorted(seen.values(), key=lambda difference: not difference.breaks)
    for point in candidate[0].result.points:
        old = _partners(point, baseline)
        new = _partners(point, candidate)
        if len(old) < len(baseline) or len(new) < len(candidate):
            found.unmatched.append(point)
            if not old:
                continue
        for metric in metrics:
            row = compare_metric(point, metric, old, new, options)
            if row.ratio is not None or not skip_missing:
                found.rows.append(row)
        error = _compare_errors(point, old, new)
        if error is not None:
            found.errors.append(error)
    return found


def _partners(point: LoadPoint, runs: Sequence[LoadedResult]) -> list[tuple[LoadedResult, LoadPoint]]:
    pairs = [(loaded, matching_point(point, loaded.result)) for loaded in runs]
    return [(loaded, other) for loaded, other in pairs if other is not None]


Side = Sequence[tuple[LoadedResult, LoadPoint]]


def compare_metric(point: LoadPoint, metric: str, old: Side, new: Side, options: Options) -> Row:
    """One figure; ``metric`` is ``series.typical``, ``series.pNN`` or the key of a figure."""
    worse_up = not metric.startswith(LOWER_IS_WORSE)
    name, _, statistic = metric.partition(".")
    ratio: Ratio | None = None
    reason, unit = "", "ms"
    if name in SERIES and (statistic == "typical" or statistic[:1] == "p"):
        sides = [_runs(side, name) for side in (old, new)]
        if all(side is not None for side in sides):
            a, b = sides[0] or [], sides[1] or []
            if statistic == "typical":
                ratio = typical_ratio(a, b, options.confidence, options.run_to_run)
            else:
                ratio = percentile_ratio(a, b, float(statistic[1:]), options.confidence, options.run_to_run)
            if ratio is None:
                empty = "baseline" if not any(len(run.samples) for run in a) else "candidate"
                reason = f"the {empty} has no sample of {name}"
            counts = [sum(len(run.samples) for run in side) for side in (a, b)]
            judgement = judge(ratio, options.tolerance, options.resolution, worse_up)
            return Row(point, metric, unit, ratio, judgement, worse_up, reason, *counts)
        metric_key = f"{name}.p50" if statistic == "typical" else metric
    else:
        metric_key = metric
    figures = [[side_point.metrics.get(metric_key) for _, side_point in side] for side in (old, new)]
    values: list[list[tuple[float, float | None, float | None]]] = [[], []]
    for index, side in enumerate(figures):
        for figure in side:
            if figure is None or figure.value is None or not math.isfinite(figure.value) or figure.value <= 0:
                reason = f"the {('baseline', 'candidate')[index]} has no '{metric_key}'"
                continue
            unit = figure.unit
            values[index].append((figure.value, figure.ci_low, figure.ci_high))
    if not reason:
        ratio = figure_ratio(values[0], values[1], options.confidence, options.run_to_run)
    judgement = judge(ratio, options.tolerance, options.resolution, worse_up)
    counts = [sum(figure.n for figure in side if figure is not None) for side in figures]
    return Row(point, metric, unit, ratio, judgement, worse_up, reason, *counts)


def _runs(side: Side, series: str) -> list[Run] | None:
    """The runs of a side as samples; ``None`` when one of them kept no records."""
    runs = []
    for loaded, point in side:
        columns = loaded.point_columns(point)
        if columns is None:
            return None
        samples = columns.series(series)
        runs.append(Run(samples, block_length(samples.requests, point.concurrency)))
    return runs


def _compare_errors(point: LoadPoint, old: Side, new: Side) -> ErrorRow | None:
    """Newcombe's interval (Wilson's, combined) of the difference of two proportions."""
    counts = []
    for side in (old, new):
        failed = sum(p.requests.get("error", 0) + p.requests.get("timeout", 0) for _, p in side)
        sent = failed + sum(p.requests.get("ok", 0) for _, p in side)
        if sent <= 0 or not 0 <= failed <= sent:
            return None
        counts.append((failed, sent))
    shares = [failed / sent for failed, sent in counts]
    bounds = [wilson_interval(failed, sent, CONFIDENCE) or (0.0, 1.0) for failed, sent in counts]
    delta = shares[1] - shares[0]
    low = delta - math.hypot(shares[1] - bounds[1][0], bounds[0][1] - shares[0])
    high = delta + math.hypot(bounds[1][1] - shares[1], shares[0] - bounds[0][0])
    if low > ERROR_TOLERANCE:
        verdict = "worse"
    elif high < -ERROR_TOLERANCE:
        verdict = "better"
    elif high < 2 * ERROR_TOLERANCE and low > -2 * ERROR_TOLERANCE:
        verdict = "same"
    else:
        # Both without a failure: whatever the sample size, there is no sign of a change.
        verdict = "same" if counts[1][0] == 0 and counts[0][0] == 0 else "too_noisy"
    return ErrorRow(point, counts[0], counts[1], delta, low, high, verdict)
