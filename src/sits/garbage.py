"""Python's garbage collector, kept out of what is being timed. Every room may import this file; it imports nothing.

The collector belongs to the whole process: two engines in one, or an engine and a benchmark, must not undo each
other's settings. That is why nobody else calls ``gc.freeze`` or ``gc.unfreeze``.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a finalizer that the collector runs may release another


class FrozenHeap:
    """Keeps the collector from walking what is alive when it is made, until ``release``.

    Several may be held, and released in any order: the heap thaws with the last. Until then nothing in it that
    became a cycle meanwhile is collected.
    """

    _held = 0

    def __init__(self) -> None:
        gc.collect()  # or garbage would be kept too
        with _lock:
            gc.freeze()
            FrozenHeap._held += 1
            self._holds = True

    def release(self) -> None:
        """Let go. Safe to call twice."""
        with _lock:
            if self._holds:
                self._holds = False
                FrozenHeap._held -= 1
                if FrozenHeap._held == 0:
                    gc.unfreeze()


@contextmanager
def calm_collector() -> Iterator[None]:
    """Keep the collector from walking all records again and again in the middle of a measurement."""
    heap = FrozenHeap()
    before = gc.get_threshold()
    gc.set_threshold(50_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        heap.release()
