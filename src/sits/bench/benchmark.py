"""A whole benchmark: open the target, warm up, run every load level, put the result together."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from sits.bench import sweep
from sits.bench.arrivals import check_arrivals
from sits.bench.client import Client, TargetInfo
from sits.bench.environment import collect_environment
from sits.bench.fixed_text import FIXED_TEXT
from sits.bench.load import LiveState, Load, RunOptions
from sits.bench.point import build_point
from sits.bench.progress import REFRESH_S, NoProgress, Progress
from sits.bench.runner import PointRunner
from sits.bench.search import Search
from sits.bench.warmup import WarmupReport, warm_up
from sits.bench.workload import SyntheticWorkload, Workload
from sits.spec.convergence import loss_convergence
from sits.spec.metrics import DEFINITIONS
from sits.spec.records import RequestRecord
from sits.spec.result import LoadPoint, Result, Status, Target

_WORST_FIRST: tuple[Status, ...] = ("partial", "invalid", "no_data", "not_converged", "complete")


class Observer(Protocol):
    """Something that watches load levels: telemetry, client health, a server's metrics page."""

    async def begin(self, load: Load) -> None:
        """Called before the first request of a load level."""

    async def end(self, point: LoadPoint, records: Sequence[RequestRecord]) -> None:
        """Called with the finished point; may add figures, notes, and change its status."""


@dataclass(slots=True)
class BenchPlan:
    """What to run. ``workload`` describes the measured requests, ``warmup_source`` makes prompts of any length."""

    loads: list[Load]
    workload: Workload
    warmup_source: SyntheticWorkload | None = None
    warmup: str = "ladder"
    warmup_longest: int | None = None
    warmup_budget_s: float | None = None
    slo: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    options: RunOptions = field(default_factory=RunOptions)
    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    search: Search | None = None  # gives the load levels one after another, instead of ``loads``

    def next_load(self, points: Sequence[LoadPoint]) -> Load | None:
        """The level after those measured; None when there is none left."""
        if self.search is not None:
            return self.search.next_load(points)
        return self.loads[len(points)] if len(points) < len(self.loads) else None


@dataclass(slots=True)
class BenchOutcome:
    """The result and the records of all load levels, warm-up included."""

    result: Result
    records: list[RequestRecord]


