"""A step on its way through the device, and when the device was done with it.

Nothing waits until ``fetch``: results travel to pinned memory behind the step, and an event says that they are there.
"""

from __future__ import annotations

from time import monotonic_ns

import torch

from sits.engine.device_clock import DeviceClock
from sits.engine.sampler import Sampled
from sits.engine.step_batch import StepResult


class FinishedStep:
    """A step of a device that computes at once (a CPU)."""

    def __init__(self, sampled: Sampled | None):
        self.ended_ns = monotonic_ns()
        self._sampled = sampled

    def fetch(self) -> StepResult:
        """What was sampled."""
        return self._sampled.fetch() if self._sampled is not None else StepResult([])


class CudaStep:
    """A step that a stream works on."""

    def __init__(self, sampled: Sampled | None, tokens: torch.Tensor, clock: DeviceClock):
        """``tokens`` is pinned memory that belongs to this step until it was fetched."""
        self.ended_ns = 0
        self._clock = clock
        self._sampled = None if sampled is None else sampled.copy_to_host(tokens)
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def fetch(self) -> StepResult:
        """Wait for the step. Raises ``RuntimeError`` when the device failed."""
        self.ended_ns = self._clock.wait(self.event)
        return self._sampled.fetch() if self._sampled is not None else StepResult([])
