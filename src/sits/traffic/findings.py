"""Named causes, ranked by what they cost one output token. The first one is the answer.

Each rule reads the waterfall and the run; each says what it saw. A rule fires on evidence, never on a guess: with
none, the answer is that the run is as fast as this card's memory lets it be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sits.traffic.cards import HardwareCard
from sits.traffic.execution_split import StepCost
from sits.traffic.explanation import Finding, Piece, Waterfall
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import kv_bytes_per_token
from sits.traffic.precision import StepPrecision
from sits.traffic.run_log import RunLog

_HEALTHY_KV_SHARE = 0.35  # of the read peak: below it the KV is not where it should be, or the kernel is poor
_LAUNCHES_PER_LAYER = 9.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the rules may look at besides the waterfall."""

    run: RunLog
    cost: StepCost | None = None
    shape: ModelShape | None = None
    precision: StepPrecision | None = None
    card: HardwareCard | None = None
    graphs: bool | None = None  # what the result says of CUDA graphs; None = unknown
    kv_use: float | None = None  # share of the KV pool in use, where the result has it
    budget: int | None = None  # tokens per step, where known


def find_causes(waterfall: Waterfall, facts: RunFacts) -> list[Finding]:
    """All findings, the costliest first; never empty."""
    pieces = {piece.name: piece for piece in waterfall.pieces}
    found = [
        _scheduler(pieces, waterfall),
        _kv(pieces, facts),
        _launches(pieces, facts),
        _queue(pieces, facts),
        _preemption(pieces, facts),
        _interference(pieces, facts),
        _left_out(pieces),
        _prepare(pieces),
    ]
    causes = [finding for finding in found if finding is not None and finding.cost_ms > 0.005 * waterfall.total_ms]
    causes.append(_near_limit(waterfall, pieces))
    return sorted(causes, key=lambda finding: -finding.cost_ms)


def _ms(piece: Piece | None) -> float:
    return (piece.measured_ms or 0.0) if piece else 0.0


def _scheduler(pieces: dict[str, Piece], waterfall: Waterfall) -> Finding | None:
    cost = _ms(pieces.get("scheduler"))
    if cost <= 0:
        return None
    return Finding(
        "scheduler",
        "the scheduler keeps the device waiting between steps",
        f"{cost:.3f} ms per token lie between the end of a step and the start of the next "
        f"({cost / waterfall.total_ms:.0%} of the token)",
        cost,
        "profile the scheduler (py-spy), move work off the engine thread, or overlap scheduling with execution",
    )


def _kv(pieces: dict[str, Piece], facts: RunFacts) -> Finding | None:
    piece = pieces.get("kv")
    if piece is None or facts.shape is None or facts.card is None or piece.how not in ("regression", "profiler"):
        return None
    gap = piece.gap_ms
    if facts.cost is None or facts.cost.per_context_ms <= 0:
        return None
    per_token = kv_bytes_per_token(facts.shape, facts.precision or StepPrecision())
    rate = per_token / (facts.cost.per_context_ms * 1e-3) / 1e9
    share = rate / facts.card.achievable_gbps
    if share >= _HEALTHY_KV_SHARE:
        return None
    host = facts.card.host_gbps
    if host and rate <= 1.3 * host:
        return Finding(
            "kv_in_host_memory",
            "the KV cache is read from host memory",
            f"each token of context costs {per_token / 1024:.0f} KiB and is read at {rate:.0f} GB/s: "
            f"the speed of the host link ({host:.0f} GB/s), not of memory ({facts.card.achievable_gbps:.0f} GB/s)",
            gap,
            "keep the KV of running requests in device memory: fewer running requests, INT8/FP8 KV, or a larger card",
        )
    return Finding(
        "kv_slow",
        "attention reads the KV cache far below the memory's speed",
        f"KV is read at {rate:.0f} GB/s, {share:.0%} of what a plain read reaches here",
        gap,
        "use a split-KV attention kernel and a block size that fits the context lengths",
    )


def _launches(pieces: dict[str, Piece], facts: RunFacts) -> Finding | None:
    piece = pieces.get("launches")
    if piece is None or facts.shape is None:
        return None
    cost = piece.gap_ms
    count = facts.shape.layers * _LAUNCHES_PER_LAYER
    each = cost / count * 1e3
    expected = piece.predicted_ms
    excess = cost - (expected or 0.0)
    if facts.graphs is False:
        return Finding(
            "graphs_off",
            "CUDA graphs are off: the device waits for the host to launch each kernel",
            f"{cost:.2f} ms per token are not explained by bytes or FLOPs, about {each:.1f} us per kernel",
            cost,
            "switch CUDA graphs on",
        )
    if expected is not None and excess > max(expected, 0.15 * cost) and facts.card and facts.card.vendor != "cpu":
        return Finding(
            "graphs_off",
            "the device waits between kernels as it does without CUDA graphs",
            f"{cost:.2f} ms per token are not explained by bytes or FLOPs (about {each:.1f} us per kernel; "
            f"{expected:.2f} ms would be normal on this card)",
            cost,
            "switch CUDA graphs on, or check why decode batches are not captured; confirm with a profiler trace",
        )
    cpu = facts.card is not None and facts.card.vendor == "cpu"
    return Finding(
        "operator_overhead" if cpu else "launch_gaps",
        "per-operator overhead, not bytes, limits this model here"
        if cpu
        else "launch ramps and tails between kernels",
        f"{cost:.2f} ms per token are left when bytes and FLOPs are accounted for, about {each:.1f} us per operator",
        cost,
        "a larger batch shares the overhead" if cpu else "fuse layers; a larger batch shares the overhead",
    )


