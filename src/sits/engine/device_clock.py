"""When a device reached an event, on the clock of the host."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Protocol


class TimedEvent(Protocol):
    """A ``torch.cuda.Event`` with timing."""

    def query(self) -> bool:
        """Whether it has happened."""

    def synchronize(self) -> None:
        """Return when it has happened."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this one to ``end_event``, another of its kind."""


class DeviceClock:
    """The host sees an event happen only if it waits for it at that moment. If it comes late, the device's own clock
    says how long after the event before this one it was."""

    def __init__(self) -> None:
        self._before: TimedEvent | None = None
        self._before_ns = 0

    def wait(self, event: TimedEvent) -> int:
        """Wait for ``event``; returns when it happened, in ns of ``time.monotonic_ns``."""
        late = event.query()
        event.synchronize()
        ended = monotonic_ns()
        if late and self._before is not None:
            ended = min(ended, self._before_ns + int(1e6 * self._before.elapsed_time(event)))
        self._before, self._before_ns = event, ended
        return ended
