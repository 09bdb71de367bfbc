"""Objectives: a figure of a load point must stay under (or over) a bound; ``estimates`` says when it is known to."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sits.spec.result import LoadPoint
from sits.spec.special import normal_quantile, proportion_bounds
from sits.validate import quantity
from sits.validate.context import Context
from sits.validate.rules.estimates import (
    CONFIDENCE,
    DECIDE,
    STRICT,
    Estimate,
    compare,
    figure_estimate,
    no_points,
    over_points,
    percentile_estimate,
)
from sits.validate.rules.model import Evaluate, Finding, Outcome, Settings, Severity, register

_PERCENTILE = r"^p[0-9]{1,2}(\.[0-9]{1,3})?$"


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
