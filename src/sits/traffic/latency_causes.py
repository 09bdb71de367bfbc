"""Behind a percentile: which requests, which phase, which cause. For the time to first token and for token gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sits.traffic.attribution import phases_between
from sits.traffic.execution_split import StepCost
from sits.traffic.explanation import LABELS, SlowRequest, Tail
from sits.traffic.run_log import RequestTrack, RunLog

_SHOWN = 5

_CAUSES = {
    "queue": "it waited for a place in the running batch",
    "prefill": "its own prompt was being computed",
    "prefill_interference": "another request's prefill chunk shared its step",
    "preemption": "its KV blocks were taken and it was recomputed",
    "not_scheduled": "the step's token budget left it out",
    "scheduler": "the engine was between steps",
    "prepare": "the step's inputs were being prepared",
    "decode": "the decode step itself was slow",
    "unattributed": "no engine event explains it",
}


def first_token_tail(run: RunLog, cost: StepCost | None) -> Tail | None:
    """TTFT from arrival to the first token. None when no request got one."""
    tracks = [track for track in run.requests.values() if track.token_ns]
    values = [(track.token_ns[0] - track.arrival_ns) / 1e6 for track in tracks]
    spans = [(track, track.arrival_ns, track.token_ns[0]) for track in tracks]
    return _tail("ttft", run, spans, values, cost)


def token_gap_tail(run: RunLog, cost: StepCost | None) -> Tail | None:
    """Gaps between the tokens of a request. None when no request got two."""
    spans = [
        (track, before, after)
        for track in run.requests.values()
        for before, after in zip(track.token_ns, track.token_ns[1:])
    ]
    return _tail("itl", run, spans, [(after - before) / 1e6 for _, before, after in spans], cost)


def _tail(
    metric: str, run: RunLog, spans: Sequence[tuple[RequestTrack, int, int]], values: Sequence[float],
    cost: StepCost | None,
) -> Tail | None:  # fmt: skip
    if not values:
        return None
    array = np.array(values)
    p50, p99 = (float(np.percentile(array, q, method="inverted_cdf")) for q in (50, 99))
    slow = np.flatnonzero(array >= p99)
    slow = slow[np.argsort(-array[slow])]
    shares: dict[str, float] = {}
    rows: list[SlowRequest] = []
    for index in slow[:200]:  # enough for the shares; the worst few are shown
        track, start, end = spans[index]
        phases = {name: ns / 1e6 for name, ns in phases_between(run, track, start, end, cost).items()}
        for name, ms in phases.items():
            shares[name] = shares.get(name, 0.0) + ms
        main = max(phases, key=lambda name: phases[name]) if phases else "unattributed"
        if len(rows) < _SHOWN:
            rows.append(SlowRequest(track.name, float(array[index]), main, _CAUSES.get(main, main), phases))
    total = sum(shares.values()) or 1.0
    ordered = dict(sorted(((name, ms / total) for name, ms in shares.items()), key=lambda item: -item[1]))
    return Tail(metric, p50, p99, len(values), ordered, rows)


def phase_label(name: str) -> str:
    """A phase as a person reads it."""
    return "decode step" if name == "decode" else LABELS.get(name, name)
