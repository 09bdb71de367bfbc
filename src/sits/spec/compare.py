"""Is a candidate slower than its baseline? Ratios with intervals, and the verdict on them.

Three estimators share one shape, :class:`Ratio` (candidate / baseline):

* :func:`percentile_ratio`: two order-statistic intervals (:mod:`sits.spec.intervals`) put together by MOVER (Zou and
  Donner, 2008), which keeps their asymmetry.
* :func:`typical_ratio`: the Hodges-Lehmann shift of the logarithms, by inverting the Mann-Whitney test; the sharpest
  answer to "is everything a little slower?", and stragglers do not move it.
* :func:`figure_ratio`: single figures of runs (throughput, energy) with the intervals the result gives them.

Noise between runs is added to each: measured when a side has several runs, else assumed and said so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sits.spec.intervals import Pool, Run, combined_freedom, factor, run_variance
from sits.spec.special import normal_quantile

Verdict = Literal["better", "worse", "same", "too_noisy"]

CONFIDENCE = 0.90  # two-sided, so that each direction is judged at 95%
RUN_TO_RUN = 0.01  # relative deviation between runs of the same build that is assumed until it is measured
_GRID = 4096
_TABLE = 1 << 16
_LEAST = 1e-9  # ms; a gap of zero (two tokens in one read) has no logarithm


@dataclass(frozen=True, slots=True)
class Ratio:
    """``candidate / baseline`` with a two-sided interval. Variances are of the logarithm."""

    baseline: float
    candidate: float
    value: float
    low: float
    high: float
    confidence: float
    within: float  # variance from the samples of the runs
    between: float  # variance from the noise between runs
    requests: tuple[int, int] = (0, 0)  # baseline, candidate
    runs: tuple[int, int] = (1, 1)

    @property
    def run_noise_assumed(self) -> bool:
        return max(self.runs) < 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and, when it is ``too_noisy``, what would settle it (for each side)."""

    verdict: Verdict
    requests_needed: int | None = None
    runs_needed: int | None = None


def percentile_ratio(
    baseline: Sequence[Run], candidate: Sequence[Run], q: float, confidence: float = CONFIDENCE,
    run_to_run: float = RUN_TO_RUN,
) -> Ratio | None:  # fmt: skip
    """Ratio of the pooled ``q`` percentiles (0 < q < 100). ``None`` without samples or with a percentile of 0."""
    share = q / 100.0
    pools = [Pool(baseline), Pool(candidate)]
    if any(len(pool) == 0 or pool.quantile(share) <= 0 for pool in pools):
        return None
    logs, lows, highs, within = [], [], [], 0.0
    for pool in pools:
        size = pool.effective_size(share)
        low, high = pool.bounds(share, 0.5 + confidence / 2, size)
        logs.append(math.log(pool.quantile(share)))
        lows.append(math.log(low) if low > 0 else -math.inf)
        highs.append(math.log(high) if math.isfinite(high) else math.inf)
        within += _log_variance(pool, share, size)
    between, freedom = _between(pools, share, run_to_run)
    runs = (len(pools[0].runs), len(pools[1].runs))
    between *= 1.0 / runs[0] + 1.0 / runs[1]
    reach = factor(confidence, combined_freedom([(between, freedom), (within, 60.0)])) ** 2 * between
    value = logs[1] - logs[0]
    low = value - math.sqrt((logs[1] - lows[1]) ** 2 + (highs[0] - logs[0]) ** 2 + reach)
    high = value + math.sqrt((highs[1] - logs[1]) ** 2 + (logs[0] - lows[0]) ** 2 + reach)
    return _ratio(logs, low, high, confidence, within, between, (pools[0].requests, pools[1].requests), runs)


