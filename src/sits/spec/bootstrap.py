"""Bootstrap intervals by resampling whole requests, fast enough for 100,000 of them.

Token gaps of one request depend on each other, so the unit drawn is the request (a cluster), never the gap.
Everything a figure needs is first written as a sum over requests; a resample is then one row of a matrix
product ``weights[resamples, requests] @ terms[requests, k]``, and no token is touched again.

A percentile is not a sum, but its cumulative share is: for the percentile x_q of the pooled series the share
``F*(x_q)`` of a resample is a ratio of sums, and ``x* = Q(2q - F*(x_q))`` with Q the empirical quantile function
(Bahadur's representation; the interval is Woodruff's, 1952, with the bootstrap in place of a normal variance).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sits.spec.statistics import Array, rank

Index = npt.NDArray[np.int64]

CONFIDENCE = 0.95
_CHUNK_CELLS = 2_000_000  # weights held at a time: 16 MB


@dataclass(frozen=True, slots=True)
class Series:
    """Samples pooled over requests: ascending ``values[n]`` and the request each came from, ``owner[n]``."""

    values: Array
    owner: Index
    requests: int

    @classmethod
    def pooled(cls, values: npt.ArrayLike, owner: npt.ArrayLike, requests: int) -> Series:
        """Sort samples with their owners. ``owner[i]`` is in ``range(requests)``."""
        raw, who = np.asarray(values, dtype=np.float64), np.asarray(owner, dtype=np.int64)
        order = np.argsort(raw, kind="stable")
        return cls(raw[order], who[order], requests)

    @classmethod
    def per_request(cls, values: npt.ArrayLike) -> Series:
        """One sample a request; NaN means the request has none."""
        raw = np.asarray(values, dtype=np.float64)
        present = np.flatnonzero(~np.isnan(raw))
        return cls.pooled(raw[present], present, len(raw))

    def __len__(self) -> int:
        return len(self.values)

    def percentile(self, q: float) -> float:
        """Nearest-rank percentile of all samples."""
        return float(self.values[rank(len(self.values), q)])

    def counts(self) -> Array:
        """Samples of each request, ``[requests]``."""
        return np.bincount(self.owner, minlength=self.requests).astype(np.float64)

    def sums(self) -> Array:
        """Sum of the samples of each request, ``[requests]``."""
        return np.bincount(self.owner, weights=self.values, minlength=self.requests).astype(np.float64)

    def counts_up_to(self, value: float) -> Array:
        """Samples of each request that do not exceed ``value``, ``[requests]``."""
        end = int(np.searchsorted(self.values, value, side="right"))
        return np.bincount(self.owner[:end], minlength=self.requests).astype(np.float64)


def default_resamples(requests: int) -> int:
    """Enough resamples for a 95% interval, fewer when a huge sample makes each of them dear."""
    return int(np.clip(40_000_000 // max(1, requests), 300, 1000))


def resample_sums(terms: Array, resamples: int, seed: int) -> Array:
    """Bootstrap sums: ``terms[requests, k]`` -> ``[resamples, k]``, drawing requests with replacement."""
    requests = terms.shape[0]
    out = np.empty((resamples, terms.shape[1]))
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK_CELLS // max(1, requests))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        draws = rng.integers(0, requests, size=(rows, requests))
        draws += np.arange(rows)[:, None] * requests
        weights = np.bincount(draws.ravel(), minlength=rows * requests).reshape(rows, requests)
        out[start : start + rows] = weights.astype(np.float64) @ terms
    return out


def interval(samples: Array, value: float) -> tuple[float, float] | None:
    """95% percentile interval of bootstrap ``samples``, widened where needed to hold ``value`` itself."""
    usable = samples[np.isfinite(samples)]
    if len(usable) < 20:
        return None
    tail = (1.0 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(usable, [tail, 100 - tail])
    return min(float(low), value), max(float(high), value)


def percentile_terms(series: Series, q: float) -> Array:
    """``[requests, 2]``: samples up to the ``q`` percentile and all samples of each request."""
    return np.stack([series.counts_up_to(series.percentile(q)), series.counts()], axis=1)


def percentile_samples(series: Series, q: float, sums: Array) -> Array:
    """Bootstrap values of the ``q`` percentile from ``sums[resamples, 2]`` of :func:`percentile_terms`."""
    n = len(series)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = sums[:, 0] / sums[:, 1]
    # With ties the share at x_q lies above q; the excess is no evidence, so the shift is taken from it.
    at_value = np.searchsorted(series.values, series.percentile(q), side="right") / n
    shifted = np.clip(q / 100.0 - (np.nan_to_num(share, nan=at_value) - at_value), 0.0, 1.0)
    index = np.clip(np.ceil(shifted * n - 1e-9).astype(np.int64) - 1, 0, n - 1)
    return series.values[index]


def design_effect(series: Series, q: float, sums: Array) -> float:
    """How many dependent samples count as one at the ``q`` percentile: bootstrap over binomial variance, >= 1."""
    p = q / 100.0
    with np.errstate(invalid="ignore", divide="ignore"):
        share = sums[:, 0] / sums[:, 1]
    share = share[np.isfinite(share)]
    if len(share) < 20 or len(series) == 0:
        return 1.0
    return max(1.0, float(np.var(share)) / (p * (1 - p) / len(series)))
