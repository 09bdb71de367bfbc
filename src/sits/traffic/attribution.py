"""Where one output token's time went: every nanosecond from a request's arrival to its last token, by phase.

Walks the engine's time segments once per token gap, so the pieces sum to what was measured by construction. The
execution part is then split by :mod:`sits.traffic.execution_split`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sits.traffic.cards import HardwareCard
from sits.traffic.execution_split import StepCost, fit_step_cost, split_execution
from sits.traffic.explanation import Piece, Waterfall
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import Step
from sits.traffic.precision import StepPrecision
from sits.traffic.predict import Efficiency, StepPrediction, predict_step
from sits.traffic.run_log import EXECUTE, IDLE, PREPARE, SCHEDULER, RequestTrack, RunLog, StepRecord

_SAMPLED_STEPS = 48  # predictions are linear in the context sum, so a sample of the steps is enough


@dataclass(slots=True)
class TokenAccount:
    """Summed ns by phase over all tokens looked at, and the steps behind the decode part (with multiplicity)."""

    phases: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    decode_steps: dict[int, int] = field(default_factory=dict)  # step index -> decode tokens it gave

    def add(self, phase: str, ns: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + ns


def phases_between(
    run: RunLog, track: RequestTrack, start_ns: int, end_ns: int, cost: StepCost | None = None
) -> dict[str, float]:
    """Ns by phase of one request between two moments of its life."""
    found: dict[str, float] = {}

    def add(phase: str, ns: float) -> None:
        found[phase] = found.get(phase, 0.0) + ns

    first = track.first_scheduled_ns or end_ns
    covered = 0
    if start_ns < first:
        waited = min(end_ns, first) - start_ns
        add("queue", waited)
        covered += waited
        start_ns = min(end_ns, first)
    for segment, shared in run.overlapping(start_ns, end_ns):
        covered += shared
        middle = max(segment.start_ns, start_ns)
        if _preempted(track, middle):
            add("preemption", shared)
        elif segment.label == SCHEDULER:
            add("scheduler", shared)
        elif segment.label == PREPARE:
            add("prepare", shared)
        elif segment.label == IDLE:
            add("unattributed", shared)
        elif segment.label == EXECUTE:
            step = run.steps[segment.step]
            if track.name not in step.members:
                early = step.scheduled_ns < track.first_scheduled_ns  # decided before it could be part of it
                add("queue" if early else "not_scheduled", shared)
            elif not track.token_ns or middle < track.token_ns[0]:
                add("prefill", shared)
            else:
                interference = _interference_share(step, cost)
                add("prefill_interference", shared * interference)
                add("decode", shared * (1 - interference))
    rest = sum(found.values())
    total = covered if covered > rest else rest
    wanted = end_ns - start_ns + found.get("queue", 0.0)
    if wanted - total > 0:
        add("unattributed", wanted - total)
    return {phase: ns for phase, ns in found.items() if ns > 0}


def _preempted(track: RequestTrack, at_ns: int) -> bool:
    """From the moment its blocks were taken until its next token: waiting and recomputing."""
    for taken, _ in track.preempted:
        if at_ns >= taken:
            after = next((time for time in track.token_ns if time > taken), None)
            if after is None or at_ns < after:
                return True
    return False


def _interference_share(step: StepRecord, cost: StepCost | None) -> float:
    """Share of a mixed step's execution that decode-only steps of this batch would not have taken."""
    if not step.mixed or step.execute_ms <= 0:
        return 0.0
    if cost is None:
        tokens = len(step.contexts) + sum(new for new, _ in step.prefill)
        return 1.0 - len(step.contexts) / tokens
    expected = cost.expected(len(step.contexts), float(sum(step.contexts)))
    return min(1.0, max(0.0, 1.0 - expected / step.execute_ms))


def account_tokens(run: RunLog, cost: StepCost | None) -> TokenAccount:
    """Decode tokens (from the second on) of all requests: their gaps, by phase; queueing of each request on top."""
    account = TokenAccount()
    ends = {step.end_ns: index for index, step in enumerate(run.steps)}
    order = sorted(ends)
    for track in run.requests.values():
        if not track.token_ns:
            continue
        account.tokens += len(track.token_ns)
        account.add("queue", max(0, (track.first_scheduled_ns or track.token_ns[0]) - track.arrival_ns))
        for before, after in zip(track.token_ns, track.token_ns[1:]):
            for phase, ns in phases_between(run, track, before, after, cost).items():
                account.add(phase, ns)
            step = _last_before(order, after)
            if step is not None:
                index = ends[step]
                account.decode_steps[index] = account.decode_steps.get(index, 0) + 1
    return account


