"""An explanation of a run: from its result, its event log (where the engine was ours) and a profiler trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sits.errors import InputError
from sits.spec.events import Event
from sits.spec.result import LoadPoint, Result
from sits.traffic.advice import suggest, switched_execution, vision_switch
from sits.traffic.attribution import decode_waterfall
from sits.traffic.capacity import roofline_points
from sits.traffic.cards import HardwareCard
from sits.traffic.execution_split import PIECES, fit_step_cost
from sits.traffic.explain_prediction import describe_step
from sits.traffic.explanation import Explanation, Switch, Waterfall
from sits.traffic.findings import RunFacts, find_causes
from sits.traffic.latency_causes import first_token_tail, token_gap_tail
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import Step
from sits.traffic.precision import StepPrecision
from sits.traffic.predict import Efficiency, predict_step
from sits.traffic.run_log import RunLog, read_run

RATIOS = ("mabu.required", "mabu.observed", "traffic_efficiency", "energy_per_token")


@dataclass(frozen=True, slots=True)
class RunContext:
    """What is known of the run besides its records; each part may be None."""

    shape: ModelShape | None = None
    card: HardwareCard | None = None
    precision: StepPrecision | None = None
    efficiency: Efficiency | None = None
    devices: int = 1
    graphs: bool | None = None
    chunk: int | None = None
    vision_tokens: int = 0  # per prompt
    kv_blocks: int | None = None  # size of the engine's KV pool


def precision_of(card: dict[str, Any]) -> StepPrecision:
    """Weights, KV and activation types as a model card states them; 16 bits where it is silent.

    Of several weight precisions the most common one stands for all.
    """
    activations = _known(card.get("dtype") or card.get("activation_dtype")) or "bf16"
    linears = card.get("linear_precisions")  # {precision: how many linears}
    stored = max(linears, key=lambda name: linears[name]) if isinstance(linears, dict) and linears else None
    weights = _known(card.get("precision") or card.get("quantization") or stored) or activations
    kv = _known(card.get("kv_dtype") or card.get("kv_cache_dtype")) or activations
    head = _known(card.get("head_precision"))
    return StepPrecision(weights, kv if kv in ("fp8", "int8", "fp32", "bf16") else activations, activations, head)


def _known(value: Any) -> str | None:
    from sits.traffic.precision import weight_bytes

    if not isinstance(value, str) or value in ("auto", "none", ""):
        return None
    name = value.removeprefix("torch.").lower()
    name = {"float32": "fp32", "float16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "dense": ""}.get(name, name)
    try:
        weight_bytes(name)
    except InputError:
        return None
    return name


def choose_point(result: Result, index: int | None) -> LoadPoint:
    """The asked load point, else the knee, else the one with the most requests."""
    if not result.points:
        raise InputError("the result has no load point", "Run sits bench again")
    if index is not None:
        for point in result.points:
            if point.index == index:
                return point
        raise InputError(
            f"the result has no load point {index}",
            "It has " + ", ".join(str(point.index) for point in result.points),
        )
    if result.knee is not None:
        for point in result.points:
            if point.index == result.knee:
                return point
    return max(result.points, key=lambda point: point.requests.get("ok", 0))


def explain_events(
    events: Iterable[Event],
    context: RunContext,
    subject: str = "run",
    window: tuple[int, int] | None = None,
    profile: dict[str, float] | None = None,
    kv_use: float | None = None,
    only: Collection[str] | None = None,
) -> Explanation:
    """Explain a run from its event log. ``window`` (monotonic ns) keeps requests that arrived inside it, ``only``
    those of these names (the measured ones, without warm-up and fillers).
    """
    run = read_run(events, *(window or (0, None)))
    if only is not None and not set(only).isdisjoint(run.requests):
        run.requests = {name: track for name, track in run.requests.items() if name in only}
    if not any(track.token_ns for track in run.requests.values()):
        raise InputError("no request of the load point is in the event log", "The log's ring may have been too small")
    waterfall = decode_waterfall(
        run, context.shape, context.precision, context.card, context.efficiency, profile, context.devices
    )
    cost = fit_step_cost(run.steps)
    if kv_use is None and context.kv_blocks and run.most_blocks:
        kv_use = run.most_blocks / context.kv_blocks
    facts = RunFacts(run, cost, context.shape, context.precision, context.card, context.graphs, kv_use)
    explanation = Explanation(
        kind="measured",
        subject=subject,
        model=context.shape.name if context.shape else "unknown shapes",
        card=context.card.name if context.card else "unknown card",
        waterfall=waterfall,
        findings=find_causes(waterfall, facts),
        tails=[tail for tail in (first_token_tail(run, cost), token_gap_tail(run, cost)) if tail is not None],
        notes=context_notes(context, waterfall),
    )
    step = mean_step(run, context)
    if step is not None:
        explanation.step = describe_step(step, None, context.graphs)
        if context.shape is not None and context.card is not None:
            prediction = predict_step(
                context.shape, step, context.card, context.efficiency, context.graphs is not False
            )
            explanation.basis = prediction.origin
            explanation.roofline = roofline_points(prediction, context.card)
            explanation.switches = suggest(
                context.shape, step, context.card, context.efficiency,
                (_execution_time(waterfall), _step_time(waterfall) - _execution_time(waterfall)), waterfall,
                context.graphs is not False, context.chunk,
            )  # fmt: skip
    first = next((tail for tail in explanation.tails if tail.metric == "ttft"), None)
    prompts = [track.prompt_tokens for track in run.requests.values() if track.prompt_tokens]
    if context.vision_tokens and first is not None and prompts:
        share = min(1.0, context.vision_tokens / float(np.mean(prompts)))
        explanation.switches.append(vision_switch(first, share))
    return explanation


_WAITING = ("queue", "preemption", "not_scheduled")
_EXECUTION = (*PIECES, "execution", "step_overhead")  # what a change of bytes or FLOPs can change


def _step_time(waterfall: Waterfall) -> float:
    """The part of a token's time that belongs to steps, without waiting."""
    return sum(piece.measured_ms or 0.0 for piece in waterfall.pieces if piece.name not in _WAITING)


