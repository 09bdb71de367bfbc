"""An engine's event log as steps, requests and an unbroken line of time segments.

Knows the event kinds of :mod:`sits.spec.events`; knows nothing of models or cards. Between two step ends lies one
period: the scheduler's part (until the step was decided), preparation (until it began), execution. Time in which no
request was alive is idle and belongs to nobody.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from sits.errors import InputError
from sits.spec.events import Event, EventKind

SCHEDULER = "scheduler"
PREPARE = "prepare"
EXECUTE = "execute"
IDLE = "idle"


@dataclass(slots=True)
class StepRecord:
    """One engine step, from when the device could begin it (it was handed over, and the step before was over) to when
    it was done. ``contexts``: cached tokens of each decoding sequence; ``prefill``: (new, cached) chunks."""

    name: str
    begin_ns: int
    end_ns: int = 0
    scheduled_ns: int = 0
    contexts: list[int] = field(default_factory=list)
    prefill: list[tuple[int, int]] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    partial: bool = False  # a member whose beginning the log no longer has: its context is unknown

    @property
    def execute_ms(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e6

    @property
    def mixed(self) -> bool:
        return bool(self.prefill)


@dataclass(slots=True)
class RequestTrack:
    """One request's life. ``preempted`` holds (taken, scheduled again) pairs, 0 while it still waits."""

    name: str
    arrival_ns: int
    first_scheduled_ns: int = 0
    admitted_ns: int = 0
    finished_ns: int = 0
    reason: str = ""
    token_ns: list[int] = field(default_factory=list)
    chunk_ns: list[int] = field(default_factory=list)
    preempted: list[tuple[int, int]] = field(default_factory=list)
    computed: int = 0  # by the steps decided so far
    in_cache: int = 0  # prompt tokens, by the steps that are over
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of engine time. ``step`` is an index into ``RunLog.steps``, -1 for idle."""

    start_ns: int
    end_ns: int
    label: str
    step: int


@dataclass(slots=True)
class RunLog:
    """The whole run. ``segments`` are ordered and do not overlap."""

    steps: list[StepRecord]
    requests: dict[str, RequestTrack]
    segments: list[Segment]
    perception_ns: list[int] = field(default_factory=list)
    most_blocks: int = 0  # largest number of KV blocks in use at once
    _starts: list[int] = field(default_factory=list)

    def overlapping(self, start_ns: int, end_ns: int) -> Iterable[tuple[Segment, int]]:
        """Segments that touch an interval, each with the ns they share with it."""
        index = max(0, bisect.bisect_right(self._starts, start_ns) - 1)
        while index < len(self.segments) and self.segments[index].start_ns < end_ns:
            segment = self.segments[index]
            shared = min(segment.end_ns, end_ns) - max(segment.start_ns, start_ns)
            if shared > 0:
                yield segment, shared
            index += 1


def read_run(events: Iterable[Event], since_ns: int = 0, until_ns: int | None = None) -> RunLog:
    """Build the log of a run from its events in order of sequence number.

    ``since_ns`` and ``until_ns`` (monotonic) keep requests that *arrived* in that window; all steps are kept, since
    they explain the waiting. Raises ``InputError`` when there is no complete step.
    """
    steps: dict[str, StepRecord] = {}
    order: list[StepRecord] = []
    requests: dict[str, RequestTrack] = {}
    alive: list[tuple[int, int]] = []  # (time, +1 or -1)
    asked: dict[int, int] = {}
    perception: list[int] = []
    pending: dict[str, list[tuple[str, int, int]]] = {}  # step -> (request, count, computed before)
    blocks: set[str] = set()
    last = most_blocks = 0
    for event in events:
        last = max(last, event.time_ns)
        kind, name = event.kind, event.entity
        if kind == EventKind.ARRIVAL:
            requests[name] = RequestTrack(name, event.time_ns)
            alive.append((event.time_ns, 1))
            asked[event.sequence] = event.time_ns
        elif kind == EventKind.CANCEL_REQUESTED:
            asked[event.sequence] = event.time_ns
        elif kind == EventKind.PERCEIVED and event.cause in asked:
            perception.append(event.time_ns - asked.pop(event.cause))
        elif kind in (EventKind.BLOCK_ALLOCATED, EventKind.BLOCK_REUSED):
            blocks.add(name)
            most_blocks = max(most_blocks, len(blocks))
        elif kind == EventKind.BLOCK_FREED:
            blocks.discard(name)
        elif kind == EventKind.STEP_BEGIN:
            step = StepRecord(name, event.time_ns)
            steps[name] = step
            order.append(step)
        elif kind == EventKind.STEP_END:
            if name in steps:
                steps[name].end_ns = event.time_ns
                asked[event.sequence] = event.time_ns
        elif kind == EventKind.SCHEDULED:
            track = requests.get(name)
            before = 0
            if track is not None:
                before = track.computed
                track.first_scheduled_ns = track.first_scheduled_ns or event.time_ns
                if track.preempted and track.preempted[-1][1] == 0:
                    track.preempted[-1] = (track.preempted[-1][0], event.time_ns)
                track.computed += event.value
            pending.setdefault(event.detail, []).append((name, event.value, before))
            if event.detail in steps and not steps[event.detail].scheduled_ns:
                steps[event.detail].scheduled_ns = event.time_ns
            else:
                steps.setdefault("@" + event.detail, StepRecord(event.detail, 0)).scheduled_ns = event.time_ns
        elif name in requests:
            _request_event(requests[name], event, alive)
    complete = []
    for step in order:
        if step.end_ns <= step.begin_ns:
            continue
        early = steps.get("@" + step.name)
        step.scheduled_ns = step.scheduled_ns or (early.scheduled_ns if early else 0)
        for name, count, before in pending.get(step.name, ()):
            step.members.add(name)
            track = requests.get(name)
            if track is None:
                step.partial = True
                continue
            # A decode recomputes nothing: one token, after the prompt is in the cache.
            if count == 1 and 0 < track.prompt_tokens <= before:
                step.contexts.append(before)
            else:
                step.prefill.append((count, before))
        complete.append(step)
    if not complete:
        raise InputError(
            "the event log holds no complete step", "Was it written by sits bench with an embedded engine?"
        )
    complete.sort(key=lambda step: step.end_ns)
    for step, following in pairwise(complete):  # handed over early: it began when the one before it was over
        following.begin_ns = max(following.begin_ns, min(step.end_ns, following.end_ns))
    kept = {
        name: track
        for name, track in requests.items()
        if track.arrival_ns >= since_ns and (until_ns is None or track.arrival_ns <= until_ns)
    }
    segments = _segments(complete, sorted(alive), last)
    return RunLog(complete, kept, segments, perception, most_blocks, [segment.start_ns for segment in segments])


def _request_event(track: RequestTrack, event: Event, alive: list[tuple[int, int]]) -> None:
    kind = event.kind
    if kind == EventKind.ADMITTED:
        if not track.admitted_ns:
            track.admitted_ns, track.cached_tokens = event.time_ns, event.value
        track.computed = event.value
    elif kind == EventKind.TOKEN:
        if not track.token_ns:  # its next step may have been decided already: then more is on the way
            track.prompt_tokens = min(track.computed, track.in_cache or track.computed)
        track.token_ns.append(event.time_ns)
    elif kind == EventKind.CHUNK:
        track.chunk_ns.append(event.time_ns)
        track.in_cache = event.value
    elif kind == EventKind.PREEMPTED:
        track.preempted.append((event.time_ns, 0))
        track.computed = 0
    elif kind == EventKind.FINISHED and not track.finished_ns:
        track.finished_ns, track.reason = event.time_ns, event.detail
        alive.append((event.time_ns, -1))


def _segments(steps: list[StepRecord], alive: list[tuple[int, int]], last_ns: int) -> list[Segment]:
    """Cut the time line at step ends; take out the time nobody was alive."""
    found: list[Segment] = []
    idle = _idle_spans(alive, last_ns)
    start = alive[0][0] if alive else steps[0].begin_ns
    for index, step in enumerate(steps):
        begin = max(step.begin_ns, start)
        decided = min(max(step.scheduled_ns or begin, start), begin)
        _add(found, start, decided, SCHEDULER, index, idle)
        _add(found, decided, begin, PREPARE, index, idle)
        if step.end_ns > begin:
            found.append(Segment(begin, step.end_ns, EXECUTE, index))
        start = max(start, step.end_ns)
    if last_ns > start:  # the last tokens are delivered after the last step's end
        _add(found, start, last_ns, SCHEDULER, len(steps) - 1, idle)
    return found


def _idle_spans(alive: list[tuple[int, int]], last_ns: int) -> list[tuple[int, int]]:
    spans, count, since = [], 0, None
    for time_ns, change in alive:
        if count == 0 and change > 0 and since is not None:
            spans.append((since, time_ns))
        count += change
        since = time_ns if count == 0 else since
    if count == 0 and since is not None and last_ns > since:
        spans.append((since, last_ns))
    return spans


def _add(
    found: list[Segment], start: int, end: int, label: str, step: int, idle: list[tuple[int, int]]
) -> None:  # fmt: skip
    """Append [start, end) with its idle parts marked as such."""
    index = bisect.bisect_left(idle, (start, start)) - 1
    for since, until in idle[max(0, index) :]:
        if since >= end or start >= end:
            break
        low, high = max(since, start), min(until, end)
        if low >= high:
            continue
        if low > start:
            found.append(Segment(start, low, label, step))
        found.append(Segment(low, high, IDLE, -1))
        start = high
    if end > start:
        found.append(Segment(start, end, label, step))
