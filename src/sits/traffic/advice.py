"""Switches to try, each with the predicted effect on a decode step and its price. Ranked by step time won."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from sits.traffic.cards import HardwareCard
from sits.traffic.explanation import Switch, Tail, Waterfall
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import Step, memory_needed_gb
from sits.traffic.predict import Efficiency, predict_step

_INT4_PRICE = "quality: 4-bit weights; check perplexity and KL with sits quantize before shipping"
_FP8_PRICE = "quality: small; per-channel weight and per-token activation scales"
_KV_PRICE = "quality: small; 8-bit KV with a scale per token and head"


def suggest(
    shape: ModelShape,
    step: Step,
    card: HardwareCard,
    efficiency: Efficiency | None = None,
    measured_ms: tuple[float, float] | None = None,
    waterfall: Waterfall | None = None,
    graphs: bool = True,
    chunk: int | None = None,
) -> list[Switch]:
    """Everything that would help this decode step, best first; nothing that would not.

    ``measured_ms`` is (execution, the rest: scheduling, others' prefill) of the measured step. Only what the
    prediction explains of the execution is scaled: overhead that no byte explains does not shrink with the bytes.
    """
    before = predict_step(shape, step, card, efficiency, graphs).step_ms
    execution, rest = measured_ms or (before, 0.0)
    total = execution + rest
    found = []
    for code, what, how, price, after_step, after_graphs in _variants(shape, step, card, graphs):
        if code == "graphs" and waterfall is not None:
            continue  # what they cost was measured: see below
        after = predict_step(shape, after_step, card, efficiency, after_graphs).step_ms
        rows = len(after_step.contexts) / max(1, len(step.contexts))
        switched = rest + switched_execution(execution, before, after)
        found.append(Switch(code, what, how, total, switched, price, rows * total / switched - 1.0))
    found.extend(_from_waterfall(waterfall, chunk, graphs))
    useful = [
        switch
        for switch in found
        if switch.gain > 0.02 or (switch.code == "larger_batch" and switch.throughput_gain > 0.1)
    ]
    return sorted(useful, key=lambda switch: -max(switch.gain, switch.throughput_gain / 4))


def switched_execution(execution_ms: float, before_ms: float, after_ms: float) -> float:
    """Measured execution after a change that takes the prediction from ``before_ms`` to ``after_ms``."""
    return execution_ms - min(execution_ms, before_ms) * (1.0 - after_ms / before_ms)


def _variants(
    shape: ModelShape, step: Step, card: HardwareCard, graphs: bool
) -> Iterator[tuple[str, str, str, str, Step, bool]]:
    precision = step.precision

    def stored(**changes: str) -> Step:
        return dataclasses.replace(step, precision=dataclasses.replace(precision, **changes))

    if precision.family != "int4":
        yield (
            "int4_weights",
            "INT4 weights, group 32",
            "--quantize int4-g32",
            _INT4_PRICE,
            stored(weights="int4-g32"),
            graphs,
        )
    if precision.family not in ("fp8", "int4", "int8") and "fp8" in card.tflops:
        yield (
            "fp8_weights",
            "FP8 weights and activations",
            "--quantize fp8",
            _FP8_PRICE,
            stored(weights="fp8"),
            graphs,
        )
    if precision.kv_bytes > 1:
        kv = "fp8" if "fp8" in card.tflops else "int8"
        yield "kv_8bit", f"{kv.upper()} KV cache", f"--kv-dtype {kv}", _KV_PRICE, stored(kv=kv), graphs
    if not graphs and card.vendor not in ("cpu", "arm"):
        yield "graphs", "CUDA graphs on", "cuda_graphs: true", "memory for captured graphs; longer start", step, True
    if step.contexts:
        double = dataclasses.replace(step, contexts=step.contexts * 2)
        held = sum(double.contexts)
        if memory_needed_gb(shape, precision, held, step.devices) < card.memory_gb:
            yield (
                "larger_batch", f"batch {len(double.contexts)} instead of {len(step.contexts)}",
                f"max_running {len(double.contexts)}", "latency: each step takes longer; needs the load to fill it",
                double, graphs,
            )  # fmt: skip
    if card.link_gbps > 0 and card.vendor not in ("cpu", "arm") and step.devices < 8:
        more = step.devices * 2
        if shape.heads % more == 0:
            yield (
                "more_gpus", f"tensor parallel over {more} GPUs", f"tensor_parallel {more}",
                f"cost: {more // step.devices}x the GPUs", dataclasses.replace(step, devices=more), graphs,
            )  # fmt: skip


def _from_waterfall(waterfall: Waterfall | None, chunk: int | None, graphs: bool) -> Iterator[Switch]:
    """Switches whose gain was measured as a piece of this run rather than predicted from shapes."""
    if waterfall is None:
        return
    pieces = {piece.name: piece.measured_ms or 0.0 for piece in waterfall.pieces}
    total = waterfall.total_ms
    table = (
        ("prefill_interference", "chunk_size", "half the prefill chunk",
         f"max_step_tokens {chunk // 2}" if chunk else "max_step_tokens", 0.5,
         "latency: a later first token for long prompts"),
        ("preemption", "kv_tier", "a KV tier (host or disk) instead of recomputing", "--kv-tier", 0.7,
         "host memory or disk; a restored block is read once over the host link"),
        ("queue", "max_running", "more running requests", "max_running", 0.5, "latency: larger steps"),
        ("scheduler", "overlap", "scheduling overlapped with execution", "overlap scheduling", 0.9,
         "one step of delay in reacting to cancels"),
    )  # fmt: skip
    for piece, code, what, how, share, price in table:
        won = pieces.get(piece, 0.0) * share
        if won > 0:
            yield Switch(code, what, how, total, total - won, price, basis="estimate from a measured piece")
    gaps = next((piece for piece in waterfall.pieces if piece.name == "launches"), None)
    if not graphs and gaps is not None:
        won = max(0.0, (gaps.measured_ms or 0.0) - (gaps.predicted_ms or 0.0))
        yield Switch(
            "graphs", "CUDA graphs on", "cuda_graphs: true", total, total - won,
            "memory for captured graphs; longer start", basis="estimate from a measured piece",
        )  # fmt: skip


def vision_switch(ttft: Tail, vision_share: float, keep: float = 0.4) -> Switch:
    """Keeping ``keep`` of the vision tokens, which are ``vision_share`` of the prompt: what prefill of them cost."""
    prefill = ttft.shares.get("prefill", 0.0)
    after = ttft.p50_ms * (1.0 - prefill * vision_share * (1.0 - keep))
    return Switch(
        "vision_sampling", f"keep {keep:.0%} of the vision tokens (time to first token)", f"--vision-keep {keep}",
        ttft.p50_ms, after, "quality: measure it on your images; fewer tokens, less detail",
        basis="estimate from a measured piece",
    )  # fmt: skip
