"""Hygiene: waivers that ran out, and settings that make a gate or an engine weaker than it looks."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sits.validate import quantity
from sits.validate.context import Context
from sits.validate.rules.estimates import no_points, over_points
from sits.validate.rules.model import Finding, Outcome, Settings, Severity, register
from sits.validate.rules.resources import gauge


@register(
    "SITS-C050",
    "waivers",
    Severity.CRITICAL,
    summary="No waiver has run out.",
    why="A waiver is a debt with a date. Without this rule it becomes the new bound.",
    fix="Fix what was waived and delete the waiver, or renew it: a new date, set by its owner.",
    example="waivers: true",
    default_on=True,
    no_data="skip",
    needs="nothing",
)
def waivers(context: Context, settings: Settings) -> Iterable[Finding]:
    for waiver in context.config.waivers:
        text = f"the waiver of {waiver.rule.name} by {waiver.owner} ({waiver.reason})"
        days = (waiver.expires - context.today).days
        if days < 0:
            message = f"{text} ran out on {waiver.expires.isoformat()}"
            yield Finding(
                Outcome.FAIL, message, metric="waiver", mark=waiver.mark, measured=float(-days), unit="days"
            )
        else:
            message = f"{text} holds until {waiver.expires.isoformat()} ({days} days)"
            yield Finding(Outcome.NOT_APPLICABLE, message, metric="waiver", mark=waiver.mark)
    if not context.config.waivers:
        yield Finding(Outcome.NOT_APPLICABLE, "there is no waiver")


@register(
    "SITS-W050",
    "unused-waiver",
    Severity.WARN,
    summary="Every waiver still waives something.",
    why="A waiver that nothing needs any more hides the next violation of its rule.",
    fix="Delete it.",
    example="unused-waiver: true",
    default_on=True,
    no_data="skip",
    needs="nothing",
)
def unused_waiver(context: Context, settings: Settings) -> Iterable[Finding]:
    found = False
    for index, waiver in enumerate(context.config.waivers):
        if index not in context.used_waivers and waiver.expires >= context.today:
            found = True
            text = f"the waiver of {waiver.rule.name} by {waiver.owner} waives nothing any more"
            yield Finding(Outcome.FAIL, text, metric="waiver", mark=waiver.mark)
    if not found:
        yield Finding(Outcome.NOT_APPLICABLE, "there is no unused waiver")


@register(
    "SITS-W051",
    "slo-missing",
    Severity.WARN,
    summary="The run was given a service-level objective.",
    why="Without an objective there is no goodput, and no load at which to stop.",
    fix="Give one to the run: sits bench --slo ttft=500ms,itl=50ms",
    example="slo-missing: true",
)
def slo_missing(context: Context, settings: Settings) -> Iterable[Finding]:
    for loaded in context.results:
        scope, slo = context.scope(loaded), loaded.result.slo
        if slo:
            listed = ", ".join(f"{name.removesuffix('_ms')} {bound:g} ms" for name, bound in slo.items())
            yield Finding(Outcome.PASS, f"objectives of the run: {listed}", scope=scope)
        else:
            yield Finding(Outcome.FAIL, "the run had no service-level objective", scope=scope)


@register(
    "SITS-W052",
    "kv-watermark",
    Severity.WARN,
    summary="The KV cache keeps a reserve, and requests are not preempted all the time.",
    why="A cache run to its last block evicts prefixes that are about to be used and preempts requests that must "
    "then be "
    "computed again: the tail doubles before throughput falls.",
    fix="Lower the concurrency limit, raise the cache, or set a low watermark so that admission stops earlier.",
    example="kv-watermark: {max_use: 95%, max_preemptions: 0.02}",
    parameters={
        "max_use": quantity.schema("share", "Largest share of KV blocks in use; default 95%"),
        "max_preemptions": quantity.schema("rate", "Most preemptions per request; default 0.05"),
    },
    needs="a target that reports its KV use",
)
def kv_watermark(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    use_limit = quantity.parse("share", settings.get("max_use", 0.95))
    preempted_limit = float(settings.get("max_preemptions", 0.05))
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        use = gauge(point.server, "kv_use_max", "kv_use", "kv_usage", "kv_cache_usage")
        preemptions = gauge(point.server, "preemptions", "preempted")
        requests = point.requests.get("ok", 0)
        if use is None and preemptions is None:
            text = "the target does not report KV use or preemptions"
            yield Finding(Outcome.NO_DATA, text, metric="kv_use", scope=scope)
        if use is not None:
            outcome = Outcome.PASS if 0 <= use <= use_limit else Outcome.FAIL
            text = f"up to {use:.1%} of the KV blocks in use, required <= {use_limit:.0%}"
            yield Finding(outcome, text, metric="kv_use", measured=use, bound=use_limit, unit="share", scope=scope)
        if preemptions is not None and requests > 0:
            each = preemptions / requests
            outcome = Outcome.PASS if 0 <= each <= preempted_limit else Outcome.FAIL
            text = f"{each:.3f} preemptions per request, required <= {preempted_limit:g}"
            yield Finding(outcome, text, metric="preemptions", measured=each, bound=preempted_limit, scope=scope)


@register(
    "SITS-W053",
    "token-timing",
    Severity.WARN,
    summary="Tokens arrive one by one, so that a gap is a gap between tokens.",
    why="When a chunk carries several tokens (speculative decoding, a stream interval, a proxy that coalesces), "
    "gaps are "
    "between chunks; ITL is then an average and its tail is hidden.",
    fix="Bind TPOT and E2E instead of ITL, or have the server stream every token.",
    example="token-timing: {max_tokens_per_chunk: 1.05}",
    parameters={"max_tokens_per_chunk": quantity.schema("rate", "Most tokens a chunk on average; default 1.05")},
)
def token_timing(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    limit = float(settings.get("max_tokens_per_chunk", 1.05))
    for loaded, point in over_points(context, settings):
        scope, value = context.scope(loaded, point), point.tokens_per_chunk
        if not value >= 1.0 or point.requests.get("ok", 0) <= 0:
            text = "the result does not say how many tokens a chunk carries"
            yield Finding(Outcome.NO_DATA, text, metric="tokens_per_chunk", scope=scope)
            continue
        outcome = Outcome.PASS if value <= limit else Outcome.FAIL
        text = f"{value:.3g} tokens a chunk, required <= {limit:g}"
        yield Finding(outcome, text, metric="tokens_per_chunk", measured=value, bound=limit, scope=scope)


@register(
    "SITS-W054",
    "baseline-age",
    Severity.WARN,
    summary="The baseline is recent.",
    why="Against a baseline from months ago ten small regressions look like one old fact, and its machine has "
    "changed since.",
    fix="Store a new baseline from the main branch, in the job that deploys it.",
    example="baseline-age: {max_days: 30}",
    parameters={"max_days": quantity.schema("rate", "Oldest baseline in days; default 30")},
    needs="a baseline",
)
def baseline_age(context: Context, settings: Settings) -> Iterable[Finding]:
    limit = float(settings.get("max_days", 30))
    if not context.baselines:
        yield Finding(Outcome.NO_DATA, "there is no baseline")
    for loaded in context.baselines:
        try:
            created = datetime.fromisoformat(loaded.result.created.replace("Z", "+00:00")).date()
        except ValueError:
            yield Finding(Outcome.NO_DATA, f"{loaded.shown} does not say when it was measured", metric="baseline_age")
            continue
        days = (context.today - created).days
        outcome = Outcome.PASS if days <= limit else Outcome.FAIL
        text = f"{loaded.shown} is {days} days old, required <= {limit:g}"
        yield Finding(outcome, text, metric="baseline_age", measured=float(days), bound=limit, unit="days")
