"""Bytes a whole load level required, from its request records and the number of engine steps.

Weights once per step, the context of every generated token once, each prompt's own KV once, every new token's KV
written once, activations per token. The numerator of MABU for a measured window.
"""

from __future__ import annotations

from collections.abc import Sequence

from sits.spec.records import RequestRecord
from sits.traffic.model_shape import ModelShape
from sits.traffic.operators import Step, kv_bytes_per_token, step_traffic
from sits.traffic.precision import StepPrecision


def required_bytes(
    shape: ModelShape,
    precision: StepPrecision,
    records: Sequence[RequestRecord],
    steps: float | None = None,
) -> float | None:
    """Bytes all ``records`` (every phase) needed; None when they hold no tokens.

    ``steps`` is the engine's own count over the same time. Without it (an endpoint) the steps are estimated from how
    many requests were generating at once: tokens / mean concurrency.
    """
    generated = sum(record.output_tokens for record in records)
    prompt = sum(max(0, (record.prompt_tokens or 0) - (record.cached_tokens or 0)) for record in records)
    if generated + prompt <= 0:
        return None
    if steps is None:
        steps = generated / max(1.0, mean_in_flight(records)) + sum(1 for record in records if record.prompt_tokens)
    steps = max(1.0, steps)
    per_step = max(1.0, (generated + prompt) / steps)
    one = step_traffic(shape, Step.decode(1, 0, precision))
    weights = step_traffic(shape, Step((0,) * max(1, round(per_step)), (), precision)).weight_bytes
    per_token = kv_bytes_per_token(shape, precision)
    # token k of a request reads its prompt and the k - 1 tokens before it
    read = sum(
        (record.prompt_tokens or 0) * record.output_tokens + record.output_tokens * (record.output_tokens - 1) / 2
        for record in records
    )
    read += prompt
    return weights * steps + per_token * (read + prompt + generated) + one.activation_bytes * (generated + prompt)


def mean_in_flight(records: Sequence[RequestRecord]) -> float:
    """Mean number of requests generating at once, over the time any was; at least 1."""
    spans = sorted(
        (record.t_due + record.chunk_times_ns[0], record.t_due + record.chunk_times_ns[-1])
        for record in records
        if len(record.chunk_times_ns) > 1
    )
    busy, reached = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return max(1.0, sum(end - start for start, end in spans) / busy) if busy > 0 else 1.0