async def run_benchmark(
    client: Client,
    info: TargetInfo,
    plan: BenchPlan,
    *,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    stop: asyncio.Event | None = None,
    url: str | None = None,
    api: str | None = None,
) -> BenchOutcome:
    """Run ``plan`` on an opened client. A stop (see :func:`stop_on_signals`) leaves a partial result."""
    display, stop, live = progress or NoProgress(), stop or asyncio.Event(), LiveState()
    ticker = asyncio.create_task(_tick(display, live))
    records: list[RequestRecord] = []
    points: list[LoadPoint] = []
    losses: list[float] = []
    warmup = WarmupReport(plan.warmup)
    next_index = 0
    try:
        if plan.warmup != "none" and plan.warmup_source is not None and not stop.is_set():
            live.label, live.stage, live.started_ns = "warm-up", "warm-up", time.monotonic_ns()
            work = asyncio.create_task(
                warm_up(
                    client,
                    plan.warmup,
                    plan.warmup_source,
                    max_context=info.max_context,
                    longest=plan.warmup_longest,
                    budget_s=plan.warmup_budget_s,
                )
            )
            if (done := await _unless_stopped(work, stop)) is not None:
                warmup = done
        if not stop.is_set():
            await _measure_loss(client, losses)
        options = plan.options
        if plan.warmup == "none":
            options = RunOptions(**{**_fields(options), "ramp": False})
        while not stop.is_set() and (load := plan.next_load(points)) is not None:
            index = len(points)
            for observer in observers:
                await observer.begin(load)
            runner = PointRunner(
                client,
                plan.workload,
                load,
                options,
                point=index,
                seed=plan.seed + index,
                stop=stop,
                live=live,
                first_index=next_index,
            )
            outcome = await runner.run()
            next_index = outcome.next_index + (load.concurrency or 0)
            # Figures cost CPU; on the loop they would only delay signals, so a thread takes them.
            point = await asyncio.to_thread(build_point, index, load, outcome, plan.slo, plan.seed)
            if load.arrivals is not None:
                sent = [(r.t_sent - outcome.started_ns) / 1e9 for r in outcome.records if r.phase == "measure"]
                point.arrivals = check_arrivals(load.arrivals, _array(sent))
                if point.arrivals.ok is False:
                    point.notes.append(f"arrivals: {point.arrivals.detail}")
            point.server.update(await client.snapshot())
            for observer in observers:
                await observer.end(point, outcome.records)
            await _measure_loss(client, losses)
            points.append(point)
            records += outcome.records
            display.say(_point_line(point, load))
        while losses and len(losses) < 3 and not stop.is_set():
            await _measure_loss(client, losses)
    finally:
        ticker.cancel()
        display.close()
    if losses:
        loss = loss_convergence(losses)
        for point in points:
            point.convergence.append(loss)
            if loss.status == "not_converged" and point.status == "complete":
                point.status = "not_converged"
    status: Status = "partial" if stop.is_set() else _worst(points)
    if plan.search is not None and status not in ("partial", "invalid", "no_data"):
        # Levels beyond the capacity never settle: that is what the search is for.
        status = "complete" if plan.search.ended else status
    result = Result(
        run_id=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=status,
        command=plan.command,
        seed=plan.seed,
        environment=await asyncio.to_thread(collect_environment),
        target=Target(
            kind="embedded" if info.kind == "embedded" else "endpoint",
            name=info.name,
            url=url,
            api=api,
            card=info.card,
        ),
        workload=plan.workload.describe(),
        warmup=warmup.as_dict(),
        slo=plan.slo,
        points=points,
        knee=sweep.knee(points),
        search=plan.search.summary() if plan.search is not None else None,
        warnings=[*plan.notes, *info.notes, *warmup.notes, *_warnings(points)],
        definitions=dict(DEFINITIONS),
        extra={"interrupted": True} if stop.is_set() else {},
    )
    return BenchOutcome(result, records)


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set ``stop``; a second Ctrl-C interrupts at once. Use inside a running loop."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, first)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no such signals here
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGINT, previous)


async def _tick(display: Progress, live: LiveState) -> None:
    while True:
        await asyncio.sleep(REFRESH_S)
        display.update(live)


async def _unless_stopped(task: asyncio.Task[Any], stop: asyncio.Event) -> Any:
    """The task's result, or ``None`` when the stop came first (the task is cancelled then)."""
    waiter = asyncio.create_task(stop.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        return None
    return task.result()


async def _measure_loss(client: Client, losses: list[float]) -> None:
    """Mean token loss on a fixed text, where the target can say it (the optional hook ``text_loss``)."""
    hook: Callable[[str], Any] | None = getattr(client, "text_loss", None)
    if hook is None:
        return
    loss = hook(FIXED_TEXT)
    loss = await loss if inspect.isawaitable(loss) else loss
    if loss is not None:
        losses.append(float(loss))


def _worst(points: Sequence[LoadPoint]) -> Status:
    if not points:
        return "no_data"
    return min((point.status for point in points), key=_WORST_FIRST.index)


def _where(point: LoadPoint) -> str:
    if point.mode == "closed":
        return f"concurrency {point.concurrency:g}"
    return f"{point.rate:g} req/s" if point.rate else "trace"


def _warnings(points: Sequence[LoadPoint]) -> list[str]:
    found = []
    for point in points:
        where = _where(point)
        found += [f"{where}: {note}" for note in point.notes]
        for entry in point.convergence:
            if entry.status == "not_converged":
                found.append(f"{where}: {entry.metric} did not converge: {entry.detail}")
    return list(dict.fromkeys(found))


def _point_line(point: LoadPoint, load: Load) -> str:
    rate = point.metrics["throughput.output"].value
    gap = point.metrics["itl.p50"].value
    figures = [f"{rate:.1f} tok/s" if rate is not None else "no token", f"ITL p50 {gap:.1f} ms" if gap else ""]
    return f"  {load.label}: " + ", ".join([*filter(None, figures), point.status.replace("_", " ")])


def _fields(options: RunOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


def _array(values: list[float]) -> Any:
    import numpy as np

    return np.asarray(values, dtype=np.float64)
