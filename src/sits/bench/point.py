"""From the records of one load level to its :class:`sits.spec.result.LoadPoint`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from sits.bench.load import Load
from sits.bench.outcome import PointOutcome
from sits.spec.metrics import timeline_metrics
from sits.spec.records import OK, RequestRecord
from sits.spec.result import ClientHealth, LoadPoint, Status
from sits.spec.timeline import build_timeline, steady_window

_SHORT_STEADY = 0.5


def build_point(index: int, load: Load, outcome: PointOutcome, slo: Mapping[str, float], seed: int = 0) -> LoadPoint:
    """All figures and counts of a load level. Observers may add to the point afterwards."""
    measured = [record for record in outcome.records if record.phase == "measure"]
    timeline = build_timeline(measured)
    target = load.concurrency if load.mode == "closed" else None
    # Fewer requests than callers can never reach the target.
    reachable = min(target, len(measured)) if target else None
    steady = steady_window(timeline, reachable)
    point = LoadPoint(
        index=index,
        mode=load.mode,
        concurrency=load.concurrency,
        rate=load.arrivals.rate if load.arrivals else None,
        arrival=load.arrivals.process if load.arrivals else None,
        started_ns=timeline.origin_ns,
        duration_s=timeline.span.seconds,
        steady_start_s=steady.start,
        steady_end_s=steady.end,
        requests=request_counts(outcome.records),
        errors=dict(Counter(r.error_kind or r.status for r in measured if r.status in ("error", "timeout"))),
        tokens={
            "prompt": sum(r.prompt_tokens or 0 for r in measured if r.ok),
            "output": sum(r.output_tokens for r in measured if r.ok),
            "cached": sum(r.cached_tokens or 0 for r in measured if r.ok),
        },
        tokens_per_chunk=timeline.tokens_per_chunk(),
        metrics=timeline_metrics(timeline, steady, concurrency=reachable, slo=slo, seed=seed),
        convergence=[outcome.convergence],
        client=ClientHealth(slip_p99_ms=slip_p99_ms(measured)),
        notes=list(outcome.notes),
        status=point_status(outcome, measured),
    )
    if point.tokens_per_chunk > 1.05:
        point.notes.append(
            f"{point.tokens_per_chunk:.2f} tokens a chunk: gaps inside a chunk are its time shared evenly"
        )
    if measured and load.mode == "closed" and steady.seconds < _SHORT_STEADY * timeline.span.seconds:
        point.notes.append(f"steady for {steady.seconds:.1f} s of {timeline.span.seconds:.1f} s: measure longer")
    short = sum(
        1 for r in measured if r.ok and r.requested_output_tokens and r.output_tokens < r.requested_output_tokens
    )
    if short:
        point.notes.append(f"{short} of {len(measured)} answers were shorter than asked for")
    failed = point.requests["error"] + point.requests["timeout"]
    if failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(point.errors.items()))
        point.notes.append(f"{failed} of {len(measured)} requests failed: {kinds}")
    return point


def request_counts(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Measured requests by status, and those of other phases as ``warmup`` and ``cooldown``."""
    measured = Counter(record.status for record in records if record.phase == "measure")
    others = Counter(record.phase for record in records if record.phase != "measure")
    counts = {"sent": sum(measured.values())}
    counts |= {status: measured.get(status, 0) for status in ("ok", "error", "timeout", "cancelled")}
    return counts | {"warmup": others.get("warmup", 0), "cooldown": others.get("cooldown", 0)}


def slip_p99_ms(records: Sequence[RequestRecord]) -> float | None:
    """99th percentile of ``t_sent - t_due``: how late the load generator was."""
    if not records:
        return None
    late = np.sort(np.array([record.t_sent - record.t_due for record in records], dtype=np.float64))
    return float(late[min(len(late) - 1, int(np.ceil(0.99 * len(late))) - 1)] / 1e6)


def point_status(outcome: PointOutcome, measured: Sequence[RequestRecord]) -> Status:
    """Partial beats no data beats not converged beats complete."""
    if outcome.partial:
        return "partial"
    if not any(record.status == OK and record.chunk_times_ns for record in measured):
        return "no_data"
    return "not_converged" if outcome.convergence.status == "not_converged" else "complete"
