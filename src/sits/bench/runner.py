"""Drives a client through one load level: who sends when, which requests count, when it is over.

All timing decisions of a load level are made here, on one event loop, by one scheduler. The client only carries out
requests. Per request the runner costs a few microseconds; progress is read from counters by someone else.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

from sits.bench.client import Client, RequestSpec
from sits.bench.load import LiveState, Load, RunOptions
from sits.bench.outcome import PointOutcome, leave_out_early, unfinished
from sits.bench.rounds import Rounds
from sits.bench.tasks import Tasks
from sits.bench.timer import PreciseTimer
from sits.bench.workload import Workload
from sits.garbage import calm_collector
from sits.spec.records import CANCELLED, ERROR, OK, TIMEOUT, RequestRecord

_BACK_OFF_AFTER = 8
_ANSWERS_A_ROUND = 2
_LONGEST_ROUND = 4  # times its planned share
_BACK_OFF_S = 0.05  # pause of a closed-loop caller while everything fails, so that a dead target is not hammered


class PointRunner:
    """Runs one load level once: ``await PointRunner(...).run()``.

    A *unit* is what one caller or one arrival does: a request, or all turns of a conversation.
    """

    def __init__(
        self,
        client: Client,
        workload: Workload,
        load: Load,
        options: RunOptions,
        *,
        point: int = 0,
        seed: int = 0,
        stop: asyncio.Event | None = None,
        live: LiveState | None = None,
        first_index: int = 0,
    ):
        self.client, self.workload, self.load, self.options = client, workload, load, options
        self.point, self.seed = point, seed
        self.stop = stop or asyncio.Event()
        self.live = live or LiveState()
        self.records: list[RequestRecord] = []
        self.notes: list[str] = []
        self.gave_up = False  # the target died: what was measured until then is kept
        # A trace runs once, as it is; a count of open-loop requests cannot grow without a hole in the arrivals.
        fixed = load.mode == "trace" or (load.mode == "open" and load.duration_s is None)
        by_count = load.requests if load.duration_s is None else None
        self.rounds = Rounds(
            options.tolerance,
            options.rounds,
            options.rounds if fixed else options.max_rounds,
            len(load.offsets or ()) if load.mode == "trace" else by_count,
            steady_load=load.mode != "trace" and (load.arrivals is None or load.arrivals.process != "ramp"),
        )
        self._first_index = self._index = first_index  # prompts differ between load levels too
        self._fillers = first_index
        self._taken = 0  # measured requests started
        self._units = 0  # measured units under way
        self._failures = 0  # in a row
        self._sending = True  # false once no further measured unit may start
        self._over = False
        self._window_start = 0  # duration mode: measured requests due before it belong to dropped rounds
        self._cut_status = CANCELLED
        self._tasks = Tasks(self._fail)

    async def run(self) -> PointOutcome:
        """Carry out the load level. Never raises for failed requests; a stop leaves a partial outcome."""
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._more: asyncio.Future[None] = loop.create_future()
        self._timer = PreciseTimer(loop)
        live, load = self.live, self.load
        live.begin(load, self.rounds.requests)
        live.rounds = self.rounds.values
        started = time.monotonic_ns()
        try:
            with calm_collector():
                started = time.monotonic_ns()  # after the collection, which takes tens of ms
                self._tasks.spawn(self._watch_stop())
                if load.mode == "closed":
                    self._start_callers()
                else:
                    self._tasks.spawn(self._send_on_schedule(started))
                    if load.mode == "open" and load.duration_s is not None:
                        self._tasks.spawn(self._keep_time(started))
                await self._ended
        finally:
            self._over = True
            await self._tasks.cancel()
            self._timer.close()
        window = None if load.duration_s is None else self._window_start
        left_out = leave_out_early(self.records, self.rounds, window)
        self.notes += [left_out] if left_out else []
        return PointOutcome(
            self.records, self.rounds.verdict(), started, self.stop.is_set() or self.gave_up, self._index, self.notes
        )

    # --- closed loop

    def _start_callers(self) -> None:
        callers = self.load.concurrency or 1
        enough = self.load.requests is None or self.load.requests >= callers
        ramp = callers if self.options.ramp and callers > 1 and enough else 0
        self.live.stage = "ramp" if ramp else "measure"
        for number in range(callers):
            self._tasks.spawn(self._caller(number, ramp))

    async def _caller(self, number: int, ramp: int) -> None:
        if ramp:
            spec = self.workload.request(self._first_index + number, "warmup")
            # Shares of the full length, so that the callers end up spread evenly over a request.
            spec.max_tokens = max(1, math.ceil(spec.max_tokens * (number + 1) / ramp))
            await self._carry_out(spec, "warmup", time.monotonic_ns())
        while not self._over:
            if self._may_start():
                self._begin_unit()
                await self._unit(self.workload.request(self._index - 1), None)
            elif self._units > 0 and self.options.fill and self.load.concurrency != 1:
                self._fillers += 1
                spec = self.workload.request(self._fillers - 1, "cooldown")
                await self._carry_out(spec, "cooldown", time.monotonic_ns())
            elif self._sending:
                await asyncio.shield(self._more)  # another round may be added
            else:
                return

    def _may_start(self) -> bool:
        if not self._sending:
            return False
        return self.rounds.requests is None or self._taken < self.rounds.quota()

    # --- open loop and trace

    async def _send_on_schedule(self, start: int) -> None:
        load = self.load
        self.live.stage = "measure"
        if load.mode == "trace":
            offsets: Iterator[float] = iter(load.offsets or ())
        else:
            assert load.arrivals is not None
            offsets = load.arrivals.offsets(self.seed)
        for offset in offsets:
            if load.mode == "trace" and load.duration_s is not None and offset > load.duration_s:
                break
            due = start + round(offset * 1e9)
            await self._timer.sleep_until(due)
            if not self._sending:
                return
            self._begin_unit()
            self._tasks.spawn(self._unit(self.workload.request(self._index - 1), due))
            if self.rounds.requests is not None and self._taken >= self.rounds.requests:
                break
        self._stop_sending()

    # --- units and requests

    def _begin_unit(self) -> None:
        if self._taken == 0 and self.load.mode == "closed":
            self.live.stage = "measure"
            if self.load.duration_s is not None:  # time starts with the first measured request
                self._tasks.spawn(self._keep_time(time.monotonic_ns()))
        self._taken += 1
        self._index += 1
        self._units += 1

    async def _unit(self, spec: RequestSpec, due: int | None) -> None:
        """A measured request and its further turns. ``due`` is None in closed loop: due when the caller is free."""
        try:
            while True:
                if due is None and self._failures >= _BACK_OFF_AFTER:
                    await asyncio.sleep(_BACK_OFF_S)
                record = await self._carry_out(spec, "measure", time.monotonic_ns() if due is None else due)
                following = self.workload.follow_up(spec, record)
                if following is None or self._over or (due is None and not self._sending):
                    return
                pause, spec = following
                planned = time.monotonic_ns() + round(pause * 1e9)
                await self._timer.sleep_until(planned)
                self._taken += 1
                due = None if due is None else planned
        finally:
            self._units -= 1
            self._finish_if_idle()

    async def _carry_out(self, spec: RequestSpec, phase: str, due: int) -> RequestRecord:
        live, measured = self.live, phase == "measure"
        live.in_flight += 1
        live.sent += measured
        try:
            record = await self.client.send(spec, due)
        except asyncio.CancelledError:
            self._store(unfinished(spec, due, self._cut_status if measured else CANCELLED), phase)
            raise
        except Exception as error:  # a client must not raise; if one does, the run must not die with it
            record = unfinished(spec, due, ERROR)
            record.error, record.error_kind = f"{type(error).__name__}: {error}", "client_exception"
        finally:
            live.in_flight -= 1
        if self._over and measured and record.status == CANCELLED:  # the client noticed the cut itself
            record.status = self._cut_status
        self._store(record, phase)
        return record

    def _store(self, record: RequestRecord, phase: str) -> None:
        record.phase, record.point = phase, self.point
        self.records.append(record)
        failed = record.status not in (OK, CANCELLED)
        self._failures = self._failures + 1 if failed else 0
        if phase == "measure":
            live = self.live
            live.done += 1
            live.failed += failed
            live.tokens += record.output_tokens
            self.rounds.add(record)
            if not self._over and self.rounds.due():
                self._end_round()
        if self._failures >= max(self.options.give_up_after, 5 * (self.load.concurrency or 0)) and self._sending:
            self.gave_up = True
            self.notes.append(f"stopped after {self._failures} failures in a row; the last: {record.error}")
            self._stop_sending()

    # --- when it is over

    def _end_round(self) -> None:
        if self.rounds.close():
            self._stop_sending()
        self._tell_callers()

    async def _keep_time(self, start: int) -> None:
        """Ends rounds by the clock. A round waits for its first answers, so that a slow target is not judged on none;
        one that still has none after four times its share ends all the same."""
        self.live.started_ns = start
        assert self.load.duration_s is not None
        count = self.options.rounds
        part = round(self.load.duration_s * 1e9 / count)
        begins = [start]
        while self._sending:
            latest = begins[-1] + _LONGEST_ROUND * part
            await self._timer.sleep_until(begins[-1] + part)
            waited = False
            while self._sending and self.rounds.answers < _ANSWERS_A_ROUND and time.monotonic_ns() < latest:
                waited = True
                await self._timer.sleep_until(min(latest, time.monotonic_ns() + part // 20))
            # On time to the nanosecond unless it was stretched: rounds must not drift with timer jitter.
            begins.append(begins[-1] + part if not waited else time.monotonic_ns())
            self._window_start = begins[max(0, len(begins) - 1 - count)]
            self._end_round()

    def _stop_sending(self) -> None:
        if self._sending:
            self._sending = False
            self.live.stage = "drain"
            self._tasks.spawn(self._limit_drain())
            self._tell_callers()
        self._finish_if_idle()

    async def _limit_drain(self) -> None:
        await asyncio.sleep(self.options.drain_s)
        if not self._ended.done():
            self.notes.append(
                f"{self._units} requests had no answer {self.options.drain_s:g} s after the last was sent"
            )
            self._cut_status = TIMEOUT  # unlike a request cut by Ctrl-C this is the target's failure
            self._ended.set_result(None)

    def _finish_if_idle(self) -> None:
        if not self._sending and self._units == 0 and not self._ended.done():
            self._ended.set_result(None)

    async def _watch_stop(self) -> None:
        await self.stop.wait()
        self._sending = False
        if not self._ended.done():
            self._ended.set_result(None)

    def _tell_callers(self) -> None:
        waiting, self._more = self._more, asyncio.get_running_loop().create_future()
        if not waiting.done():
            waiting.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """A fault of our own (a workload that raises, a bug) must surface, not hang the run."""
        if not self._ended.done():
            self._ended.set_exception(error)
