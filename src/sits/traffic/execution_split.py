"""What the execution time of a step was spent on, from many steps of a run.

Three sources, best first: a profiler trace (kernel classes and the idle time between them), a regression of
execution time over batch and context (its slope is the KV cache's measured cost), the prediction model. What none of
them explains is device time between or beyond the predicted kernels: launch gaps, by subtraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sits.traffic.run_log import StepRecord

PIECES = ("weights", "kv", "compute", "activations", "launches", "host_to_device", "communication")


@dataclass(frozen=True, slots=True)
class StepCost:
    """execute_ms = base + per_sequence * batch + per_context * (sum of contexts), fitted on decode-only steps.

    ``context_trusted`` says whether the slope stands clear of its noise (3 standard errors).
    """

    base_ms: float
    per_sequence_ms: float
    per_context_ms: float
    context_trusted: bool
    steps: int

    def expected(self, batch: int, context_sum: float) -> float:
        return self.base_ms + self.per_sequence_ms * batch + self.per_context_ms * context_sum


def fit_step_cost(steps: Sequence[StepRecord]) -> StepCost | None:
    """Least squares with Huber weights over decode-only steps; None with fewer than 8 of them."""
    rows = [
        (len(s.contexts), float(sum(s.contexts)), s.execute_ms)
        for s in steps
        if s.contexts and not (s.prefill or s.partial)
    ]
    if len(rows) < 8:
        return None
    data = np.array(rows)
    y = data[:, 2]
    columns = [np.ones(len(y))]
    use = []
    for column in (0, 1):
        if np.ptp(data[:, column]) > 1e-9:
            columns.append(data[:, column])
            use.append(column)
    x = np.stack(columns, axis=1)
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
    weights = np.ones(len(y))
    beta = np.zeros(x.shape[1])
    for _ in range(10):
        root = np.sqrt(weights)[:, None]
        beta, *_ = np.linalg.lstsq(x / scale * root, y * root[:, 0], rcond=None)
        rest = y - x / scale @ beta
        spread = 1.4826 * np.median(np.abs(rest)) + 1e-9
        weights = 1.0 / np.maximum(1.0, np.abs(rest) / (1.5 * spread))
    normal = (x / scale).T @ ((x / scale) * weights[:, None])
    error = np.sqrt(np.maximum(np.diag(np.linalg.pinv(normal)), 0.0)) * spread / scale
    beta = beta / scale
    slope = {column: (float(beta[i + 1]), float(error[i + 1])) for i, column in enumerate(use)}
    sequence, context = slope.get(0, (0.0, 0.0)), slope.get(1, (0.0, 0.0))
    mean = data.mean(axis=0)
    if context[0] < 0:  # noise: a longer context cannot be cheaper
        context = (0.0, context[1])
    base = float(np.average(y, weights=weights)) - sequence[0] * mean[0] - context[0] * mean[1]
    if base < 0 or sequence[0] < 0:  # batch and context rose together: do not let one term go negative
        sequence = (max(0.0, sequence[0]), sequence[1])
        base = max(0.0, float(np.average(y, weights=weights)) - sequence[0] * mean[0] - context[0] * mean[1])
    trusted = 1 in use and context[0] > 3 * context[1] and context[0] > 0
    return StepCost(base, sequence[0], context[0], trusted, len(rows))


def split_execution(
    execute_ms: float,
    kv_ms: float | None,
    predicted: dict[str, float] | None,
    profile: dict[str, float] | None = None,
) -> tuple[dict[str, float], dict[str, str]]:
    """Share out ``execute_ms`` of an average decode step; the pieces sum to it exactly.

    ``kv_ms`` is the measured KV cost (regression) or None; ``predicted`` the model's pieces in ms; ``profile`` the
    shares of a profiler trace, which win. Returns (pieces, how each was found).
    """
    if profile is not None:
        return {name: execute_ms * share for name, share in profile.items()}, dict.fromkeys(profile, "profiler")
    if predicted is None:
        if kv_ms is None:
            return {"execution": execute_ms}, {"execution": "event log"}
        kv = min(kv_ms, execute_ms)
        return {"execution": execute_ms - kv, "kv": kv}, {"execution": "event log", "kv": "regression"}
    pieces: dict[str, float] = {}
    how: dict[str, str] = {}
    left = execute_ms
    for name in ("kv", "weights", "compute", "activations", "communication"):
        wanted = predicted.get(name, 0.0)
        how[name] = "model"
        if name == "kv" and kv_ms is not None:
            wanted, how[name] = kv_ms, "regression"
        pieces[name] = min(wanted, left)
        left -= pieces[name]
    pieces["launches"], how["launches"] = left, "by subtraction"
    return pieces, how
