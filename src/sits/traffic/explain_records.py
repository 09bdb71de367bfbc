"""An explanation of an endpoint's run, where no event log exists.

The engine is a black box: the time per token as the client saw it stands beside the prediction, and what the
prediction does not explain is named as such. The server's own metrics page tells of a queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sits.errors import InputError
from sits.spec.records import RequestRecord
from sits.spec.result import LoadPoint
from sits.traffic.advice import suggest
from sits.traffic.capacity import roofline_points
from sits.traffic.explain_prediction import describe_step
from sits.traffic.explain_run import RunContext, context_notes
from sits.traffic.explanation import Explanation, Finding, Piece, SlowRequest, Tail, Waterfall
from sits.traffic.operators import Step
from sits.traffic.precision import StepPrecision
from sits.traffic.predict import predict_step


def explain_records(
    records: Sequence[RequestRecord], point: LoadPoint, context: RunContext, subject: str = "endpoint"
) -> Explanation:
    """Explain a run without an event log, from what the client saw. Raises ``InputError`` without token times."""
    good = [record for record in records if record.ok and record.phase == "measure" and record.point == point.index]
    gaps, contexts = [], []
    for record in good:
        tokens = record.output_tokens
        if len(record.chunk_times_ns) > 1 and tokens > 1:
            gaps.append((record.chunk_times_ns[-1] - record.chunk_times_ns[0]) / (tokens - 1) / 1e6)
            contexts.append((record.prompt_tokens or 0) + tokens // 2)
    if not gaps:
        raise InputError("no request of this load point has two tokens", "explain needs streamed answers")
    total = float(np.mean(gaps))
    batch = _mean_in_flight(good)
    step = Step.decode(batch, round(float(np.mean(contexts))), context.precision or StepPrecision(), context.devices)
    pieces = [Piece("client_gap", total, 0.0, None, "client")]
    findings = [Finding("black_box", "the target is a black box", "no event log and no shapes or card", 0.0)]
    limit = predicted_ms = None
    explanation = Explanation("measured", subject, "", "", describe_step(step))
    if context.shape is not None and context.card is not None:
        prediction = predict_step(context.shape, step, context.card, context.efficiency)
        limits, left = prediction.limit_pieces(), total
        pieces = []
        for name, ms in prediction.pieces().items():
            measured = min(ms, left)
            left -= measured
            if measured > 0:
                pieces.append(Piece(name, measured, limits.get(name, 0.0), ms, "model"))
        pieces.append(Piece("unattributed", left, 0.0, 0.0, "by subtraction", "engine, network, everything else"))
        limit, predicted_ms = prediction.limit_ms, prediction.step_ms
        explanation.basis = prediction.origin
        explanation.roofline = roofline_points(prediction, context.card)
        explanation.switches = suggest(context.shape, step, context.card, context.efficiency, (total, 0.0))
        findings = [
            Finding(
                "slower_than_predicted" if left > 0.2 * total else "as_predicted",
                "the endpoint is slower than this card's prediction" if left > 0.2 * total else
                "the endpoint is about as fast as predicted for this card",
                f"{total:.2f} ms per token at {batch} in flight; "
                f"{predicted_ms:.2f} predicted, {limit:.2f} at the roofline",
                left,
                "look at the server's own queue and step times; run it under sits serve for an event log",
            )
        ]  # fmt: skip
    queued = _server_queue(point)
    if queued is not None:
        # Little's law: requests waiting / output rate is what waiting adds to each output token
        pieces.append(Piece("queue", queued.cost_ms, 0.0, None, "server metrics"))
        total += queued.cost_ms
        findings.append(queued)
        findings.sort(key=lambda finding: -finding.cost_ms)
    explanation.model = context.shape.name if context.shape else "unknown shapes"
    explanation.card = context.card.name if context.card else "unknown card"
    explanation.waterfall = Waterfall(total, pieces, sum(r.output_tokens for r in good), limit, predicted_ms).sort()
    explanation.findings = findings
    explanation.tails = _record_tails(good)
    explanation.notes = [
        "no event log: phases inside the server are not visible",
        *context_notes(context, explanation.waterfall),
    ]
    return explanation


def _server_queue(point: LoadPoint) -> Finding | None:
    """Requests waiting inside the server, by its own metrics page; None without one or without a queue."""
    figure = point.metrics.get("throughput.output")
    waiting = point.server.get("queue_mean")
    if not isinstance(waiting, (int, float)) or waiting < 0.1 or figure is None or not figure.value:
        return None
    cost = 1e3 * waiting / figure.value
    running, most = point.server.get("running_mean"), point.server.get("running_max")
    full = point.server.get("kv_use_max")
    evidence = f"{waiting:.1f} requests waited on average"
    if isinstance(full, (int, float)) and full >= 0.9:
        return Finding(
            "kv_pool_full", "requests wait because the server's KV pool is full",
            f"{evidence}; KV use {full:.0%}", cost,
            "INT8 or FP8 KV, INT4 weights (room for KV), or more devices",
        )  # fmt: skip
    if isinstance(running, (int, float)) and isinstance(most, (int, float)) and most and running >= 0.9 * most:
        return Finding(
            "batch_capped", f"the server's running batch is capped at {most:.0f} while requests wait",
            f"{evidence} while {running:.1f} ran, never more than {most:.0f}", cost,
            f"raise the server's limit on running requests above {most:.0f}",
        )  # fmt: skip
    return Finding(
        "queueing", "requests wait inside the server", evidence, cost, "lower the offered load, or add devices"
    )


def _mean_in_flight(records: Sequence[RequestRecord]) -> int:
    """Mean number of requests that were decoding at once, from their own times."""
    spans = [
        (r.t_due + r.chunk_times_ns[0], r.t_due + r.chunk_times_ns[-1]) for r in records if len(r.chunk_times_ns) > 1
    ]
    busy = max(end for _, end in spans) - min(start for start, _ in spans)
    return max(1, round(sum(end - start for start, end in spans) / busy)) if busy > 0 else 1


def _record_tails(records: Sequence[RequestRecord]) -> list[Tail]:
    timed = [(record.chunk_times_ns[0] / 1e6, record) for record in records if record.chunk_times_ns]
    values = np.array([value for value, _ in timed])
    p50, p99 = (float(np.percentile(values, q, method="inverted_cdf")) for q in (50, 99))
    slow = sorted((pair for pair in timed if pair[0] >= p99), key=lambda pair: -pair[0])[:5]
    late = "client" if any((r.t_sent - r.t_due) / 1e6 > 0.5 * value for value, r in slow) else "server"
    rows = [
        SlowRequest(
            record.request_id, value, late,
            "it was sent late by the load generator" if late == "client" else "inside the server",
            {"sent_late": (record.t_sent - record.t_due) / 1e6},
        )
        for value, record in slow
    ]  # fmt: skip
    return [Tail("ttft", p50, p99, len(values), {}, rows)]
