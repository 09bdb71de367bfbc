"""When requests are due in open loop, drawn by one seeded generator, and the check that they went out that way.

Processes: ``constant``; ``poisson`` (exponential gaps); ``burst`` (gamma gaps, shape 0.25 unless given as
``burst:SHAPE``: the smaller, the burstier; shape 1 is Poisson); ``ramp`` (Poisson whose rate grows linearly from a
tenth of the rate to the rate over the ramp time, then stays).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sits.errors import InputError
from sits.spec.result import ArrivalCheck
from sits.spec.statistics import Array, ks_exponential

PROCESSES = ("poisson", "constant", "burst", "ramp")
DEFAULT_BURST_SHAPE = 0.25
RAMP_FROM = 0.1
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process of mean ``rate`` requests per second; ``ramp_seconds`` only matters to ``ramp``."""

    process: str
    rate: float
    shape: float = DEFAULT_BURST_SHAPE
    ramp_seconds: float = 30.0

    @classmethod
    def parse(cls, process: str, rate: float, ramp_seconds: float = 30.0) -> Arrivals:
        """``poisson``, ``constant``, ``ramp``, ``burst`` or ``burst:0.5``. Raises ``InputError``."""
        name, _, parameter = process.partition(":")
        if name not in PROCESSES or (parameter and name != "burst"):
            raise InputError(f"unknown arrival process {process!r}", f"Choose one of {', '.join(PROCESSES)}")
        if not (math.isfinite(rate) and rate > 0):
            raise InputError(f"the rate must be above zero, not {rate}", "Give requests per second, such as --rate 5")
        try:
            shape = float(parameter) if parameter else DEFAULT_BURST_SHAPE
        except ValueError:
            raise InputError(f"the burst shape must be a number, not {parameter!r}", "Write burst:0.25") from None
        if not (math.isfinite(shape) and shape > 0):
            raise InputError(f"the burst shape must be above zero, not {parameter}", "Write burst:0.25")
        return cls(name, rate, shape, max(1e-9, ramp_seconds))

    @property
    def variation(self) -> float:
        """Coefficient of variation of the gaps (of the time-changed gaps for ``ramp``)."""
        return {"constant": 0.0, "burst": 1.0 / math.sqrt(self.shape)}.get(self.process, 1.0)

    def offsets(self, seed: int) -> Iterator[float]:
        """Endless due times in seconds after the start, ascending."""
        rng = np.random.default_rng([seed, 0xA221])
        total, unit = 0.0, 0
        while True:
            if self.process == "constant":
                yield from ((unit + np.arange(_BLOCK)) / self.rate).tolist()
                unit += _BLOCK
                continue
            if self.process == "burst":
                steps = rng.gamma(self.shape, 1.0 / (self.shape * self.rate), _BLOCK)
            else:
                steps = rng.exponential(1.0 if self.process == "ramp" else 1.0 / self.rate, _BLOCK)
            block = total + np.cumsum(steps)
            total = float(block[-1])
            yield from (self._time_of(block) if self.process == "ramp" else block).tolist()

    def first(self, count: int, seed: int) -> Array:
        """The first ``count`` due times as an array."""
        source = self.offsets(seed)
        return np.fromiter((next(source) for _ in range(count)), dtype=np.float64, count=count)

    def expected(self, seconds: Array) -> Array:
        """Expected number of arrivals up to each time: the integral of the rate."""
        if self.process != "ramp":
            return self.rate * seconds
        start, end, length = RAMP_FROM * self.rate, self.rate, self.ramp_seconds
        inside = np.minimum(seconds, length)
        during = start * inside + (end - start) * inside**2 / (2 * length)
        return during + end * np.maximum(0.0, seconds - length)

    def _time_of(self, expected: Array) -> Array:
        start, end, length = RAMP_FROM * self.rate, self.rate, self.ramp_seconds
        slope = (end - start) / length
        over = (start + end) / 2 * length
        inside = (-start + np.sqrt(start**2 + 2 * slope * np.minimum(expected, over))) / slope
        return inside + np.maximum(0.0, expected - over) / end


def check_arrivals(arrivals: Arrivals, sent_seconds: Array) -> ArrivalCheck:
    """Compare when requests really left (seconds after the start, any order) with what was asked for.

    ``ok`` needs the achieved rate within three standard errors (1% for ``constant``) and, for the Poisson kinds, a
    Kolmogorov-Smirnov p-value above 0.01 on the gaps. Under 10 requests nothing is judged.
    """
    sent = np.sort(np.asarray(sent_seconds, dtype=np.float64))
    check = ArrivalCheck(process=arrivals.process, target_rate=arrivals.rate)
    if len(sent) < 2 or sent[-1] <= sent[0]:
        check.detail = "too few requests to judge"
        return check
    gaps = np.diff(sent)
    check.achieved_rate = len(gaps) / float(sent[-1] - sent[0])
    # In expected-count time a process of any rate profile has unit rate.
    unit_gaps = np.diff(arrivals.expected(sent))
    unit_rate = len(gaps) / float(unit_gaps.sum())
    if arrivals.process in ("poisson", "ramp"):
        check.ks_p_value = ks_exponential(unit_gaps, 1.0)[1]
    if len(sent) < 10:
        check.detail = "too few requests to judge"
        return check
    allowed = max(0.01, 3.0 * arrivals.variation / math.sqrt(len(gaps)))
    rate_ok = abs(unit_rate - 1.0) <= allowed
    shape_ok = check.ks_p_value is None or check.ks_p_value > 0.01
    check.ok = rate_ok and shape_ok
    faults = []
    if not rate_ok:
        faults.append(f"the rate is off by {unit_rate - 1:+.1%}, allowed {allowed:.1%}")
    if not shape_ok:
        faults.append(f"the gaps do not look exponential (KS p = {check.ks_p_value:.2g})")
    check.detail = "; ".join(faults) or f"within {allowed:.1%} of the rate"
    return check