def _queue(pieces: dict[str, Piece], facts: RunFacts) -> Finding | None:
    cost = _ms(pieces.get("queue"))
    if cost <= 0:
        return None
    waiting, cap, at_cap = _waiting_while_capped(facts.run)
    preempted = any(track.preempted for track in facts.run.requests.values())
    if waiting == 0:
        return None
    if preempted or (facts.kv_use is not None and facts.kv_use >= 0.9):
        return Finding(
            "kv_pool_full",
            "requests wait because the KV pool is full",
            f"{waiting} steps ran with requests waiting; "
            + ("running requests were preempted" if preempted else f"{facts.kv_use:.0%} of the pool was in use"),
            cost,
            "INT8 or FP8 KV, a KV tier, INT4 weights (room for KV), or more devices",
        )
    if at_cap >= 0.8:
        return Finding(
            "batch_capped",
            f"the running batch is capped at {cap} while requests wait",
            f"in {at_cap:.0%} of the {waiting} steps with a queue exactly {cap} requests ran, and none was preempted",
            cost,
            f"raise the limit on running requests above {cap}",
        )
    return Finding(
        "queueing",
        "requests wait for admission",
        f"{waiting} steps ran with requests waiting, at {cap} running at most",
        cost,
        "lower the offered load, or raise the token budget per step so that prompts enter sooner",
    )


def _waiting_while_capped(run: RunLog) -> tuple[int, int, float]:
    """(steps with a queue, the largest batch among them, the share of them that ran exactly that many)."""
    tracks = [track for track in run.requests.values() if track.first_scheduled_ns]
    arrived = np.sort(np.array([track.arrival_ns for track in tracks], dtype=np.int64))
    entered = np.sort(np.array([track.first_scheduled_ns for track in tracks], dtype=np.int64))
    decided = np.array([step.scheduled_ns or step.begin_ns for step in run.steps], dtype=np.int64)
    # waiting when a step was decided: came before it, and was not part of it
    waiting = np.searchsorted(arrived, decided, "left") - np.searchsorted(entered, decided, "right")
    sizes = Counter(len(step.members) for step, count in zip(run.steps, waiting) if count > 0)
    total = sum(sizes.values())
    if not total:
        return 0, 0, 0.0
    cap = max(sizes)
    return total, cap, sizes[cap] / total


def _preemption(pieces: dict[str, Piece], facts: RunFacts) -> Finding | None:
    cost = _ms(pieces.get("preemption"))
    count = sum(len(track.preempted) for track in facts.run.requests.values())
    if cost <= 0 or not count:
        return None
    return Finding(
        "preemption",
        "running requests lose their KV blocks and are recomputed",
        f"{count} preemptions; {cost:.2f} ms per output token went into waiting and recomputing",
        cost,
        "fewer running requests, INT8 or FP8 KV, or a KV tier to swap to instead of recomputing",
    )


def _interference(pieces: dict[str, Piece], facts: RunFacts) -> Finding | None:
    cost = _ms(pieces.get("prefill_interference"))
    mixed = [step for step in facts.run.steps if step.mixed and step.contexts]
    if cost <= 0 or not mixed:
        return None
    largest = max(sum(new for new, _ in step.prefill) for step in mixed)
    return Finding(
        "prefill_interference",
        "decode steps are stretched by other requests' prefill chunks",
        f"{len(mixed)} of {len(facts.run.steps)} steps carried a prefill chunk (up to {largest} tokens); "
        f"they cost decoding requests {cost:.2f} ms per token",
        cost,
        "smaller prefill chunks (token budget), at the price of a later first token",
    )


def _left_out(pieces: dict[str, Piece]) -> Finding | None:
    cost = _ms(pieces.get("not_scheduled"))
    if cost <= 0:
        return None
    return Finding(
        "budget_too_small",
        "running requests are left out of steps",
        f"{cost:.2f} ms per token passed in steps that did not include the request",
        cost,
        "raise the token budget per step",
    )


def _prepare(pieces: dict[str, Piece]) -> Finding | None:
    cost = _ms(pieces.get("prepare")) + _ms(pieces.get("host_to_device"))
    if cost <= 0:
        return None
    return Finding(
        "host_to_device",
        "preparing and copying the step's inputs holds up the device",
        f"{cost:.3f} ms per token between the decision and the start of the step, or in copies",
        cost,
        "pin the input buffers and keep them on the device between steps",
    )


def _near_limit(waterfall: Waterfall, pieces: dict[str, Piece]) -> Finding:
    memory = [pieces[name] for name in ("weights", "kv") if name in pieces]
    main = max(memory, key=_ms, default=None)
    limit = sum(piece.limit_ms for piece in memory)
    if main is None or not limit:
        return Finding("unsplit", "the step's execution time", "no shapes or no card: it cannot be split", 0.0)
    # what a slow KV costs beyond its prediction is that finding's, not this one's
    usual = sum(_ms(p) if p.predicted_ms is None else min(_ms(p), p.predicted_ms) for p in memory)
    gap = max(0.0, usual - limit)
    return Finding(
        "memory_bound",
        f"{main.label} at the memory's speed",
        f"{_ms(main):.2f} ms of {waterfall.total_ms:.2f} ms per token; "
        f"the roofline of weights and KV is {limit:.2f} ms",
        gap,
        "fewer bytes: INT4 or FP8 weights, INT8 or FP8 KV; or a larger batch to share the weights",
    )
