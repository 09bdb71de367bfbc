"""Resources: memory traffic, cache hits, device memory. Warnings by default: they explain rather than decide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sits.spec.result import LoadPoint
from sits.validate import quantity
from sits.validate.context import Context, columns_or_reason, figure_of
from sits.validate.rules.estimates import DECIDE, Estimate, compare, no_points, over_points
from sits.validate.rules.model import Finding, Outcome, Settings, Severity, register


def gauge(source: dict[str, Any], *names: str) -> float | None:
    """A number of a free-form mapping under the first of ``names`` it has: plain, or a mapping with max or value."""
    for name in names:
        value = source.get(name)
        if isinstance(value, dict):
            value = next((value[key] for key in ("max", "value", "p99", "mean") if key in value), None)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


@register(
    "SITS-W002",
    "traffic-amplification",
    Severity.WARN,
    summary="Observed over required memory traffic stays under its bound.",
    why="Observed DRAM traffic above what the model's shapes require is waste: re-read weights, spilled "
    "activations, padding, "
    "a KV layout that reads whole lines for half of them.",
    fix="`sits explain` shows which part of the traffic exceeds its model.",
    example="traffic-amplification: {max: 1.3}",
    parameters={"max": quantity.schema("rate", "Largest observed / required traffic")},
    required=("max",),
    statistics="A single ratio of two figures.",
    needs="a result with both mabu.required and mabu.observed",
)
def traffic_amplification(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    limit = float(settings.parameters["max"])
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        required, why = figure_of(point, "mabu.required")
        observed, why_not = figure_of(point, "mabu.observed")
        if required is None or observed is None or not required.value or observed.value is None:
            text = why or why_not or "the required traffic is zero"
            yield Finding(Outcome.NO_DATA, text, metric="traffic_amplification", scope=scope)
            continue
        value = observed.value / required.value
        found = Estimate(value, value, value, observed.n, None, str(loaded.file))
        yield compare(
            found, limit, at_most=True, unit="", metric="traffic_amplification", label="traffic amplification",
            decide="bound", strict=False,
        ).with_(scope=scope)  # fmt: skip


@register(
    "SITS-W004",
    "kv-hit-rate",
    Severity.WARN,
    summary="Enough prompt tokens come from the KV prefix cache.",
    why="A changed chat template, salt or block size turns every prefix hit into a miss; TTFT then follows the "
    "prompt length.",
    fix="Look for something that changes early in the prompt: a date, a request id, another system prompt.",
    example="kv-hit-rate: {min: 60%}",
    parameters={"min": quantity.schema("share", "Least share of prompt tokens that were cached")},
    required=("min",),
    statistics="Counts of the whole load point.",
    needs="a target that reports cached tokens",
)
def kv_hit_rate(context: Context, settings: Settings) -> Iterable[Finding]:
    missing = no_points(context, settings)
    if missing:
        yield missing
        return
    limit = quantity.parse("share", settings.parameters["min"])
    for loaded, point in over_points(context, settings):
        scope = context.scope(loaded, point)
        value = _hit_rate(point)
        if value is None:
            columns, _ = columns_or_reason(loaded, point)
            if columns is not None and columns.prompt_tokens.sum() > 0 and columns.cached_tokens.sum() > 0:
                value = float(columns.cached_tokens.sum() / columns.prompt_tokens.sum())
        if value is None or not 0 <= value <= 1:
            text = "the target does not report cached prompt tokens"
            yield Finding(Outcome.NO_DATA, text, metric="kv_hit_rate", scope=scope, bound=limit, unit="share")
            continue
        found = Estimate(value, value, value, point.requests.get("ok", 0), None, str(loaded.file))
        yield compare(
            found, limit, at_most=False, unit="share", metric="kv_hit_rate", label="KV hit rate", decide="bound",
            strict=False,
        ).with_(scope=scope)  # fmt: skip


def _hit_rate(point: LoadPoint) -> float | None:
    cached, prompt = point.tokens.get("cached"), point.tokens.get("prompt")
    if cached is not None and prompt and prompt > 0:
        return cached / prompt
    return gauge(point.server, "prefix_hit_rate", "kv_hit_rate")


@register(
    "SITS-W005",
    "memory",
    Severity.WARN,
    summary="Peak memory stays under its bound.",
    why="A leak or a larger workspace shows here releases before it shows as an out-of-memory error.",
    fix="Compare the peak with the baseline's at the same load; then look at KV cache size and workspaces.",
    example="memory: {max: 70 GB}",
    parameters={"max": quantity.schema("memory", "Largest peak memory of the target"), "decide": DECIDE},
    required=("max",),
    statistics="The peak: a single figure.",
    needs="a target that reports its memory",
)
def memory(context: Context, settings: Settings) -> Iterable[Finding]:
    limit = quantity.parse("memory", settings.parameters["max"])
    names = ("memory_gb", "peak_memory_gb", "memory_peak_gb", "device_memory_gb", "rss_gb")
    for loaded in context.results:
        values = [gauge(point.server, *names) for point in loaded.result.points]
        extra = loaded.result.extra.get("memory")
        values.append(gauge(extra, "peak_gb", "gb", *names) if isinstance(extra, dict) else None)
        values += [
            figure.value
            for point in loaded.result.points
            for figure in [figure_of(point, "memory.peak")[0]]
            if figure is not None
        ]
        known = [value for value in values if value is not None and value >= 0]
        scope = context.scope(loaded)
        if not known:
            text = "the result does not report memory"
            yield Finding(Outcome.NO_DATA, text, metric="memory", scope=scope, bound=limit, unit="GB")
            continue
        value = max(known)
        found = Estimate(value, value, value, 1, None, str(loaded.file))
        yield compare(
            found, limit, at_most=True, unit="GB", metric="memory", label="peak memory", decide="bound", strict=False
        ).with_(scope=scope)
