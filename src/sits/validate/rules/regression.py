"""Against a baseline: is it slower, does it fail more, is it even the same machine and model?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sits.report.comparing import (
    DEFAULT_METRICS,
    LOWER_IS_WORSE,
    METRIC_PATTERN,
    RESOLUTION,
    TOLERANCE,
    Options,
    Row,
    compare_runs,
)
from sits.report.pairing import KINDS, differences, matching_point
from sits.spec.compare import CONFIDENCE, RUN_TO_RUN
from sits.validate import quantity
from sits.validate.context import Context, describe_point, figure_of, select_points
from sits.validate.rules.model import Finding, Outcome, Settings, Severity, register

_ALLOW = {
    "description": "Kinds of difference that are accepted: " + ", ".join(KINDS),
    "type": "array",
    "items": {"type": "string", "enum": list(KINDS)},
}
METRIC = {
    "description": "A figure: ttft, itl, tpot or e2e with .typical (the whole distribution) or .pNN; "
    "throughput.output, ...",
    "type": "string",
    "pattern": METRIC_PATTERN,
}
_NEEDS = "a result and at least one baseline"


def _no_baseline(context: Context) -> Finding | None:
    if context.baselines:
        return None
    hint = "Give --baseline FILE, or 'baseline:' in the configuration"
    return Finding(Outcome.NO_DATA, "there is no baseline to compare with", hint=hint)


def _drift(context: Context, allow: list[str]) -> list[str]:
    """Differences that forbid a comparison, in words, each once."""
    found: dict[str, None] = {}
    first = context.baselines[0].result
    for loaded in [*context.baselines[1:], *context.results]:
        for difference in differences(first, loaded.result, allow):
            if difference.breaks:
                found[str(difference)] = None
    return list(found)


@register(
    "SITS-C010",
    "regression",
    Severity.CRITICAL,
    summary="No figure is worse than the baseline by more than the tolerance, as far as the noise lets one tell.",
    why="A plain ratio with a 10% limit fires on noise and misses a steady 5%. Here a regression is reported only "
        "when the "
    "whole confidence interval lies beyond the tolerance, and 'too noisy to tell' is a verdict of its own. "
    "`sits compare` shows the same figures.",
    fix="Too noisy: give both sides the requests or runs the message asks for; interleave baseline and candidate "
        "runs. "
    "Failed: bisect with `sits compare`, look inside with `sits explain`.",
    example="regression: {tolerance: 3%, metrics: [itl.p99, ttft.typical, throughput.output]}",
    parameters={
        "tolerance": quantity.schema("share", "A change this small is accepted; default 3%"),
        "resolution": quantity.schema(
            "share", "A change this large must be ruled out before the figure passes; default 10%"
        ),
        "metrics": {
            "description": "Figures to compare; default " + ", ".join(DEFAULT_METRICS),
            "type": "array", "minItems": 1, "items": METRIC,
        },
        "run_to_run": quantity.schema("share", "Noise between runs assumed until several runs measure it; default "
            "1%"),
        "confidence": {"description": "Confidence of the two-sided interval; default 0.90", "type": "number",
                       "exclusiveMinimum": 0.5, "maximum": 0.9999},
        "allow_drift": _ALLOW,
    },
    statistics="`typical`: Hodges-Lehmann shift by inverting the Mann-Whitney test; percentiles: order statistics "
        "joined by "
    "MOVER; both with the variance of blocks of consecutive requests, and runs of a side pooled with the noise "
    "between "
    "them. Single figures: the result's bootstrap intervals. False-alarm and detection rates: docs/gate.md.",
    needs=_NEEDS,
)  # fmt: skip
def regression(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = _no_baseline(context)
    if missing:
        yield missing
        return
    drift = _drift(context, settings.get("allow_drift", []))
    if drift:
        text = "the comparison is invalid, the two sides differ: " + "; ".join(drift)
        hint = "Measure a new baseline under the same conditions, or list what may differ under 'allow_drift'"
        yield Finding(Outcome.INVALID, text, hint=hint)
        return
    options = Options(
        tolerance=quantity.parse("share", settings.get("tolerance", TOLERANCE)),
        resolution=quantity.parse("share", settings.get("resolution", RESOLUTION)),
        confidence=settings.get("confidence", CONFIDENCE),
        run_to_run=quantity.parse("share", settings.get("run_to_run", RUN_TO_RUN)),
    )
    metrics = settings.get("metrics", list(DEFAULT_METRICS))
    compared = compare_runs(
        context.baselines, context.results, metrics, options, settings.get("allow_drift", []), skip_missing=False
    )
    picked = {point.index for point in select_points(context.results[0].result, settings.points)}
    if not picked:
        yield Finding(Outcome.NO_DATA, "no load point fits 'points', or the result has none")
        return
    for point in compared.unmatched:
        if point.index in picked:
            text = f"not every run has the load point {describe_point(point)}"
            hint = "Measure baseline and candidate under the same loads"
            yield Finding(Outcome.NO_DATA, text, scope=describe_point(point), hint=hint)
    for row in compared.rows:
        if row.point.index in picked:
            yield _judge_row(row, options)


def _judge_row(row: Row, options: Options) -> Finding:
    scope, ratio = describe_point(row.point), row.ratio
    if ratio is None:
        return Finding(Outcome.NO_DATA, f"{row.metric}: {row.reason}", metric=row.metric, scope=scope)
    change = f"{quantity.show(ratio.baseline, row.unit)} -> {quantity.show(ratio.candidate, row.unit)}"
    span = f"{_signed(ratio.low)} to {_signed(ratio.high)} with {ratio.confidence:.0%} confidence"
    text = f"{row.metric} {change}: {_signed(ratio.value)} ({span})"
    verdict = row.judgement.verdict
    outcome, hint = Outcome.PASS, None
    if verdict == "worse":
        outcome = Outcome.FAIL
        text += f", tolerated {options.tolerance:.1%}"
    elif verdict == "too_noisy":
        hidden = ratio.high if row.higher_is_worse else (1 / ratio.low if ratio.low > 0 else math.inf)
        if hidden < 1 + options.resolution:  # what is left open is only whether it got better
            text += "; not worse"
        else:
            outcome = Outcome.INCONCLUSIVE
            text += f"; too noisy to rule out {options.resolution:.0%}"
            hint = _what_settles(row)
    elif verdict == "same":
        text += f"; no change of {options.resolution:.0%} or more"
    if ratio.run_noise_assumed and outcome is not Outcome.PASS:
        text += " (noise between runs is assumed: one run a side)"
    slower = ratio.value - 1 if row.higher_is_worse else 1 / ratio.value - 1
    return Finding(
        outcome, text, metric=row.metric, measured=ratio.value, unit="ratio",
        bound=1 + options.tolerance if row.higher_is_worse else 1 / (1 + options.tolerance),
        margin=options.tolerance - slower, low=ratio.low, high=ratio.high if math.isfinite(ratio.high) else None,
        confidence=ratio.confidence, n=min(row.baseline_n, row.candidate_n), scope=scope, hint=hint,
    )  # fmt: skip


def _signed(ratio: float) -> str:
    if not math.isfinite(ratio):
        return "unbounded"
    return f"{ratio - 1:+.1%}"


def _what_settles(row: Row) -> str:
    """What would decide it, in words."""
    judgement, ratio = row.judgement, row.ratio
    assert ratio is not None
    parts = []
    if judgement.requests_needed:
        have = f"{min(ratio.requests)}" if min(ratio.requests) == max(ratio.requests) else f"{ratio.requests}"
        parts.append(f"about {judgement.requests_needed} requests a side (now {have})")
    if judgement.runs_needed:
        parts.append(f"about {judgement.runs_needed} runs a side (now {ratio.runs[0]} and {ratio.runs[1]})")
    return "To settle it: " + " in ".join(parts) if parts else "To settle it: more runs a side"


@register(
    "SITS-C011",
    "error-regression",
    Severity.CRITICAL,
    summary="Requests do not fail more often than in the baseline.",
    why="A change that sheds load keeps its latencies and loses answers.",
    fix="The result lists failures by kind; compare the kinds of both sides.",
    example="error-regression: true",
    parameters={"allow_drift": _ALLOW},
    statistics="Newcombe's 90% interval of the difference of two proportions; 0.5 points are tolerated.",
    needs=_NEEDS,
)
def error_regression(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = _no_baseline(context)
    if missing:
        yield missing
        return
    drift = _drift(context, settings.get("allow_drift", []))
    if drift:
        yield Finding(Outcome.INVALID, "the comparison is invalid, the two sides differ: " + "; ".join(drift))
        return
    compared = compare_runs(context.baselines, context.results, (), allow=settings.get("allow_drift", []))
    picked = {point.index for point in select_points(context.results[0].result, settings.points)}
    rows = [row for row in compared.errors if row.point.index in picked]
    if not rows:
        yield Finding(Outcome.NO_DATA, "no load point has counts of requests on both sides")
    for row in rows:
        text = (
            f"{row.baseline[0]} of {row.baseline[1]} requests failed before, {row.candidate[0]} of "
            f"{row.candidate[1]} now "
            f"({row.low * 100:+.2f} to {row.high * 100:+.2f} points with 90% confidence)"
        )
        outcome = {"worse": Outcome.FAIL, "too_noisy": Outcome.INCONCLUSIVE}.get(row.verdict, Outcome.PASS)
        yield Finding(
            outcome, text, metric="error_rate", measured=row.difference, bound=0.005, unit="share", low=row.low,
            high=row.high, confidence=0.90, n=row.candidate[1], scope=describe_point(row.point),
            hint="More requests a side would settle it" if outcome is Outcome.INCONCLUSIVE else None,
        )  # fmt: skip


@register(
    "SITS-C012",
    "environment-drift",
    Severity.CRITICAL,
    summary="Baseline and candidate ran on the same hardware, driver, model and load.",
    why="Another GPU, another driver or another prompt mix moves every figure; then the ratio says nothing about "
    "the change.",
    fix="Measure a new baseline where the candidate runs, in the same job if it can be.",
    example="environment-drift: {allow: [driver]}",
    parameters={"allow": _ALLOW},
    needs=_NEEDS,
)
def environment_drift(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = _no_baseline(context)
    if missing:
        yield missing
        return
    drift = _drift(context, settings.get("allow", []))
    if not drift:
        yield Finding(Outcome.PASS, "baseline and candidate ran under the same conditions")
    for text in drift:
        yield Finding(Outcome.FAIL, f"baseline and candidate differ in {text}", metric=text.split(":")[0])


@register(
    "SITS-C013",
    "ratio",
    Severity.CRITICAL,
    summary="Plain ratios to the baseline stay within their bounds.",
    why="For figures without an interval, or for a coarse bound that no noise reaches (\"never twice as slow\"). For "
    "anything finer use `regression`.",
    fix="See `regression`.",
    example="ratio: {bounds: {e2e.p99: 2.0, throughput.output: 0.5}}",
    parameters={
        "bounds": {
            "description": "Figure: largest candidate / baseline (smallest, for figures where more is better)",
            "type": "object", "minProperties": 1, "additionalProperties": False,
            "patternProperties": {METRIC_PATTERN.replace("typical|", ""): {"type": "number", "exclusiveMinimum": 0}},
        },
        "allow_drift": _ALLOW,
    },
    required=("bounds",),
    statistics="None: the plain quotient of two figures (the mean over several baselines).",
    needs=_NEEDS,
)  # fmt: skip
def ratio(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = _no_baseline(context)
    if missing:
        yield missing
        return
    drift = _drift(context, settings.get("allow_drift", []))
    if drift:
        yield Finding(Outcome.INVALID, "the comparison is invalid, the two sides differ: " + "; ".join(drift))
        return
    bounds: dict[str, Any] = settings.parameters["bounds"]
    for loaded, point in context.points(settings.points):
        scope = context.scope(loaded, point)
        for metric, limit in bounds.items():
            mine, reason = figure_of(point, metric)
            others = [matching_point(point, base.result) for base in context.baselines]
            old = [figure_of(other, metric)[0] for other in others if other is not None]
            values = [figure.value for figure in old if figure is not None and figure.value]
            if mine is None or mine.value is None or not values:
                text = reason or f"no baseline has '{metric}' at {describe_point(point)}"
                yield Finding(Outcome.NO_DATA, text, metric=metric, scope=scope)
                continue
            base = sum(values) / len(values)
            quotient = mine.value / base
            at_most = not metric.startswith(LOWER_IS_WORSE)
            outcome = Outcome.PASS if (quotient <= limit) == at_most or quotient == limit else Outcome.FAIL
            text = (
                f"{metric} {quantity.show(base, mine.unit)} -> {quantity.show(mine.value, mine.unit)}: ratio "
                f"{quotient:.3f}, required {'<=' if at_most else '>='} {limit:g} (plain ratio, no interval)"
            )
            margin = (limit - quotient) / limit if at_most else (quotient - limit) / limit
            yield Finding(outcome, text, metric=metric, measured=quotient, bound=limit, unit="ratio", scope=scope,
                          margin=margin)  # fmt: skip