def _last_before(order: Sequence[int], at_ns: int) -> int | None:
    import bisect

    index = bisect.bisect_right(order, at_ns) - 1
    return order[index] if index >= 0 else None


def predictions_of(
    run: RunLog, weights: dict[int, int], shape: ModelShape, precision: StepPrecision, card: HardwareCard,
    efficiency: Efficiency | None, devices: int = 1,
) -> list[tuple[StepPrediction, int]]:  # fmt: skip
    """Predictions of a sample of the run's decode parts, each with the tokens it stands for."""
    indices = sorted(weights)
    stride = max(1, len(indices) // _SAMPLED_STEPS)
    found = []
    for index in indices[::stride]:
        contexts = tuple(run.steps[index].contexts)
        if contexts:
            step = Step(contexts, (), precision, devices)
            found.append((predict_step(shape, step, card, efficiency), weights[index]))
    return found


def mean_pieces(predictions: Sequence[tuple[StepPrediction, int]], limit: bool) -> dict[str, float]:
    """Token-weighted mean of the predicted (or roofline) pieces, in ms."""
    total = sum(weight for _, weight in predictions)
    found: dict[str, float] = {}
    for prediction, weight in predictions:
        for name, ms in (prediction.limit_pieces() if limit else prediction.pieces()).items():
            found[name] = found.get(name, 0.0) + ms * weight / total
    return found


def decode_waterfall(
    run: RunLog,
    shape: ModelShape | None = None,
    precision: StepPrecision | None = None,
    card: HardwareCard | None = None,
    efficiency: Efficiency | None = None,
    profile: dict[str, float] | None = None,
    devices: int = 1,
) -> Waterfall:
    """The waterfall of one output token, queueing included, measured beside the roofline.

    The total is (time between a request's tokens + its time in the queue) / output tokens. Without shapes or a card
    the execution stays one piece. Raises nothing for a run without decode tokens: the total is then 0.
    """
    cost = fit_step_cost(run.steps)
    account = account_tokens(run, cost)
    tokens = max(1, account.tokens)
    phases = {name: ns / tokens / 1e6 for name, ns in account.phases.items()}
    total = sum(phases.values())
    decode = phases.pop("decode", 0.0)
    decode_tokens = max(1, sum(account.decode_steps.values()))
    share = decode_tokens / tokens  # per output token: first tokens come from prefill
    kv_ms = None
    if cost is not None and cost.context_trusted:
        context = sum(sum(run.steps[i].contexts) * n for i, n in account.decode_steps.items()) / decode_tokens
        kv_ms = cost.per_context_ms * context * share
    predicted: dict[str, float] | None = None
    limits: dict[str, float] = {}
    if shape is not None and card is not None and account.decode_steps:
        rows = predictions_of(
            run, account.decode_steps, shape, precision or StepPrecision(), card, efficiency, devices
        )
        if rows:
            predicted = {name: ms * share for name, ms in mean_pieces(rows, limit=False).items()}
            limits = {name: ms * share for name, ms in mean_pieces(rows, limit=True).items()}
    pieces, how = split_execution(decode, kv_ms, predicted, profile)
    found = [
        Piece(name, ms, limits.get(name, 0.0), predicted.get(name) if predicted else None, how.get(name, ""))
        for name, ms in pieces.items()
        if ms > 0 or limits.get(name)
    ]
    for piece in found:
        if piece.name != "launches":
            continue
        if predicted is not None:  # the log shows the step's fixed cost inside its execution
            piece.predicted_ms = predicted.get("launches", 0.0) + predicted.get("step_overhead", 0.0)
        if piece.how == "by subtraction":
            piece.detail = "whatever bytes and FLOPs do not explain"
        if card is not None and card.vendor in ("cpu", "arm"):
            piece.title = "operator overhead (dispatch, threads, Python)"
    for name, ms in phases.items():
        found.append(Piece(name, ms, 0.0, None, "event log"))
    return Waterfall(
        total,
        found,
        account.tokens,
        sum(limits.values()) if limits else None,
        sum(predicted.values()) if predicted else None,
    ).sort()
