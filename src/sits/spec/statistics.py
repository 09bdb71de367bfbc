"""Statistics the metrics, the gate and the comparison share: exact percentiles, bounds, tests. numpy only.

One definition of a percentile everywhere: **nearest rank** (the smallest sample that at least q percent of the
samples do not exceed). It is always a value that was measured, also at n = 1, and it pools without a rule for
interpolating between two machines' samples.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EARLY_STOPPING_CONFIDENCE = 0.99


def rank(n: int, q: float) -> int:
    """0-based index of the nearest-rank ``q`` percentile (0 < q <= 100) among ``n`` sorted samples."""
    # The small subtraction keeps 0.99 * 100 = 99.00000000000001 from becoming rank 100.
    return min(n - 1, max(0, math.ceil(n * q / 100.0 - 1e-9) - 1))


def percentile(ordered: Array, q: float) -> float:
    """Nearest-rank percentile of ascending samples. Raises ``ValueError`` on an empty series."""
    if len(ordered) == 0:
        raise ValueError("percentile of an empty series")
    return float(ordered[rank(len(ordered), q)])


def allowed_over_limit(n: int, q: float, confidence: float = EARLY_STOPPING_CONFIDENCE) -> int:
    """Most samples out of ``n`` that may lie over a limit while the true ``q`` percentile is under it.

    The largest t with ``P[Binomial(n, 1 - q/100) <= t] <= 1 - confidence``; -1 when even t = 0 proves nothing.
    This is the early-stopping criterion of MLPerf's inference rules with zero tolerance.
    """
    over = 1.0 - q / 100.0
    if n <= 0 or over <= 0.0:
        return -1
    mean, deviation = n * over, math.sqrt(n * over * (1 - over))
    # Below ten deviations the mass is nothing; starting there keeps the sum short for millions of samples.
    start = max(0, math.floor(mean - 10 * deviation) - 10)
    k = np.arange(start, math.floor(mean) + 2, dtype=np.float64)
    log_first = (
        math.lgamma(n + 1)
        - math.lgamma(start + 1)
        - math.lgamma(n - start + 1)
        + start * math.log(over)
        + (n - start) * math.log1p(-over)
    )
    steps = np.log((n - k[:-1]) / (k[:-1] + 1.0)) + math.log(over) - math.log1p(-over)
    cumulative = np.cumsum(np.exp(log_first + np.concatenate(([0.0], np.cumsum(steps)))))
    return start + int(np.searchsorted(cumulative, 1.0 - confidence, side="right")) - 1


def early_stopping_bound(ordered: Array, q: float, design_effect: float = 1.0) -> float | None:
    """Upper bound of the ``q`` percentile at 99% confidence: the t-th largest sample; ``None`` under the floor.

    The floor is where t reaches 1: 662 samples for p99, 130 for p95, 64 for p90. ``design_effect`` (>= 1) says
    how many dependent samples are worth one independent one (token gaps of one request are dependent).
    """
    n = len(ordered)
    effective = int(n / max(1.0, design_effect))
    allowed = allowed_over_limit(effective, q)
    if allowed < 1:
        return None
    over = max(1, math.floor(allowed / effective * n))
    return max(float(ordered[n - over]), percentile(ordered, q))


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson score interval of a proportion; ``None`` when nothing was tried."""
    if n <= 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At 0 and n successes the bound is exact; rounding must not move it past the proportion itself.
    return (0.0 if successes == 0 else max(0.0, centre - half), 1.0 if successes == n else min(1.0, centre + half))


def kolmogorov_p_value(distance: float, n: int) -> float:
    """P-value of a one-sample Kolmogorov-Smirnov distance, with Stephens' correction for finite ``n``."""
    if n <= 0:
        return math.nan
    x = distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    if x < 0.2:
        return 1.0
    total = sum((-1) ** (k - 1) * math.exp(-2.0 * k * k * x * x) for k in range(1, 101))
    return min(1.0, max(0.0, 2.0 * total))


def ks_exponential(gaps: Array, rate: float) -> tuple[float, float]:
    """Kolmogorov-Smirnov (distance, p-value) of ``gaps`` (seconds) against an exponential of ``rate`` (1/s).

    ``rate`` must be the one that was asked for, not one estimated from the same gaps (that needs other tables).
    """
    n = len(gaps)
    if n == 0 or rate <= 0:
        return math.nan, math.nan
    cumulative = -np.expm1(-rate * np.sort(np.asarray(gaps, dtype=np.float64)))
    index = np.arange(n)
    distance = float(np.max(np.maximum(cumulative - index / n, (index + 1) / n - cumulative)))
    return distance, kolmogorov_p_value(distance, n)
