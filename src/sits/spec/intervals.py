"""Intervals for percentiles of samples that depend on each other: the base of the gate and the comparison.

Gaps of one request depend on each other, and requests that shared a batch share its hiccups. So the unit that is
taken as independent is a *block of consecutive requests* (about two batches long), never the single gap. Its
variance gives a design effect; the interval is then the exact binomial one for the effective sample size
(order statistics; with normal variance it would be Woodruff's, 1952). There is no random number in it: the same
two files give the same verdict on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sits.spec.columns import Samples
from sits.spec.special import binomial_quantile, student_quantile

Array = npt.NDArray[np.float64]

LEAST_BLOCKS = 20  # fewer blocks than this a run cannot give a variance worth the name


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side: its samples, and how many consecutive requests form a block."""

    samples: Samples
    block: int = 1


def block_length(requests: int, concurrency: float | None) -> int:
    """Two batches long, but never so long that fewer than 20 blocks remain."""
    wanted = max(1, round(2 * (concurrency or 1)))
    return max(1, min(wanted, requests // LEAST_BLOCKS))


class Pool:
    """The runs of one side pooled: sorted values for quantiles, blocks for variances."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = [run for run in runs if len(run.samples)]
        parts = [run.samples.values for run in self.runs]
        self.ordered = np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.ordered)

    @property
    def requests(self) -> int:
        return sum(int(np.count_nonzero(run.samples.counts)) for run in self.runs)

    def quantile(self, share: float) -> float:
        """Nearest-rank quantile, ``0 < share <= 1``."""
        n = len(self.ordered)
        return float(self.ordered[min(n - 1, max(0, math.ceil(n * share - 1e-9) - 1))])

    def mean_variance(self, terms: Sequence[Array], center: float) -> tuple[float, int]:
        """Variance of the pooled mean of ``terms`` (one array a run, one entry a value), and the blocks behind it."""
        total, blocks = 0.0, 0
        for run, values in zip(self.runs, terms):
            counts = run.samples.counts[run.samples.counts > 0].astype(np.float64)
            deviations = run.samples.sums(values) - center * counts
            starts = np.arange(0, len(deviations), run.block)
            sums = np.add.reduceat(deviations, starts)
            total += float(np.sum(sums * sums))
            blocks += len(sums)
        if blocks < 2:
            return math.inf, blocks
        return total / len(self) ** 2 * blocks / (blocks - 1), blocks

    def share_variance(self, share: float) -> tuple[float, int]:
        """Variance of the pooled share of values up to the ``share`` quantile, and the blocks behind it."""
        at = np.float32(self.quantile(share))
        terms = [(run.samples.values <= at).astype(np.float64) for run in self.runs]
        return self.mean_variance(terms, float(np.searchsorted(self.ordered, at, side="right")) / len(self))

    def effective_size(self, share: float) -> float:
        """How many independent samples the pool is worth at the ``share`` quantile; at most its real size."""
        n = len(self)
        if n == 0:
            return 0.0
        variance, blocks = self.share_variance(share)
        binomial = share * (1.0 - share)
        if not math.isfinite(variance):
            return float(min(n, blocks))
        if variance <= 0.0:
            # Every block has the same share: a step in the distribution sits here. Requests are what we can count on.
            return float(min(n, self.requests))
        return min(float(n), max(1.0, binomial / variance))

    def bounds(self, share: float, confidence: float, size: float | None = None) -> tuple[float, float]:
        """One-sided bounds of the ``share`` quantile, each at ``confidence``; infinite where n cannot tell.

        The upper one is the MLPerf early-stopping criterion: at p99 and 99% it needs 459 independent samples.
        """
        n = math.floor((self.effective_size(share) if size is None else size) + 1e-9)
        if n < 1:
            return -math.inf, math.inf
        # P[x_(k) >= quantile] = P[Binomial(n, share) <= k - 1]
        upper = binomial_quantile(confidence, n, share) + 1
        lower = binomial_quantile(1.0 - confidence, n, share)
        if lower > 0 and n < 1_000_000:
            lower = _largest_lower(n, share, confidence)
        high = math.inf if upper > n else self.quantile(upper / n)
        low = -math.inf if lower < 1 else self.quantile(lower / n)
        return low, high


def _largest_lower(n: int, share: float, confidence: float) -> int:
    """Largest k with ``P[x_(k) <= quantile] = P[Binomial(n, share) >= k] >= confidence``."""
    from sits.spec.special import binomial_cdf

    k = binomial_quantile(1.0 - confidence, n, share) + 1
    while k > 0 and 1.0 - binomial_cdf(k - 1, n, share) < confidence:
        k -= 1
    return k


def least_samples(share: float, confidence: float) -> int:
    """Independent samples needed before any upper bound of the ``share`` quantile exists."""
    return max(1, math.ceil(math.log(1.0 - confidence) / math.log(share) - 1e-9))


def run_variance(per_run: Sequence[Sequence[tuple[float, float]]], assumed: float) -> tuple[float, float]:
    """Variance between runs of a log figure, and its degrees of freedom.

    ``per_run`` holds for each side the ``(log figure, variance within the run)`` of its runs. ``assumed`` is the
    run-to-run deviation taken for granted; it weighs as much as four runs, so one lucky pair of runs cannot claim
    that there is no such noise, and with many runs the data decide. Without any pair of runs it is taken as known
    (the verdict then says that it was assumed).
    """
    prior = 4.0
    squares, freedom, within = 0.0, 0, 0.0
    for side in per_run:
        if len(side) > 1:
            center = sum(value for value, _ in side) / len(side)
            squares += sum((value - center) ** 2 for value, _ in side)
            within += sum(variance for _, variance in side) * (len(side) - 1) / len(side)
            freedom += len(side) - 1
    if freedom == 0:
        return assumed**2, math.inf
    between = max(0.0, squares - within)
    return (prior * assumed**2 + between) / (prior + freedom), prior + freedom


def combined_freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances, each with its own (Welch-Satterthwaite)."""
    total = sum(variance for variance, _ in parts)
    if total <= 0:
        return 1e9
    return total**2 / max(1e-300, sum(variance**2 / max(freedom, 1e-9) for variance, freedom in parts))


def factor(confidence: float, freedom: float) -> float:
    """How many deviations wide one side of a two-sided interval is."""
    return student_quantile(0.5 + confidence / 2, max(1.0, freedom))
