"""The limits a scheduler keeps and the totals it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from sits.errors import InputError, SitsError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the scheduler. Raises ``InputError`` when they contradict each other."""

    max_model_len: int  # tokens of a request, prompt and output
    max_running: int = 64  # requests in one step
    max_step_tokens: int = 512  # tokens in one step
    max_waiting: int = 100_000  # requests in the queue; more are refused
    watermark: float = 0.02  # share of the blocks kept for running requests to grow into

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_running", "max_step_tokens", "max_waiting"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_step_tokens < self.max_running:
            raise InputError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_running ({self.max_running})",
                "Every running request needs one token in each step",
            )
        if not 0 <= self.watermark < 1:
            raise InputError(f"watermark must be a share of the blocks, from 0 to below 1, not {self.watermark}")


class QueueFullError(SitsError):
    """Too many requests wait already. Try again later."""


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start."""

    steps: int = 0
    step_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0  # of admitted requests
    cached_tokens: int = 0  # of those, found in the prefix index
    preemptions: int = 0
    recomputed_tokens: int = 0  # lost to preemption and not found in the prefix index again
    finished: dict[str, int] = field(default_factory=dict)  # by finish reason
