"""What a person sees while a benchmark runs, on stderr: a bar with ETA on a terminal, plain lines elsewhere.

Displays read the counters of :class:`sits.bench.load.LiveState` a few times a second; the measured path never
calls them.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO

from sits.bench.load import LiveState

REFRESH_S = 0.25
LINE_EVERY_S = 10.0


class Progress(Protocol):
    """A display. ``say`` is a line of its own; ``update`` is called every quarter of a second."""

    def say(self, text: str) -> None: ...

    def update(self, live: LiveState) -> None: ...

    def close(self) -> None: ...


class NoProgress:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def update(self, live: LiveState) -> None:
        pass

    def close(self) -> None:
        pass


class LineProgress:
    """A line when something begins, then at most one every ten seconds: for logs and CI."""

    def __init__(self, stream: TextIO | None = None, every_s: float = LINE_EVERY_S):
        self._stream, self._every, self._last = stream or sys.stderr, every_s, time.monotonic()

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._last = time.monotonic()

    def update(self, live: LiveState) -> None:
        if time.monotonic() - self._last >= self._every:
            self.say("  " + status_line(live))

    def close(self) -> None:
        pass


class BarProgress:
    """A rich progress bar with ETA; gone when the run is over."""

    def __init__(self, stream: TextIO | None = None):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar: Any = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(compact=True),
            console=Console(file=stream or sys.stderr),
            refresh_per_second=4,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None, detail="")

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def update(self, live: LiveState) -> None:
        share = done_share(live)
        self._bar.update(
            self._task,
            description=f"{live.label} ({live.stage})",
            total=None if share is None else 1.0,
            completed=share or 0.0,
            detail=counts(live),
        )

    def close(self) -> None:
        self._bar.stop()


def done_share(live: LiveState) -> float | None:
    """Part of the load level that is done, 0 to 1; ``None`` before it can be said."""
    if live.stage not in ("measure", "drain"):
        return None
    if live.duration_s:
        return min(1.0, (time.monotonic_ns() - live.started_ns) / 1e9 / live.duration_s)
    return min(1.0, live.done / live.total) if live.total else None


def counts(live: LiveState) -> str:
    """Counters in words."""
    total = f"/{live.total}" if live.total and not live.duration_s else ""
    failed = f", {live.failed} failed" if live.failed else ""
    seconds = max(1e-9, (time.monotonic_ns() - live.started_ns) / 1e9)
    return f"{live.done}{total} requests{failed}, {live.tokens / seconds:.0f} tok/s"


def status_line(live: LiveState) -> str:
    """One plain line."""
    share = done_share(live)
    elapsed = (time.monotonic_ns() - live.started_ns) / 1e9
    left = f", about {elapsed / share - elapsed:.0f} s left" if share and 0.02 < share < 1 else ""
    return f"{live.label} ({live.stage}): {counts(live)}{left}"


def make_progress(quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """The display that fits where stderr goes."""
    target = stream or sys.stderr
    if quiet:
        return NoProgress()
    return BarProgress(target) if target.isatty() else LineProgress(target)
