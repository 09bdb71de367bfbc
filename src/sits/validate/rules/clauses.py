"""P3197 (draft 4.2): the clauses of :mod:`sits.spec.clauses` as rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from sits.errors import InputError
from sits.report.loaded import LoadedResult
from sits.spec.clauses import PERCEPTION_LIMIT_US, WINDOW_LIMIT_MS, ClauseReport, Share
from sits.spec.columns import Samples
from sits.spec.intervals import Pool, Run
from sits.validate.context import Context
from sits.validate.rules.estimates import CONFIDENCE, DECIDE, Estimate, compare
from sits.validate.rules.model import Evaluate, Finding, Outcome, Settings, Severity, register

_NEEDS = "the event log of a run (events.jsonl.gz, written by the embedded engine)"
_COUNT = {"description": "Number of workers or replicas", "type": "integer", "minimum": 1}


def _each_log(
    context: Context, judge: Callable[[LoadedResult, ClauseReport], Iterable[Finding]]
) -> Iterable[Finding]:
    for loaded in context.results:
        scope = context.scope(loaded)
        try:
            report = loaded.clauses
        except InputError as error:
            yield Finding(Outcome.NO_DATA, str(error), scope=scope)
            continue
        if report is None:
            hint = "Run sits bench on the embedded engine with its event log on"
            yield Finding(Outcome.NO_DATA, "the run left no event log", scope=scope, hint=hint)
            continue
        if report.events == 0:
            yield Finding(Outcome.NO_DATA, "the event log is empty", scope=scope)
            continue
        for finding in judge(loaded, report):
            message = finding.message
            if report.dropped:
                message += f" ({report.dropped} older events had been dropped from the log)"
            yield finding.with_(
                message=message, scope=scope, evidence=str(loaded.file.parent / str(loaded.result.events_file))
            )


@register(
    "SITS-C020",
    "event-perception",
    Severity.CRITICAL,
    summary="P3197 4.2.3(b): the scheduler acts on an event within 150 us at p99.",
    why="A scheduler that looks rarely answers late: arrivals wait for the next poll, cancelled requests go on "
    "burning "
    "steps. The delay from an arrival, a cancel or the end of a step to the PERCEIVED event that names it as cause.",
    fix="Wake the scheduler by the event instead of by a timer; keep work that is not scheduling off its thread.",
    example="event-perception: true",
    parameters={
        "max_us": {"description": "Largest p99 in microseconds; the clause says 150", "type": "number", "minimum": 0},
        "decide": DECIDE,
        "confidence": CONFIDENCE,
    },
    statistics="Exact binomial order statistics on the delays, one-sided.",
    needs=_NEEDS,
)
def event_perception(context: Context, settings: Settings) -> Iterable[Finding]:
    limit = float(settings.get("max_us", PERCEPTION_LIMIT_US))
    confidence = settings.get("confidence", context.config.confidence)

    def judge(loaded: LoadedResult, report: ClauseReport) -> Iterable[Finding]:
        if report.unperceived:
            text = f"{report.unperceived} arrivals or cancels were never seen by the scheduler"
            yield Finding(Outcome.FAIL, text, metric="perception.missed", measured=report.unperceived, bound=0)
        delays = np.frombuffer(report.delays_us, dtype=np.float64)
        if len(delays) == 0:
            yield Finding(Outcome.NO_DATA, "the log has no PERCEIVED event with its cause", metric="perception.p99")
            return
        pool = Pool([Run(Samples.per_request(delays))])
        low, high = pool.bounds(0.99, confidence, float(len(pool)))
        found = Estimate(pool.quantile(0.99), low, high, len(pool), confidence, "", "A longer run would settle it")
        yield compare(
            found, limit, at_most=True, unit="us", metric="perception.p99", label="event perception p99",
            decide=settings.get("decide", "bound"), strict=False,
        )  # fmt: skip

    yield from _each_log(context, judge)


@register(
    "SITS-C021",
    "synchronisation-window",
    Severity.CRITICAL,
    summary="P3197 4.2.5(d): W = 3 x the largest round trip between workers stays within 2 ms.",
    why="Workers that act on one plan must hear of it within the window, or they act on different states.",
    fix="Look for one slow link or a worker that shares its core; the largest round trip decides.",
    example="synchronisation-window: true",
    parameters={
        "max_ms": {"description": "Largest window in ms; the clause says 2", "type": "number", "minimum": 0},
        "workers": _COUNT,
    },
    statistics="The largest of all round trips: no interval, every one counts.",
    needs=_NEEDS + " with ROUND_TRIP events when there are several workers",
)
def synchronisation_window(context: Context, settings: Settings) -> Iterable[Finding]:
    limit = float(settings.get("max_ms", WINDOW_LIMIT_MS))

    def judge(loaded: LoadedResult, report: ClauseReport) -> Iterable[Finding]:
        window = report.window_ms
        if window is None:
            # The embedded engine is one worker unless its log says otherwise.
            alone = 1 if loaded.result.target.kind == "embedded" else None
            workers = settings.get("workers", report.workers or alone)
            if workers == 1:
                yield Finding(Outcome.NOT_APPLICABLE, "one worker: there is no pair to synchronise")
            else:
                text = "the log has no round trip between workers"
                yield Finding(Outcome.NO_DATA, text, metric="window", hint="Set 'workers: 1' if there is only one")
            return
        outcome = Outcome.PASS if 0 <= window <= limit else Outcome.FAIL
        yield Finding(
            outcome,
            f"synchronisation window {window:.4g} ms (3 x the largest of {report.round_trips} round trips), "
            f"required <= {limit:g} ms",
            metric="window", measured=window, bound=limit, unit="ms", n=report.round_trips,
            margin=(limit - window) / limit if limit else None,
        )  # fmt: skip

    yield from _each_log(context, judge)


def _share(pick: Callable[[ClauseReport], Share], metric: str, label: str, nothing: str) -> Evaluate:
    def evaluate(context: Context, settings: Settings) -> Iterable[Finding]:
        limit = float(settings.get("min", 1.0))

        def judge(loaded: LoadedResult, report: ClauseReport) -> Iterable[Finding]:
            share = pick(report)
            value = share.value
            if value is None or not math.isfinite(value):
                yield Finding(Outcome.NO_DATA, nothing, metric=metric)
                return
            outcome = Outcome.PASS if value >= limit else Outcome.FAIL
            text = f"{label} {_exact(value)} ({share.right} of {share.total}), required >= {limit:g}"
            if share.first_wrong:
                text += f"; the first that breaks it: {share.first_wrong}"
            yield Finding(
                outcome, text, metric=metric, measured=value, bound=limit, n=share.total,
                margin=(value - limit) / limit if limit else None,
            )  # fmt: skip

        yield from _each_log(context, judge)

    return evaluate


def _exact(value: float) -> str:
    """Never round a share below one up to one."""
    return "1" if value == 1.0 else f"{min(value, 0.999999):.6f}"


_SHARES: tuple[tuple[str, str, str, str, str, str, str, Callable[[ClauseReport], Share], str, str], ...] = (
    (
        "SITS-C022", "temporal-consistency", "tc", "temporal consistency Tc",
        "P3197 Tc: times of consecutive events of one entity never go back.",
        "A log whose times jump cannot order anything: spans get negative lengths, and every figure computed from "
        "it is "
        "void. The usual cause is a wall clock that was set, or stamps taken on two machines.",
        "Use one monotonic clock; take the stamp when the event is recorded, not when its handling began.",
        lambda report: report.tc, "no entity has two events", "temporal-consistency: true",
    ),
    (
        "SITS-C023", "state-reachability", "rs", "state reachability Rs",
        "P3197 Rs: every admitted request and KV block reaches a terminal state by legal transitions.",
        "A request that never ends holds its blocks for ever; a block allocated twice holds two requests' keys. Both "
        "show in the log long before they show as wrong answers.",
        "The message names the first entity and event. Check the path that ends a request: cancel, error, time-out.",
        lambda report: report.rs, "no request was admitted", "state-reachability: true",
    ),
    (
        "SITS-C024", "causal-fidelity", "fcau", "causal fidelity Fcau",
        "P3197 Fcau: every effect is logged after its cause, in order and in time.",
        "A token that precedes its step, or a read before its restore, means that something was used before it "
        "was ready: "
        "the pattern behind silent KV corruption.",
        "The message names the first effect. Look for a missing fence or wait between the two events.",
        lambda report: report.fcau, "no event names a cause", "causal-fidelity: true",
    ),
)  # fmt: skip
for _id, _name, _metric, _label, _summary, _why, _fix, _pick, _nothing, _example in _SHARES:
    register(
        _id, _name, Severity.CRITICAL, summary=_summary, why=_why, fix=_fix, example=_example,
        parameters={"min": {"description": "Least share; the clause says 1", "type": "number", "minimum": 0,
                            "maximum": 1}},
        statistics="Every event counts: no sampling, no interval.", needs=_NEEDS,
    )(_share(_pick, _metric, _label, _nothing))  # fmt: skip
