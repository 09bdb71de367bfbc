"""The asyncio tasks of one run: none is lost, none fails in silence, none outlives the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Holds tasks until they end; ``on_fault`` is called with what one of them raised."""

    def __init__(self, on_fault: Callable[[BaseException], None]):
        self._on_fault = on_fault
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine on the running loop."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def cancel(self) -> None:
        """Cancel all, those included that are started meanwhile, until none is left."""
        while self._running:
            tasks = list(self._running)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fault(error)