def _execution_time(waterfall: Waterfall) -> float:
    """The part of it that the decode step's own work takes."""
    return sum(piece.measured_ms or 0.0 for piece in waterfall.pieces if piece.name in _EXECUTION)


def mean_step(run: RunLog, context: RunContext) -> Step | None:
    """A decode step of the run's usual size: the median batch, each with the mean context."""
    rows = [step.contexts for step in run.steps if step.contexts]
    if not rows:
        return None
    batch = int(np.median([len(contexts) for contexts in rows]))
    mean = round(sum(map(sum, rows)) / sum(map(len, rows)))
    return Step.decode(max(1, batch), mean, context.precision or StepPrecision(), context.devices)


def context_notes(context: RunContext, waterfall: Waterfall) -> list[str]:
    notes = []
    if context.shape is None:
        notes.append("the model card has no shapes: give --model for the roofline")
    if context.card is None:
        notes.append("the device is not in the card table: give --gpu (or --bandwidth) for the roofline")
    elif context.card.uncertain:
        notes.append(context.card.uncertain)
    share = next((p.measured_ms or 0.0 for p in waterfall.pieces if p.name == "unattributed"), 0.0)
    if waterfall.total_ms and share > 0.02 * waterfall.total_ms:
        notes.append(f"{share / waterfall.total_ms:.0%} of the time could not be attributed")
    return notes


def add_engine_estimate(explanation: Explanation, gbps: float, source: str, card: HardwareCard | None) -> None:
    """MABU from the endpoint's own estimate of required bytes per GPU, where the run has none of its own."""
    if explanation.ratios.get("mabu.required", {}).get("value") is None:
        value = gbps / card.bandwidth_gbps if card is not None else None
        reason = f"{source}: {gbps:.0f} GB/s per GPU required" + ("" if card else "; give --gpu for its peak")
        explanation.ratios["mabu.required"] = {"value": value, "unit": "ratio", "reason": reason}


def add_ratios(explanation: Explanation, point: LoadPoint) -> None:
    """Copy the three ratios and energy of a load point: required/peak, observed/peak, required/observed."""
    for name in RATIOS:
        figure = point.metrics.get(name)
        if figure is not None:
            explanation.ratios[name] = {"value": figure.value, "unit": figure.unit, "reason": figure.reason}


def compare_after(
    before: Explanation, after: Explanation, changed: str, predicted: tuple[float, float] | None
) -> None:  # fmt: skip
    """Add to ``before`` the switch that a second run had on: predicted beside achieved.

    ``predicted`` is (step before, step after) of the model, see :func:`what_changed`.
    """
    if before.waterfall is None or after.waterfall is None:
        return
    start, end = _step_time(before.waterfall), _step_time(after.waterfall)
    execution = _execution_time(before.waterfall)
    expected = start - execution + switched_execution(execution, *predicted) if predicted else end
    done = Switch(
        "applied", changed, "second run", start, expected, "measured",
        basis="predicted beside achieved" if predicted else "achieved only", achieved_ms=end,
    )  # fmt: skip
    before.switches.insert(0, done)


def what_changed(
    before: RunContext, after: RunContext, step: Step | None
) -> tuple[str, tuple[float, float] | None]:  # fmt: skip
    """(the differences in words, predicted step times before and after in ms) of two runs' set-ups."""
    changes = []
    if before.precision and after.precision:
        for name in ("weights", "kv", "activations"):
            old, new = getattr(before.precision, name), getattr(after.precision, name)
            if old != new:
                changes.append(f"{name} {old} -> {new}")
    if before.devices != after.devices:
        changes.append(f"devices {before.devices} -> {after.devices}")
    if before.graphs != after.graphs and None not in (before.graphs, after.graphs):
        changes.append(f"graphs {'on' if after.graphs else 'off'}")
    predicted = None
    if step is not None and before.shape is not None and before.card is not None and changes:
        first = predict_step(before.shape, step, before.card, before.efficiency, before.graphs is not False)
        second_step = dataclasses.replace(step, precision=after.precision or step.precision, devices=after.devices)
        second = predict_step(before.shape, second_step, before.card, before.efficiency, after.graphs is not False)
        predicted = (first.step_ms, second.step_ms)
    return ", ".join(changes) or "nothing the model card shows", predicted
