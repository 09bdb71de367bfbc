"""Objectives: a figure of a load point must stay under (or over) a bound, and be known well enough to say so.

PASS needs the confidence bound, not only the figure, on the right side of the limit; FAIL needs it on the wrong
side; between the two the rule says INCONCLUSIVE and how many requests would settle it. ``decide: estimate`` asks
for the plain figure instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sits.report.loaded import LoadedResult
from sits.spec.intervals import Pool, Run, block_length, least_samples
from sits.spec.result import LoadPoint
from sits.spec.special import normal_quantile, proportion_bounds
from sits.validate import quantity
from sits.validate.context import (
    Context,
    columns_or_reason,
    describe_point,
    figure_of,
    usable_bounds,
)
from sits.validate.rules.model import Evaluate, Finding, Outcome, Settings, Severity, register

DECIDE = {
    "description": "bound (default): the confidence bound must meet the limit; estimate: the plain figure is enough",
    "type": "string",
    "enum": ["bound", "estimate"],
}
_PERCENTILE = r"^p[0-9]{1,2}(\.[0-9]{1,3})?$"


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


def _latency(series: str, label: str) -> Evaluate:
    def evaluate(context: Context, settings: Settings) -> Iterable[Finding]:
        missing = no_points(context, settings)
        if missing:
            yield missing
            return
        decide, strict = settings.get("decide", "bound"), bool(settings.get("strict", False))
        for loaded, point in over_points(context, settings):
            for key, raw in settings.parameters.items():
                if key in ("decide", "confidence", "strict"):
                    continue
                limit = quantity.parse("latency", raw)
                if key.startswith("p"):
                    found = percentile_estimate(context, settings, loaded, point, series, float(key[1:]), limit)
                else:
                    found = figure_estimate(loaded, point, f"{series}.{key}")
                metric, scope = f"{series}.{key}", context.scope(loaded, point)
                if isinstance(found, str):
                    yield Finding(Outcome.NO_DATA, found, metric=metric, scope=scope, bound=limit, unit="ms")
                    continue
                yield compare(
                    found, limit, at_most=True, unit="ms", metric=metric, label=f"{label} {key}", decide=decide,
                    strict=strict,
                ).with_(scope=scope)  # fmt: skip

    return evaluate


CONFIDENCE = {
    "description": "Confidence of each bound, from 0.5 to 0.9999",
    "type": "number",
    "exclusiveMinimum": 0.5,
    "maximum": 0.9999,
}
STRICT = {"description": "A figure equal to the bound violates it, as in MLPerf", "type": "boolean"}

_LATENCY_RULES = (
    ("SITS-C001", "ttft", "ttft", "TTFT", "The time to the first token", "500 ms"),
    ("SITS-C002", "itl", "itl", "ITL", "The gap between tokens (pooled over requests)", "50 ms"),
    ("SITS-C003", "tpot", "tpot", "TPOT", "The mean time per output token of a request", "40 ms"),
    ("SITS-C004", "e2e", "e2e", "E2E latency", "The time from when a request was due to its end", "8 s"),
    (
        "SITS-C009",
        "ttft-visible",
        "ttft_visible",
        "TTFT (visible)",
        "The time to the first token a reader sees",
        "2 s",
    ),
)
for _id, _name, _series, _label, _what, _limit in _LATENCY_RULES:
    register(
        _id,
        _name,
        Severity.CRITICAL,
        summary=f"{_what} stays under its bounds, at any percentile.",
        why="An objective is a promise about the tail, and a percentile of a small sample is a guess. So the rule "
        "judges "
        "the confidence bound of the percentile: with 459 requests and no slow one, p99 is under the limit with 99% "
        "confidence; with 50 requests nothing can be said about p99 at all.",
        fix="Inconclusive: measure as many requests as the message says, or bind a lower percentile. "
        "Failed: `sits explain` says where the milliseconds go.",
        example=f"{_name}: {{p50: {_limit}, p99: {_limit}}}",
        patterns={_PERCENTILE: {**quantity.schema("latency", "Largest value of this percentile"), "title": "p99"}},
        parameters={
            "mean": quantity.schema("latency", "Largest mean"),
            "max": quantity.schema("latency", "Largest single value"),
            "decide": DECIDE,
            "strict": STRICT,
            "confidence": CONFIDENCE,
        },
        bound=("p", "mean", "max"),
        statistics="Exact binomial order statistics on the records (one-sided, at `confidence`); token gaps are "
        "first "
        "deflated by the design effect of blocks of consecutive requests. Without records: the interval and the "
        "early-stopping bound of the result.",
    )(_latency(_series, _label))


def _figure_rule(limits: dict[str, tuple[str, bool, str, str, str]]) -> Evaluate:
    """A rule on single figures: parameter -> (figure key, at most?, unit, label, quantity kind)."""

    def evaluate(context: Context, settings: Settings) -> Iterable[Finding]:
        missing = no_points(context, settings)
        if missing:
            yield missing
            return
        for loaded, point in over_points(context, settings):
            for parameter, (key, at_most, unit, label, kind) in limits.items():
                if parameter not in settings.parameters:
                    continue
                limit = quantity.parse(kind, settings.parameters[parameter])
                found = figure_estimate(loaded, point, key)
                scope = context.scope(loaded, point)
                if isinstance(found, str):
                    yield Finding(Outcome.NO_DATA, found, metric=key, scope=scope, bound=limit, unit=unit)
                    continue
                yield compare(
                    found, limit, at_most=at_most, unit=unit, metric=key, label=label,
                    decide=settings.get("decide", "bound"), strict=False,
                ).with_(scope=scope)  # fmt: skip

    return evaluate


@register(
    "SITS-C005",
    "goodput",
    Severity.CRITICAL,
    summary="Enough requests meet every objective of the SLO.",
    why="Throughput of answers that came too late is worth nothing. Goodput counts only requests that succeeded "
    "and met "
    "every objective given to the run (`sits bench --slo`); failed requests stay in the denominator.",
    fix="Lower the load, or find what misses the objective: the report lists which objective each request missed.",
    example="goodput: {min: 4.5, min_share: 99%}",
    parameters={
        "min": quantity.schema("rate", "Least requests per second that meet every objective"),
        "min_share": quantity.schema("share", "Least share of requests that meet every objective"),
        "decide": DECIDE,
    },
    bound=("min", "min_share"),
    statistics="95% Wilson interval of the share of requests that meet the objectives.",
)
def goodput(context: Context, settings: Settings) -> Iterable[Finding]:
    yield from _figure_rule(
        {
            "min": ("goodput", False, "req/s", "goodput", "rate"),
            "min_share": ("attainment", False, "share", "attainment", "share"),
        }
    )(context, settings)


@register(
    "SITS-C006",
    "error-rate",
    Severity.CRITICAL,
    summary="The share of failed requests stays under its bound.",
    why="Failed requests leave no latency, so a service that drops slow requests looks fast. Peers exit 0 with every "
    "request failed.",
    fix="The result lists failures by kind (`errors` of the load point).",
    example="error-rate: {max: 1%}",
    parameters={"max": quantity.schema("share", "Largest share of failed requests"), "decide": DECIDE,
                "confidence": CONFIDENCE},
    required=("max",),
    statistics="Exact binomial (Clopper-Pearson) bounds on the counts of failed and sent requests, one-sided.",
)  # fmt: skip
def error_rate(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    limit = quantity.parse("share", settings.parameters["max"])
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        counts = failures(point)
        if counts is None:
            text = "no request was counted"
            yield Finding(Outcome.NO_DATA, text, metric="error_rate", scope=scope, bound=limit, unit="share")
            continue
        failed, sent = counts
        confidence = settings.get("confidence", context.config.confidence)
        low, high = proportion_bounds(failed, sent, confidence)
        if limit == 0:  # no sample proves zero; then the rule means "none was seen"
            high = failed / sent
        slack = max(1e-9, abs(limit - failed / sent))
        needed = math.ceil(normal_quantile(confidence) ** 2 * max(limit, 1e-6) / slack**2 / 10) * 10
        enough = f"About {max(needed, 2 * sent)} requests would settle it (now {sent})"
        found = Estimate(failed / sent, low, high, sent, confidence, str(loaded.file), enough)
        label = f"{failed} of {sent} requests failed:"
        yield compare(
            found, limit, at_most=True, unit="share", metric="error_rate", label=label,
            decide=settings.get("decide", "bound"), strict=False,
        ).with_(scope=scope)  # fmt: skip


def failures(point: LoadPoint) -> tuple[int, int] | None:
    """Failed and counted requests of a load point; ``None`` when there were none or the counts contradict."""
    requests = point.requests
    failed = requests.get("error", 0) + requests.get("timeout", 0)
    sent = failed + requests.get("ok", 0)
    if sent <= 0 or failed < 0 or requests.get("ok", 0) < 0:
        return None
    return failed, sent


register(
    "SITS-C007",
    "throughput",
    Severity.CRITICAL,
    summary="Throughput in the steady window reaches its floor.",
    why="The capacity a deployment was sized for. Without a floor a gate on latency passes an engine that serves "
    "nobody.",
    fix="Compare with the last good result (`sits compare`); check that the run reached its concurrency.",
    example="throughput: {min_output: 300}",
    parameters={
        "min_output": quantity.schema("rate", "Least output tokens per second"),
        "min_total": quantity.schema("rate", "Least prompt plus output tokens per second"),
        "min_requests": quantity.schema("rate", "Least finished requests per second"),
        "decide": DECIDE,
    },
    bound=("min_output", "min_total", "min_requests"),
    statistics="95% bootstrap interval over requests, from the result.",
)(
    _figure_rule(
        {
            "min_output": ("throughput.output", False, "tok/s", "output throughput", "rate"),
            "min_total": ("throughput.total", False, "tok/s", "total throughput", "rate"),
            "min_requests": ("throughput.requests", False, "req/s", "request throughput", "rate"),
        }
    )
)

register(
    "SITS-C008",
    "tail-inflation",
    Severity.CRITICAL,
    summary="TLTB over concurrency (1.0 is perfect) stays under its bound.",
    why="TLTB = L99 x X / 1000 grows with load and with regressions alike, so on its own it cannot be a gate. "
    "Divided by "
    "the concurrency it says how much longer the tail waits than the mean. `max_tltb` bounds the raw value, at fixed "
    "load only.",
    fix="Look at the ITL distribution: a second hump is prefill in the same step (chunk it smaller), lone "
    "stragglers are "
    "preemption, garbage collection or a neighbour.",
    example="tail-inflation: {max: 1.6}",
    parameters={
        "max": quantity.schema("rate", "Largest TLTB / concurrency"),
        "max_tltb": quantity.schema("rate", "Largest TLTB, in tokens; only meaningful at fixed load"),
        "decide": DECIDE,
    },
    bound=("max", "max_tltb"),
    statistics="95% bootstrap interval over requests, from the result.",
)(
    _figure_rule(
        {
            "max": ("tail_inflation", True, "", "tail inflation", "rate"),
            "max_tltb": ("tltb", True, "tokens", "TLTB", "rate"),
        }
    )
)

register(
    "SITS-W001",
    "mabu",
    Severity.WARN,
    summary="Memory bandwidth utilisation (MABU) reaches its floor.",
    why="Decoding is bound by memory. A low MABU at high batch means time is lost elsewhere: launches, "
    "scheduling, waiting.",
    fix="`sits explain` splits a step into weights, KV, compute, launches and waiting.",
    example="mabu: {min_required: 40%}",
    parameters={
        "min_required": quantity.schema("share", "Least required bytes/s over peak, from the model's shapes"),
        "min_observed": quantity.schema("share", "Least observed DRAM traffic over peak, from counters"),
        "decide": DECIDE,
    },
    bound=("min_required", "min_observed"),
    statistics="The interval of the result where it has one.",
    needs="a result with bandwidth figures (embedded engine, or telemetry)",
)(
    _figure_rule(
        {
            "min_required": ("mabu.required", False, "share", "MABU (required)", "share"),
            "min_observed": ("mabu.observed", False, "share", "MABU (observed)", "share"),
        }
    )
)

register(
    "SITS-W003",
    "energy",
    Severity.WARN,
    summary="Energy per output token stays under its bound.",
    why="A change may keep the latency and burn more power: higher clocks, busy waiting, a larger batch of padding.",
    fix="Check clocks and power limits first; then padded work and polling threads.",
    example="energy: {max: 0.5 J}",
    parameters={"max": quantity.schema("energy", "Largest energy per output token"), "decide": DECIDE},
    required=("max",),
    statistics="A single figure; energy counters give no interval.",
    needs="a platform with an energy counter",
)(_figure_rule({"max": ("energy_per_token", True, "J", "energy per token", "energy")}))
