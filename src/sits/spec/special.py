"""Distribution functions that exact intervals need, without scipy: incomplete beta, binomial, Student's t."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function ``I_x(a, b)``; continued fraction of Lentz (Numerical Recipes 6.4)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - front * _fraction(1.0 - x, b, a) / b
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    # Convergence takes O(sqrt(max(a, b))) steps.
    for m in range(1, 200 + int(6 * math.sqrt(max(a, b)))):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-12:
            break
    return value


def binomial_cdf(k: int, n: int, p: float) -> float:
    """``P[Binomial(n, p) <= k]``."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return beta_cdf(1.0 - p, n - k, k + 1)


def binomial_quantile(probability: float, n: int, p: float) -> int:
    """Smallest k with ``P[Binomial(n, p) <= k] >= probability``."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        if binomial_cdf(middle, n, p) >= probability:
            high = middle
        else:
            low = middle
    return high


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution."""
    return _NORMAL.inv_cdf(p)


@lru_cache(maxsize=256)
def student_quantile(p: float, freedom: float) -> float:
    """Quantile of Student's t with any positive degrees of freedom, ``0.5 <= p < 1``."""
    if freedom > 1e6:
        return normal_quantile(p)
    low, high = 0.0, 2.0
    while student_cdf(high, freedom) < p and high < 1e12:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if student_cdf(middle, freedom) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_cdf(t: float, freedom: float) -> float:
    """Distribution function of Student's t."""
    tail = 0.5 * beta_cdf(freedom / (freedom + t * t), freedom / 2.0, 0.5)
    return 1.0 - tail if t >= 0 else tail


def proportion_bounds(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """Exact (Clopper-Pearson) one-sided bounds of a proportion, each at ``confidence``."""
    if n <= 0:
        return 0.0, 1.0
    return (
        0.0 if successes == 0 else _beta_quantile(1.0 - confidence, successes, n - successes + 1),
        1.0 if successes == n else _beta_quantile(confidence, successes + 1, n - successes),
    )


def _beta_quantile(p: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2
