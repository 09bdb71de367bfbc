"""Was the run itself sound? A figure from a broken run is worse than none. Most of these are always on."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sits.validate import quantity
from sits.validate.context import Context
from sits.validate.rules.estimates import no_points, over_points
from sits.validate.rules.model import Finding, Outcome, Settings, Severity, register


@register(
    "SITS-C030",
    "run-complete",
    Severity.CRITICAL,
    summary="The run ended as planned: no partial, invalid or empty result.",
    why="A run that was interrupted, or whose figures its own tool does not trust, still leaves a result file. "
    "MLPerf's "
    "rewritten checker passed runs marked INVALID; this rule does not.",
    fix="Run it again; the result's warnings say what happened.",
    example="run-complete: true",
    default_on=True,
)
def run_complete(context: Context, settings: Settings) -> Iterable[Finding]:
    for loaded in context.results:
        result, scope = loaded.result, context.scope(loaded)
        if not result.points:
            yield Finding(Outcome.NO_DATA, "the result has no load point: nothing was measured", scope=scope)
            continue
        # A run that did not converge is complete; the rule 'convergence' speaks about it.
        bad = {p.index: p.status for p in result.points if p.status not in ("complete", "not_converged")}
        if result.status not in ("complete", "not_converged"):
            yield Finding(Outcome.FAIL, f"the run is marked {result.status}", scope=scope)
        elif bad:
            listed = ", ".join(f"{index} is {status}" for index, status in bad.items())
            yield Finding(Outcome.FAIL, f"load points are not complete: {listed}", scope=scope)
        else:
            load = len(result.points)
            yield Finding(Outcome.PASS, f"the run is complete ({load} load point{'s'[: load > 1]})", scope=scope)


@register(
    "SITS-C031",
    "convergence",
    Severity.CRITICAL,
    summary="The watched figures settled before measuring ended.",
    why="A run that is still speeding up or slowing down measures how long it was, not how fast the system is.",
    fix="Measure longer, or find what drifts: clocks, caches that fill, a queue that grows (the load is above "
        "capacity).",
    example="convergence: true",
    default_on=True,
    no_data="warn",
    parameters={"metrics": {"description": "Only these watched figures", "type": "array", "minItems": 1,
                            "items": {"type": "string", "minLength": 1}}},
)  # fmt: skip
def convergence(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    wanted = settings.get("metrics")
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        watched = [c for c in point.convergence if wanted is None or c.metric in wanted]
        moving = [c for c in watched if c.status == "not_converged"]
        settled = [c for c in watched if c.status == "converged"]
        if moving or (point.status == "not_converged" and not watched):
            text = "; ".join(f"{c.metric} did not converge ({c.detail or 'no detail'})" for c in moving)
            yield Finding(Outcome.FAIL, text or "the load point did not converge", scope=scope)
        elif settled and len(settled) == len(watched):
            names = ", ".join(c.metric for c in settled)
            yield Finding(Outcome.PASS, f"converged: {names}", scope=scope)
        else:
            hint = "Measure long enough for three rounds"
            yield Finding(Outcome.NO_DATA, "convergence was not checked", scope=scope, hint=hint)


@register(
    "SITS-C032",
    "warm-up",
    Severity.CRITICAL,
    summary="The system was warmed up, and warm-up requests are not in the figures.",
    why="The first requests pay for compilation, graph capture, cold caches and connections: about 30% for the first "
    "long generations on the engines we looked at.",
    fix="Leave out `--warmup none`.",
    example="warm-up: {requests: 10}",
    parameters={"requests": quantity.schema("count", "Least number of warm-up requests; default 1")},
)
def warm_up(context: Context, settings: Settings) -> Iterable[Finding]:
    least = max(1, int(settings.get("requests", 1)))
    for loaded in context.results:
        result, scope = loaded.result, context.scope(loaded)
        done = sum(max(0, point.requests.get("warmup", 0)) for point in result.points)
        lengths = result.warmup.get("lengths")  # one warm-up prompt each
        if isinstance(lengths, list):
            done = max(done, len(lengths))
        if not result.points:
            yield Finding(Outcome.NO_DATA, "the result has no load point", scope=scope)
            continue
        preset = result.warmup.get("preset")
        if preset == "none":
            yield Finding(
                Outcome.FAIL, "the run had no warm-up", metric="warmup", measured=0, bound=least, scope=scope
            )
            continue
        if done == 0 and not result.warmup:
            yield Finding(Outcome.NO_DATA, "the result does not say whether it was warmed up", scope=scope)
            continue
        outcome = Outcome.PASS if done >= least else Outcome.FAIL
        text = f"{done} warm-up requests, required >= {least}"
        yield Finding(outcome, text, metric="warmup", measured=done, bound=least, scope=scope)


@register(
    "SITS-C033",
    "minimum-run",
    Severity.CRITICAL,
    summary="Every load point has enough requests and ran long enough.",
    why="MLPerf asks for 600 s and for as many requests as its early-stopping rule needs. A short run misses "
    "whatever "
    "happens every few minutes: compaction, eviction, throttling.",
    fix="Raise --requests or --duration.",
    example="minimum-run: {requests: 500, duration: 60 s}",
    parameters={
        "requests": quantity.schema("count", "Least number of finished requests"),
        "duration": quantity.schema("duration", "Least length of the measured window"),
    },
    bound=("requests", "duration"),
)
def minimum_run(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        if "requests" in settings.parameters:
            least = int(settings.parameters["requests"])
            done = point.requests.get("ok", 0)
            text = f"{done} requests finished, required >= {least}"
            outcome = Outcome.PASS if done >= least else Outcome.FAIL
            yield Finding(outcome, text, metric="requests.ok", measured=done, bound=least, scope=scope,
                          margin=(done - least) / least if least else None)  # fmt: skip
        if "duration" in settings.parameters:
            wanted = quantity.parse("duration", settings.parameters["duration"])
            if not math.isfinite(point.duration_s) or point.duration_s < 0:
                yield Finding(Outcome.NO_DATA, f"the duration is {point.duration_s}: damaged", scope=scope)
                continue
            text = f"measured for {point.duration_s:.1f} s, required >= {wanted:g} s"
            outcome = Outcome.PASS if point.duration_s >= wanted else Outcome.FAIL
            yield Finding(outcome, text, metric="duration", measured=point.duration_s, bound=wanted, unit="s",
                          scope=scope, margin=(point.duration_s - wanted) / wanted if wanted else None)  # fmt: skip


@register(
    "SITS-C034",
    "client-bound",
    Severity.CRITICAL,
    summary="The load generator kept up: its own delay is not in the figures.",
    why="Against an instant server the clients in use show a TTFT of 16 to 109 ms, all of it their own. A gate on "
    "such "
    "figures judges the client.",
    fix="The result's advice says what to change: more client processes, fewer connections a process, another "
    "machine.",
    example="client-bound: true",
    default_on=True,
    no_data="warn",
)
def client_bound(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    for loaded, point in over_points(context, settings):
        scope, health = context.scope(loaded, point), point.client
        if health.verdict == "client_bound":
            text = "the load generator was the bottleneck"
            if health.slip_p99_ms is not None:
                text += f" (requests left up to {health.slip_p99_ms:.3g} ms late at p99)"
            yield Finding(Outcome.FAIL, text, metric="client", scope=scope, hint=health.advice)
        elif health.verdict == "ok":
            yield Finding(Outcome.PASS, "the load generator kept up", metric="client", scope=scope)
        elif loaded.result.target.kind == "embedded":
            text = "the engine is driven in-process: there is no client in between"
            yield Finding(Outcome.NOT_APPLICABLE, text, metric="client", scope=scope)
        else:
            text = "the result does not say whether the load generator kept up"
            yield Finding(Outcome.NO_DATA, text, metric="client", scope=scope)


@register(
    "SITS-W035",
    "arrivals",
    Severity.WARN,
    summary="Open-loop arrivals came as they were asked for.",
    why="Latency under load depends on how requests arrive. One client in use sends 11 to 31 requests a second "
        "when asked "
    "for 10; its latencies belong to another load.",
    fix="Lower the rate or give the client more processes.",
    example="arrivals: {process: poisson}",
    default_on=True,
    parameters={"process": {"description": "The arrival process that must have been used", "type": "string",
                            "enum": ["poisson", "constant", "gamma", "burst", "ramp", "trace"]}},
)  # fmt: skip
def arrivals(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    wanted = settings.get("process")
    for loaded, point in over_points(context, settings):
        scope, checked = context.scope(loaded, point), point.arrivals
        if point.mode == "closed":
            if wanted:
                text = f"a closed loop has no arrival process, required {wanted}"
                yield Finding(Outcome.FAIL, text, metric="arrivals", scope=scope)
            else:
                yield Finding(Outcome.NOT_APPLICABLE, "closed loop", metric="arrivals", scope=scope)
            continue
        if checked is None or checked.ok is None:
            yield Finding(Outcome.NO_DATA, "the arrivals were not checked", metric="arrivals", scope=scope)
        elif wanted and checked.process != wanted:
            text = f"arrivals were {checked.process}, required {wanted}"
            yield Finding(Outcome.FAIL, text, metric="arrivals", scope=scope)
        elif not checked.ok:
            text = f"arrivals were not {checked.process} as asked: {checked.detail or 'no detail'}"
            yield Finding(Outcome.FAIL, text, metric="arrivals", scope=scope)
        else:
            rate = f" at {checked.achieved_rate:.4g}/s" if checked.achieved_rate is not None else ""
            yield Finding(Outcome.PASS, f"arrivals were {checked.process}{rate}", metric="arrivals", scope=scope)