def typical_ratio(
    baseline: Sequence[Run], candidate: Sequence[Run], confidence: float = CONFIDENCE, run_to_run: float = RUN_TO_RUN
) -> Ratio | None:
    """Shift of the whole distribution as a ratio (Hodges-Lehmann on logarithms). ``None`` without samples.

    ``baseline`` and ``candidate`` of the result are the medians; ``value`` is the shift, not their quotient.
    """
    pools = [Pool(baseline), Pool(candidate)]
    if any(len(pool) == 0 for pool in pools):
        return None
    old, new = (_grid(pool) for pool in pools)
    shift = _shift_where(old, new, 0.5)
    variance, blocks = 0.0, 0
    for pool, other, offset in ((pools[1], old, -shift), (pools[0], new, shift)):
        placements = [_placements(run.samples.values, other, offset) for run in pool.runs]
        center = float(np.concatenate(placements).mean())
        part, count = pool.mean_variance(placements, center)
        variance += part
        blocks += count
    if not math.isfinite(variance):
        return None
    between, freedom = _between(pools, 0.5, run_to_run)
    runs = (len(pools[0].runs), len(pools[1].runs))
    between *= 1.0 / runs[0] + 1.0 / runs[1]
    reach = factor(confidence, max(1, blocks - 2)) * math.sqrt(variance)
    low, high = _shift_where(old, new, 0.5 - reach), _shift_where(old, new, 0.5 + reach)
    deviation = (high - low) / 2 / factor(confidence, max(1, blocks - 2))
    within = deviation**2
    extra = factor(confidence, combined_freedom([(between, freedom), (within, max(1, blocks - 2))])) ** 2 * between
    low = shift - math.sqrt((shift - low) ** 2 + extra)
    high = shift + math.sqrt((high - shift) ** 2 + extra)
    base = math.log(max(_LEAST, pools[0].quantile(0.5)))
    found = _ratio(
        [base, base + shift], low, high, confidence, within, between, (pools[0].requests, pools[1].requests), runs
    )
    return replace(found, candidate=pools[1].quantile(0.5))


def figure_ratio(
    baseline: Sequence[tuple[float, float | None, float | None]],
    candidate: Sequence[tuple[float, float | None, float | None]],
    confidence: float = CONFIDENCE,
    run_to_run: float = RUN_TO_RUN,
) -> Ratio | None:
    """Ratio of a figure of whole runs, each ``(value, ci_low, ci_high)`` with a 95% interval or ``None``s."""
    sides: list[list[tuple[float, float]]] = []
    for side in (baseline, candidate):
        rows = []
        for value, low, high in side:
            if not (value > 0 and math.isfinite(value)):
                return None
            spread = 0.0
            if low is not None and high is not None and 0 < low <= high and math.isfinite(high):
                spread = (math.log(high) - math.log(low)) / 2 / normal_quantile(0.975)
            rows.append((math.log(value), spread**2))
        if not rows:
            return None
        sides.append(rows)
    logs = [sum(value for value, _ in rows) / len(rows) for rows in sides]
    within = sum(sum(variance for _, variance in rows) / len(rows) ** 2 for rows in sides)
    between, freedom = run_variance(sides, run_to_run)
    runs = (len(sides[0]), len(sides[1]))
    between *= 1.0 / runs[0] + 1.0 / runs[1]
    reach = factor(confidence, combined_freedom([(between, freedom), (within, 60.0)])) * math.sqrt(within + between)
    shift = logs[1] - logs[0]
    return _ratio(logs, shift - reach, shift + reach, confidence, within, between, (0, 0), runs)


def judge(ratio: Ratio | None, tolerance: float, resolution: float, higher_is_worse: bool = True) -> Judgement:
    """The verdict on a ratio.

    ``worse`` only when the whole interval lies beyond the tolerance, ``better`` likewise on the other side. ``same``
    when the interval rules out a change of ``resolution`` in either direction: what is left undecided is smaller than
    anything the gate is asked to find. Else ``too_noisy``, with the requests or runs a side that would settle it.
    """
    if ratio is None:
        return Judgement("too_noisy")
    low, high = ratio.low, ratio.high
    if not higher_is_worse:
        low, high = (1.0 / high if high > 0 else 0.0), (1.0 / low if low > 0 else math.inf)
    if low > 1.0 + tolerance:
        return Judgement("worse")
    if high < 1.0 / (1.0 + tolerance):
        return Judgement("better")
    if high < 1.0 + resolution and low > 1.0 / (1.0 + resolution):
        return Judgement("same")
    return Judgement("too_noisy", *_needed(ratio, tolerance, resolution, higher_is_worse))


def _needed(
    ratio: Ratio, tolerance: float, resolution: float, higher_is_worse: bool
) -> tuple[int | None, int | None]:
    """Requests and runs a side after which the interval, if the ratio stays, would allow a verdict."""
    shift = math.log(ratio.value) if higher_is_worse else -math.log(ratio.value)
    near, far = math.log1p(tolerance), math.log1p(resolution)
    room = max(far - abs(shift), abs(shift) - near)  # the wider way out: "same" or a proven change
    room = max(room, (far - near) / 4)
    z = normal_quantile(0.5 + ratio.confidence / 2)
    target = (room / z) ** 2
    runs = max(ratio.runs)
    requests: int | None = None
    runs_needed: int | None = None
    within = ratio.within if math.isfinite(ratio.within) else target * 4
    if ratio.between > target / 2:
        runs_needed = max(runs + 1, math.ceil(runs * ratio.between / (target / 2)))
    if within > 0 and max(ratio.requests) > 0:
        left = max(target / 2, target - ratio.between)
        grow = within / left
        if grow > 1.0:
            requests = math.ceil(max(ratio.requests) * grow / 50) * 50
    return requests, runs_needed


