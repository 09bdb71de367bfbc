"""Was the run itself sound? A figure from a broken run is worse than none. Most of these are always on."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from sits.errors import InputError
from sits.spec.intervals import Pool, Run
from sits.spec.result import LoadPoint
from sits.validate import quantity
from sits.validate.context import Context, columns_or_reason, figure_of
from sits.validate.rules.bounds import failures, no_points, over_points
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


@register(
    "SITS-C036",
    "records-match",
    Severity.CRITICAL,
    summary="The figures of the result agree with the per-request records beside it.",
    why="result.json is a small text file that anything may rewrite, and a mixed-up folder pairs one run's "
    "figures with "
    "another's records. The gate recomputes counts and medians and does not take the summary's word.",
    fix="Copy the whole folder of a run, never single files. If nobody touched them, report it: it is a fault of "
    "SITS.",
    example="records-match: true",
    default_on=True,
    no_data="skip",
    needs="a result with its records",
)
def records_match(context: Context, settings: Settings) -> Iterable[Finding]:
    for loaded in context.results:
        try:
            columns = loaded.columns
        except InputError as error:
            # Records that are named but cannot be read are no reason to skip.
            yield Finding(Outcome.FAIL, str(error), scope=context.scope(loaded), metric="records")
            continue
        if columns is None:
            text = "the run kept no per-request records"
            yield Finding(Outcome.NO_DATA, text, scope=context.scope(loaded), metric="records")
            continue
        for point in loaded.result.points:
            scope = context.scope(loaded, point)
            wrong = _differences(point, columns.get(point.index))
            if wrong:
                yield Finding(Outcome.FAIL, "; ".join(wrong), scope=scope, metric="records")
            else:
                yield Finding(Outcome.PASS, "the figures agree with the records", scope=scope, metric="records")


def _differences(point: LoadPoint, columns: object) -> list[str]:
    from sits.spec.columns import PointColumns

    counted = failures(point)
    if not isinstance(columns, PointColumns):
        return [] if counted is None else [f"the result counts {counted[1]} requests, the records hold none"]
    wrong = []
    if counted is not None and counted != (columns.failed, columns.sent):
        wrong.append(
            f"the result counts {counted[0]} failures in {counted[1]} requests, the records {columns.failed} in "
            f"{columns.sent}"
        )
    for series in ("ttft", "itl", "e2e"):
        samples = columns.series(series)
        pool = Pool([Run(samples)])
        for q in (50, 99):
            figure, _ = figure_of(point, f"{series}.p{q}")
            if figure is None or figure.value is None:
                continue
            if len(samples) == 0:
                wrong.append(f"{series}.p{q} is {figure.value:.4g} ms in the result, the records have no sample")
                continue
            real = pool.quantile(q / 100.0)
            if not np.isclose(real, figure.value, rtol=0.005, atol=0.01):
                wrong.append(f"{series}.p{q} is {figure.value:.4g} ms in the result and {real:.4g} ms in the records")
    return wrong


@register(
    "SITS-C037",
    "output-length",
    Severity.CRITICAL,
    summary="Answers are as long as they should be.",
    why="An engine that stops early is faster. MLPerf asks for 90% to 110% of the reference length; so does this "
        "rule, "
    "against the length that was asked for (or the baseline's, with `against: baseline`).",
    fix="Check stop tokens, max_tokens and the chat template; run with ignore_eos for pure speed tests.",
    example="output-length: {min: 90%, max: 110%}",
    parameters={
        "min": {**quantity.schema("share", "Least mean length over the reference"), "maximum": 10},
        "max": {"description": "Largest mean length over the reference, as 1.1 or 110%", "type": ["number", "string"],
                "minimum": 0, "maximum": 10, "pattern": r"^[0-9]+(\.[0-9]+)? ?%$"},
        "against": {"description": "requested (default) or baseline", "type": "string",
                    "enum": ["requested", "baseline"]},
    },
    bound=("min", "max"),
    needs="a result with its records",
)  # fmt: skip
def output_length(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    low, high = quantity.parse("share", settings.get("min", 0.0)), quantity.parse("share", settings.get("max", 10.0))
    against = settings.get("against", "requested")
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        columns, reason = columns_or_reason(loaded, point)
        if columns is None:
            yield Finding(Outcome.NO_DATA, reason, metric="output_length", scope=scope)
            continue
        if against == "requested":
            known = (columns.requested_tokens > 0) & (columns.output_tokens > 0)
            reference = float(columns.requested_tokens[known].mean()) if known.any() else 0.0
            mean = float(columns.output_tokens[known].mean()) if known.any() else 0.0
            nothing = "the records do not say how many tokens were asked for"
        else:
            mine = columns.output_tokens[columns.output_tokens > 0]
            mean = float(mine.mean()) if len(mine) else 0.0
            reference = _baseline_length(context, point)
            nothing = "no baseline has this load point with records"
        if reference <= 0:
            yield Finding(Outcome.NO_DATA, nothing, metric="output_length", scope=scope)
            continue
        ratio = mean / reference
        outcome = Outcome.PASS if low <= ratio <= high else Outcome.FAIL
        text = (
            f"answers have {mean:.1f} tokens on average, {ratio:.1%} of the {reference:.1f} {against}, required "
            f"{low:.0%} to {high:.0%}"
        )
        bound = low if ratio < 1 else high
        yield Finding(outcome, text, metric="output_length", measured=ratio, bound=bound, unit="share", scope=scope)


def _baseline_length(context: Context, point: LoadPoint) -> float:
    from sits.report.pairing import matching_point

    lengths = []
    for loaded in context.baselines:
        other = matching_point(point, loaded.result)
        columns = columns_or_reason(loaded, other)[0] if other else None
        if columns is not None and (columns.output_tokens > 0).any():
            lengths.append(float(columns.output_tokens[columns.output_tokens > 0].mean()))
    return float(np.mean(lengths)) if lengths else 0.0
