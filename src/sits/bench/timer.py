"""Call something at an exact monotonic time from an asyncio loop.

Event loops round timers to whole milliseconds (uvloop, and asyncio's selector loop rounds up), which is more than
the jitter a load generator may add. On Linux one ``timerfd`` per loop gives about 50 us; elsewhere the loop's own
timer is used. Times are ``time.monotonic_ns()``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ctypes.util
import heapq
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


class Scheduled:
    """A pending call; :meth:`cancel` is safe at any time."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...]):
        self.callback: Callable[..., Any] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None
        self.arguments = ()


class PreciseTimer:
    """A heap of absolute deadlines behind one kernel timer. Use from the loop's own thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None):
        self._loop = loop or asyncio.get_running_loop()
        self._heap: list[tuple[int, int, Scheduled]] = []
        self._sequence = count()
        self._armed_ns = 0
        self._fallback: asyncio.TimerHandle | None = None
        self._spec = _Itimerspec()
        self._libc, self._fd = _open_timerfd()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)

    @property
    def exact(self) -> bool:
        """True when the kernel timer is in use."""
        return self._fd >= 0

    def call_at_ns(self, when_ns: int, callback: Callable[..., Any], *arguments: Any) -> Scheduled:
        """Run ``callback(*arguments)`` on the loop at ``when_ns`` (at once when that is past)."""
        entry = Scheduled(callback, arguments)
        heapq.heappush(self._heap, (when_ns, next(self._sequence), entry))
        if self._armed_ns == 0 or when_ns < self._armed_ns:
            self._arm(when_ns)
        return entry

    async def sleep_until(self, when_ns: int) -> None:
        """Return at ``when_ns``, or at once when that is past."""
        if when_ns <= time.monotonic_ns():
            return
        future = self._loop.create_future()
        entry = self.call_at_ns(when_ns, _wake, future)
        try:
            await future
        finally:
            entry.cancel()

    def close(self) -> None:
        """Drop all pending calls and the kernel timer. Safe to call twice."""
        self._heap.clear()
        if self._fallback is not None:
            self._fallback.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _arm(self, when_ns: int) -> None:
        self._armed_ns = when_ns
        if self._fd >= 0:
            # Zero would disarm; a time in the past fires at once.
            spec = self._spec
            spec.value_s, spec.value_ns = divmod(max(1, when_ns), 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
            return
        if self._fallback is not None:
            self._fallback.cancel()
        delay = max(0, when_ns - time.monotonic_ns()) * 1e-9
        self._fallback = self._loop.call_later(delay, self._fire)

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._fire()

    def _fire(self) -> None:
        heap = self._heap
        self._armed_ns = 0
        now = time.monotonic_ns()
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)[2]
            callback = entry.callback
            if callback is not None:
                try:
                    callback(*entry.arguments)
                except Exception as error:
                    self._loop.call_exception_handler({"message": "timer callback failed", "exception": error})
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        if heap and (self._armed_ns == 0 or heap[0][0] < self._armed_ns):
            self._arm(heap[0][0])


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _open_timerfd() -> tuple[Any, int]:
    if not sys.platform.startswith("linux"):
        return None, -1
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        return libc, int(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS))
    except (OSError, AttributeError):
        return None, -1
