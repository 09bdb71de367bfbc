"""The thread that owns the engine. Others hand requests in and get called back; nothing else crosses over."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from sits.engine.core import EngineCore, notify
from sits.engine.request import FAILED, Request, RequestState
from sits.errors import SitsError

logger = logging.getLogger(__name__)

_IDLE_CHECK_SECONDS = 1.0  # idle for this long: verify that every block is accounted for


class EngineWorker:
    """Runs an :class:`EngineCore` while there is work. ``submit`` and ``cancel`` may be called from any thread."""

    def __init__(self, core: EngineCore[Any]):
        self.core = core
        self._wake = threading.Event()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._stopping = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="sits-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, *, salt: str = "", followers: Sequence[Request] = ()) -> None:
        """Queue a request; its ``on_update`` tells the rest. Raises what ``Scheduler.add`` raises."""
        if self._failure is not None:
            raise SitsError(f"the engine has stopped: {self._failure}", "Start a new one")
        if self._stopping:
            raise SitsError("the engine is closed")
        self.core.scheduler.add(request, salt=salt, followers=followers)
        self._wake.set()
        if self._failure is not None or self._stopping:  # it stopped in between: nobody would answer
            self._end([request, *followers])

    def cancel(self, request: Request) -> bool:
        """End a request; False when it has ended already."""
        accepted = self.core.scheduler.cancel(request)
        self._wake.set()
        return accepted

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Run ``function`` on the engine thread, between two steps."""
        future: Future[Any] = Future()
        if self._failure is not None or self._stopping:
            future.set_exception(SitsError("the engine is closed"))
            return future
        self._calls.append((function, future))
        self._wake.set()
        return future

    def settle(self) -> None:
        """Return when the step in flight is over: whoever has ended has given everything back."""
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            with contextlib.suppress(SitsError):
                self.call(lambda: None).result()

    def close(self) -> None:
        """Cancel what is left and stop the thread. Safe to call twice."""
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        scheduler = self.core.scheduler
        checked = True
        last_work = monotonic()
        try:
            while not self._stopping:
                if self._calls:
                    self.core.drain()
                while self._calls:
                    self._answer(*self._calls.popleft())
                if self.core.has_work:
                    self.core.step()
                    last_work, checked = monotonic(), False
                    continue
                self._wake.wait(None if checked else _IDLE_CHECK_SECONDS)
                self._wake.clear()
                if not checked and not self.core.has_work and monotonic() - last_work >= _IDLE_CHECK_SECONDS:
                    scheduler.check_integrity()
                    checked = True
            self.core.drain()
        except Exception as error:
            logger.exception("the engine stopped")
            self._failure = str(error) or type(error).__name__
        self._end([*scheduler.running, *scheduler.waiting])
        while self._calls:
            self._calls.popleft()[1].set_exception(SitsError("the engine is closed"))

    @staticmethod
    def _answer(function: Callable[[], Any], future: Future[Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def _end(self, requests: list[Request]) -> None:
        """Tell those who still wait that nothing more will come."""
        scheduler, reason = self.core.scheduler, self._failure or "the engine was closed"
        for request in scheduler.take_touched():  # it may have stopped after they ended, before they were told
            notify(request)
        for request in [one for leader in requests for one in (leader, *leader.followers)]:
            if request.finished:
                continue
            try:
                scheduler.fail(request, reason)
            except Exception:  # the engine is broken already; the caller must still hear of it
                request.state, request.finish_reason, request.error = RequestState.FINISHED, FAILED, reason
            notify(request)