def _ratio(
    logs: list[float], low: float, high: float, confidence: float, within: float, between: float,
    requests: tuple[int, int], runs: tuple[int, int],
) -> Ratio:  # fmt: skip
    def power(value: float) -> float:
        return math.inf if value > 700 else math.exp(value)

    return Ratio(
        baseline=power(logs[0]), candidate=power(logs[1]), value=power(logs[1] - logs[0]), low=power(low),
        high=power(high), confidence=confidence, within=within, between=between, requests=requests, runs=runs,
    )  # fmt: skip


def _log_variance(pool: Pool, share: float, size: float) -> float:
    """Variance of the log of a quantile, from the 68% order-statistic interval; infinite where there is none."""
    low, high = pool.bounds(share, 0.8413, size)
    if not (low > 0 and math.isfinite(high)):
        return math.inf
    return ((math.log(high) - math.log(low)) / 2) ** 2


def _between(pools: Sequence[Pool], share: float, assumed: float) -> tuple[float, float]:
    """Variance between runs, from the figure itself where each run is long enough for it, else from the median."""
    rows = []
    for pool in pools:
        side = []
        for run in pool.runs if len(pool.runs) > 1 else []:
            alone = Pool([run])
            at = share if alone.effective_size(share) * (1.0 - share) >= 5 else 0.5
            value = max(_LEAST, alone.quantile(at))
            variance = _log_variance(alone, at, alone.effective_size(at))
            side.append((math.log(value), variance if math.isfinite(variance) else 0.0))
        rows.append(side)
    return run_variance(rows, assumed)


def _grid(pool: Pool) -> np.ndarray:
    """Logarithms of the pool thinned to at most 4096 evenly spaced order statistics, ascending."""
    values = pool.ordered
    if len(values) > _GRID:
        values = values[((np.arange(_GRID) + 0.5) / _GRID * len(values)).astype(np.int64)]
    return np.log(np.maximum(values.astype(np.float64), _LEAST))


def _superiority(old: np.ndarray, new: np.ndarray, shift: float) -> float:
    """``P[new - shift > old] + P[equal] / 2`` of two ascending arrays."""
    moved = new - shift
    below = np.searchsorted(old, moved, side="left") + np.searchsorted(old, moved, side="right")
    return float(below.mean()) / (2 * len(old))


def _shift_where(old: np.ndarray, new: np.ndarray, level: float) -> float:
    """The shift that makes the candidate superior with probability ``1 - level``: falls as the shift grows."""
    low, high = float(new[0] - old[-1]) - 1e-6, float(new[-1] - old[0]) + 1e-6
    target = 1.0 - level
    if target >= 1.0 or target <= 0.0:
        return -math.inf if target >= 1.0 else math.inf
    for _ in range(50):
        middle = (low + high) / 2
        if _superiority(old, new, middle) > target:
            low = middle
        else:
            high = middle
        if high - low < 1e-9:
            break
    return (low + high) / 2


def _placements(values: np.ndarray, other: np.ndarray, offset: float) -> np.ndarray:
    """For each value, moved by ``offset`` in logs, the share of ``other`` below it (ties count half)."""
    if len(values) > _TABLE:
        # Millions of gaps: look them up in a table with even steps of the logarithm instead of searching.
        quick = np.log(np.maximum(values, np.float32(_LEAST)))
        start, end = float(quick.min()), float(quick.max())
        step = max((end - start) / (_TABLE - 1), 1e-12)
        table = _placements(np.exp(start + step * np.arange(_TABLE)), other, offset)
        return table[((quick - np.float32(start)) * np.float32(1.0 / step) + np.float32(0.5)).astype(np.int32)]
    logs = np.log(np.maximum(values.astype(np.float64), _LEAST)) + offset
    below = np.searchsorted(other, logs, side="left") + np.searchsorted(other, logs, side="right")
    return below / (2.0 * len(other))
