"""An estimated figure of a load point against a limit, and whether the sample is large enough to say so.

PASS needs the confidence bound, not only the figure, on the right side of the limit; FAIL needs it on the wrong
side; between the two the finding says INCONCLUSIVE and how many requests would settle it. ``decide: estimate`` asks
for the plain figure instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sits.report.loaded import LoadedResult
from sits.spec.intervals import Pool, Run, block_length, least_samples
from sits.spec.result import LoadPoint
from sits.spec.special import normal_quantile
from sits.validate import quantity
from sits.validate.context import Context, columns_or_reason, describe_point, figure_of, usable_bounds
from sits.validate.rules.model import Finding, Outcome, Settings

# Parameters that several rules take.
DECIDE = {
    "description": "bound (default): the confidence bound must meet the limit; estimate: the plain figure is enough",
    "type": "string",
    "enum": ["bound", "estimate"],
}
CONFIDENCE = {
    "description": "Confidence of each bound, from 0.5 to 0.9999",
    "type": "number",
    "exclusiveMinimum": 0.5,
    "maximum": 0.9999,
}
STRICT = {"description": "A figure equal to the bound violates it, as in MLPerf", "type": "boolean"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with one-sided bounds at the confidence asked for; infinite bounds where the sample cannot tell."""

    value: float
    low: float
    high: float
    n: int
    confidence: float | None  # None: a single figure without an interval
    evidence: str
    enough: str = ""  # what would narrow it


def compare(
    estimate: Estimate, limit: float, *, at_most: bool, unit: str, metric: str, label: str, decide: str, strict: bool
) -> Finding:
    """The finding for one estimate against one limit. ``strict``: a figure equal to the limit violates it."""
    value = estimate.value
    surest, doubtful = (estimate.high, estimate.low) if at_most else (estimate.low, estimate.high)

    def meets(number: float) -> bool:
        if number == limit:
            return not strict
        return (number < limit) == at_most

    if decide == "estimate" or estimate.confidence is None:
        outcome = Outcome.PASS if meets(value) else Outcome.FAIL
    elif meets(surest):
        outcome = Outcome.PASS
    elif not meets(doubtful):
        outcome = Outcome.FAIL
    else:
        outcome = Outcome.INCONCLUSIVE
    sign = "<" if strict else "<="
    sign = sign if at_most else sign.replace("<", ">")
    margin = (limit - value if at_most else value - limit) / limit if limit else None
    text = f"{label} {quantity.show(value, unit)}, required {sign} {quantity.show(limit, unit)}"
    if decide == "estimate":
        text += " (judged by the plain figure)"
    elif estimate.confidence is None:
        text += " (a single figure, no interval)"
    else:
        side = "at most" if at_most else "at least"
        sure = f"with {estimate.confidence:.0%} confidence"
        if math.isfinite(surest):
            text += f"; {sure} it is {side} {quantity.show(surest, unit)} (n = {estimate.n})"
        else:
            text += f"; {estimate.n} samples are too few for any bound {sure}"
    hint = None
    if outcome is Outcome.INCONCLUSIVE:
        hint = estimate.enough or "Measure more requests"
    return Finding(
        outcome, text, metric=metric, measured=value, bound=limit, unit=unit, margin=margin,
        low=_finite(estimate.low), high=_finite(estimate.high), confidence=estimate.confidence, n=estimate.n,
        evidence=estimate.evidence, hint=hint,
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def percentile_estimate(
    context: Context, settings: Settings, loaded: LoadedResult, point: LoadPoint, series: str, q: float, limit: float
) -> Estimate | str:
    """The ``q`` percentile of a latency, from the records where there are any; else from the figure of the result."""
    confidence = settings.get("confidence", context.config.confidence)
    columns, reason = columns_or_reason(loaded, point)
    if columns is not None:
        samples = columns.series(series)
        if len(samples) == 0:
            return f"no successful request gave a sample of {series}"
        pool = Pool([Run(samples, block_length(samples.requests, point.concurrency))])
        share = q / 100.0
        # A latency sample a request is taken as independent (MLPerf does); token gaps are deflated.
        size = pool.effective_size(share) if series == "itl" else float(len(pool))
        low, high = pool.bounds(share, confidence, size)
        enough = _requests_needed(pool, share, limit, confidence, size)
        return Estimate(pool.quantile(share), low, high, len(pool), confidence, str(loaded.file), enough)
    if loaded.result.records_file is not None and "kept no per-request records" not in reason:
        return reason
    figure, missing = figure_of(point, f"{series}.p{q:g}")
    if figure is None:
        return missing
    assert figure.value is not None
    bounds = usable_bounds(figure)
    low, high = bounds if bounds else (-math.inf, math.inf)
    if figure.upper_bound is not None and math.isfinite(figure.upper_bound):
        high = max(high if math.isfinite(high) else 0.0, figure.upper_bound)
    else:
        high = math.inf
    return Estimate(
        figure.value, low, high, figure.n, 0.99 if math.isfinite(high) else 0.95, str(loaded.file),
        "Keep records.jsonl.gz beside the result, or measure more requests",
    )  # fmt: skip


def _requests_needed(pool: Pool, share: float, limit: float, confidence: float, size: float) -> str:
    """How many requests would let the bound meet the limit if the share of slow ones stays what it is."""
    n, per_sample = len(pool), pool.requests / len(pool)
    over = 1.0 - float((pool.ordered <= limit).mean())
    floor = least_samples(share, confidence)
    gap = (1.0 - share) - over
    needed = float(floor)
    if abs(gap) > 1e-12:
        needed = max(needed, normal_quantile(confidence) ** 2 * share * (1.0 - share) / gap**2)
    requests = math.ceil(needed * per_sample * n / max(size, 1e-9) / 10) * 10
    if requests > 1_000_000:
        return "The figure is so close to the bound that no reasonable run can tell; move the bound"
    if requests <= pool.requests:
        requests = pool.requests * 2
    return f"About {requests} requests at this load point would settle it (now {pool.requests})"


def figure_estimate(loaded: LoadedResult, point: LoadPoint, key: str) -> Estimate | str:
    """A single figure of the result with its own 95% interval (each side at 97.5%)."""
    figure, missing = figure_of(point, key)
    if figure is None:
        return missing
    assert figure.value is not None
    bounds = usable_bounds(figure)
    low, high = bounds if bounds else (figure.value, figure.value)
    return Estimate(figure.value, low, high, figure.n, 0.975 if bounds else None, str(loaded.file))


def over_points(context: Context, settings: Settings) -> Iterator[tuple[LoadedResult, LoadPoint]]:
    yield from context.points(settings.points)


def no_points(context: Context, settings: Settings) -> Finding | None:
    """The finding when the selector picks nothing."""
    if any(True for _ in context.points(settings.points)):
        return None
    have = [describe_point(p) for loaded in context.results for p in loaded.result.points]
    what = (
        "the result has no load point" if not have else "no load point fits 'points'; there are: " + ", ".join(have)
    )
    return Finding(Outcome.NO_DATA, what, hint="Measure the load this rule is about")
