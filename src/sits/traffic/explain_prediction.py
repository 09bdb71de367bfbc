"""An explanation without a run: the predicted waterfall and scorecard of a step on a card."""

from __future__ import annotations

from collections.abc import Mapping

from sits.traffic.advice import suggest
from sits.traffic.capacity import meets_slo, roofline_points, scorecard
from sits.traffic.cards import HardwareCard
from sits.traffic.explanation import Explanation, Finding, Piece, Waterfall
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import Step
from sits.traffic.predict import Efficiency, StepPrediction, predict_step


def predicted_waterfall(prediction: StepPrediction) -> Waterfall:
    """The pieces of a predicted decode step; they sum to the step."""
    limits = prediction.limit_pieces()
    pieces = [
        Piece(name, None, limits.get(name, 0.0), ms, "model")
        for name, ms in prediction.pieces().items()
        if ms > 0 or limits.get(name, 0.0) > 0
    ]
    return Waterfall(prediction.step_ms, pieces, 0, prediction.limit_ms, prediction.step_ms).sort()


def explain_prediction(
    shape: ModelShape,
    step: Step,
    card: HardwareCard,
    prompt: int = 512,
    slo: Mapping[str, float] | None = None,
    graphs: bool = True,
    efficiency: Efficiency | None = None,
) -> Explanation:
    """Predict ``step`` on ``card``: waterfall, scorecard, switches, and with ``slo`` which set-ups meet it."""
    prediction = predict_step(shape, step, card, efficiency, graphs)
    waterfall = predicted_waterfall(prediction)
    context = max(step.contexts, default=0)
    board = scorecard(shape, step, card, prompt, efficiency)
    notes = [card.uncertain] if card.uncertain else []
    if shape.experts:
        notes.append("experts touched are the expected number under uniform routing; real routing is uneven")
    if not board["fits"]:
        notes.append(
            f"needs {board['memory_gb']:.0f} GB per device, the card has {card.memory_gb:.0f}: it does not fit"
        )
    top = waterfall.pieces[0]
    return Explanation(
        kind="predicted",
        subject=f"{shape.name} on {card.name}",
        model=shape.name,
        card=card.name,
        step=describe_step(step, prompt, graphs),
        waterfall=waterfall,
        findings=[
            Finding(
                top.name,
                f"largest gap to the limit: {top.label}",
                f"{top.predicted_ms or 0.0:.2f} ms predicted, {top.limit_ms:.2f} ms at the roofline",
                top.gap_ms,
            )
        ],
        switches=suggest(shape, step, card, efficiency, graphs=graphs),
        capacity=meets_slo(
            shape, card, slo, max(context, prompt), prompt, kv=step.precision.kv, efficiency=efficiency
        )
        if slo
        else [],
        scorecard=board,
        roofline=roofline_points(prediction, card),
        notes=notes,
        basis=prediction.origin,
    )


def describe_step(step: Step, prompt: int | None = None, graphs: bool | None = None) -> dict[str, object]:
    """What was predicted, as plain values."""
    contexts = step.contexts
    return {
        "batch": len(contexts),
        "context": round(sum(contexts) / len(contexts)) if contexts else 0,
        "weights": step.precision.weights,
        "kv": step.precision.kv,
        "devices": step.devices,
        "prompt": prompt,
        "graphs": graphs,
    }
