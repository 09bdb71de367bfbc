"""Predicted scorecards: what a card should do with a model, and whether it meets an SLO with which precision.

Everything here is a prediction and says so. TTFT is the prefill of one prompt with nothing queued, in chunks; ITL is
a decode step at the stated batch; tails and queueing are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sits.traffic.cards import HardwareCard
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import Step, memory_needed_gb, step_traffic
from sits.traffic.precision import StepPrecision
from sits.traffic.predict import Efficiency, StepPrediction, predict_step

_CHUNK = 8192
_DEVICES = (1, 2, 4, 8)


def prefill_ms(
    shape: ModelShape, prompt: int, precision: StepPrecision, card: HardwareCard,
    efficiency: Efficiency | None = None, devices: int = 1, chunk: int = _CHUNK,
) -> float:  # fmt: skip
    """Time to compute one prompt alone, in chunks of ``chunk`` tokens."""
    total, done = 0.0, 0
    while done < prompt:
        new = min(chunk, prompt - done)
        total += predict_step(shape, Step((), ((new, done),), precision, devices), card, efficiency).step_ms
        done += new
    return total


def scorecard(
    shape: ModelShape, step: Step, card: HardwareCard, prompt: int, efficiency: Efficiency | None = None
) -> dict[str, Any]:
    """TTFT, ITL, throughput, MABU and memory of one load level, predicted, with the limit beside each."""
    prediction = predict_step(shape, step, card, efficiency)
    traffic = step_traffic(shape, step)
    batch = len(step.contexts)
    seconds = prediction.step_ms / 1e3
    required = traffic.bytes / seconds / 1e9
    ttft = prefill_ms(shape, prompt, step.precision, card, efficiency, step.devices)
    needed = memory_needed_gb(shape, step.precision, float(sum(step.contexts)), step.devices)
    return {
        "itl_ms": prediction.step_ms,
        "itl_limit_ms": prediction.limit_ms,
        "ttft_ms": ttft,
        "tokens_per_s": batch / seconds,
        "tokens_per_s_limit": batch / (prediction.limit_ms / 1e3),
        "required_gb_per_step": traffic.bytes / 1e9,
        "mabu_required": required / card.bandwidth_gbps,
        "required_of_achievable": required / card.achievable_gbps,
        "flops_per_step": traffic.flops,
        "memory_gb": needed,
        "fits": needed <= card.memory_gb,
        "basis": prediction.origin,
    }


def roofline_points(prediction: StepPrediction, card: HardwareCard) -> list[dict[str, Any]]:
    """One point per operator: intensity in FLOP per byte, reached and possible TFLOP/s. For the roofline plot."""
    found = []
    for row in prediction.rows:
        operator = row.operator
        if operator.bytes <= 0 or operator.flops <= 0:
            continue
        found.append(
            {
                "operator": operator.name,
                "intensity": operator.flops / operator.bytes,
                "limit_tflops": operator.flops / row.limit_ms / 1e9,
                "predicted_tflops": operator.flops / (row.predicted_ms + row.launch_ms) / 1e9,
                "share": (row.predicted_ms + row.launch_ms) / prediction.step_ms,
            }
        )
    return found


def _largest_batch(
    shape: ModelShape, context: int, precision: StepPrecision, card: HardwareCard, devices: int, itl_ms: float | None,
    efficiency: Efficiency | None,
) -> tuple[int, float]:  # fmt: skip
    """The most sequences that fit in memory and keep the step within ``itl_ms``; (0, step of one) when none does."""

    def step_ms(batch: int) -> float:
        return predict_step(shape, Step.decode(batch, context, precision, devices), card, efficiency).step_ms

    def good(batch: int) -> bool:
        if memory_needed_gb(shape, precision, float(batch * context), devices) > card.memory_gb:
            return False
        return itl_ms is None or step_ms(batch) <= itl_ms

    if not good(1):
        return 0, step_ms(1)
    low, high = 1, 2
    while high <= 1024 and good(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low, step_ms(low)


def meets_slo(
    shape: ModelShape,
    card: HardwareCard,
    slo: Mapping[str, float],
    context: int,
    prompt: int,
    precisions: Sequence[str] = ("bf16", "fp8", "int4-g32"),
    kv: str = "bf16",
    efficiency: Efficiency | None = None,
) -> list[dict[str, Any]]:
    """One row per precision and number of GPUs: does it fit, does it meet the SLO, with how many sequences.

    ``slo`` has ``ttft_ms``, ``itl_ms``, ``tpot_ms``, ``e2e_ms`` in ms. Rows are ordered: those that meet it first,
    fewest GPUs, then most tokens/s.
    """
    limits = [value for key, value in slo.items() if key in ("itl_ms", "tpot_ms")]
    itl_limit = min(limits) if limits else None
    rows = []
    for name in precisions:
        if name == "fp8" and "fp8" not in card.tflops:
            continue
        for devices in _DEVICES:
            if shape.heads % devices or (devices > 1 and card.link_gbps <= 0):
                continue
            precision = StepPrecision(name, kv)
            fits = memory_needed_gb(shape, precision, float(context), devices) <= card.memory_gb
            ttft = prefill_ms(shape, prompt, precision, card, efficiency, devices)
            batch, itl = _largest_batch(shape, context, precision, card, devices, itl_limit, efficiency)
            ttft_ok = ttft <= slo.get("ttft_ms", math.inf)
            end_to_end = ttft + itl * max(0, context - prompt)
            e2e_ok = end_to_end <= slo.get("e2e_ms", math.inf)
            rows.append(
                {
                    "precision": name, "devices": devices, "fits": fits, "ttft_ms": ttft, "itl_ms": itl,
                    "batch": batch, "tokens_per_s": batch / itl * 1e3 if batch else 0.0,
                    "tokens_per_s_per_gpu": batch / itl * 1e3 / devices if batch else 0.0,
                    "meets": bool(fits and batch and ttft_ok and e2e_ok),
                    "why": _why(fits, batch, ttft_ok, e2e_ok, ttft, itl, slo, itl_limit),
                }
            )  # fmt: skip
    return sorted(rows, key=lambda row: (not row["meets"], row["devices"], -row["tokens_per_s"]))


def _why(
    fits: bool, batch: int, ttft_ok: bool, e2e_ok: bool, ttft: float, itl: float, slo: Mapping[str, float],
    itl_limit: float | None,
) -> str:  # fmt: skip
    if not fits:
        return "does not fit in memory"
    if not batch:
        return f"one sequence alone takes {itl:.1f} ms per token, the objective is {itl_limit:.1f}"
    if not ttft_ok:
        return f"the prompt alone takes {ttft:.0f} ms, the objective is {slo['ttft_ms']:.0f}"
    if not e2e_ok:
        return f"the whole answer takes longer than {slo['e2e_ms']:.0f} ms"
    return f"up to {batch} sequences"
