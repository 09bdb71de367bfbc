"""The clauses of P3197 (draft 4.2), computed from the event log of a run as SPEC section 2 defines them.

=========  ================================================================================  ==========
4.2.3(b)   delay from an event (arrival, cancel, step end) to the scheduler acting on it     p99 <= 150 us
4.2.5(d)   ``W = 3 * max(round trip)`` between workers or replicas                           <= 2 ms
Tc         share of consecutive events of one entity whose times do not go back              1.0
Rs         share of admitted requests and KV blocks that end by legal transitions            1.0
Fcau       share of effects logged after their cause, both in order and in time              1.0
=========  ================================================================================  ==========

The log is read once, as a stream. A log whose beginning was dropped (a full ring) is judged on what is left: entities
whose beginning is missing are counted as unseen, not as broken.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sits.errors import InputError
from sits.spec.events import Event, EventKind

PERCEPTION_LIMIT_US = 150.0
WINDOW_LIMIT_MS = 2.0
WINDOW_FACTOR = 3

_K = EventKind
_PERCEIVABLE = {_K.ARRIVAL, _K.CANCEL_REQUESTED, _K.STEP_END}
_MUST_HAVE_CAUSE = {_K.PERCEIVED, _K.CHUNK, _K.TOKEN}
_BLOCKS = {_K.BLOCK_ALLOCATED, _K.BLOCK_FREED, _K.BLOCK_REUSED}
_STEPS = {_K.STEP_BEGIN, _K.STEP_END}
_REQUESTS = {
    _K.ARRIVAL,
    _K.ADMITTED,
    _K.SCHEDULED,
    _K.CHUNK,
    _K.TOKEN,
    _K.PREEMPTED,
    _K.FINISHED,
    _K.CANCEL_REQUESTED,
}

# state -> kinds that are legal there and the state they lead to
REQUEST_TRANSITIONS: dict[str, dict[EventKind, str]] = {
    "new": {_K.ARRIVAL: "waiting"},
    "waiting": {_K.CANCEL_REQUESTED: "waiting", _K.ADMITTED: "running", _K.FINISHED: "finished"},
    "running": {
        _K.SCHEDULED: "running",
        _K.CHUNK: "running",
        _K.TOKEN: "running",
        _K.CANCEL_REQUESTED: "running",
        _K.PREEMPTED: "waiting",
        _K.FINISHED: "finished",
    },
    # A caller may ask to cancel what has just ended.
    "finished": {_K.CANCEL_REQUESTED: "finished"},
}
BLOCK_TRANSITIONS: dict[str, dict[EventKind, str]] = {
    "free": {_K.BLOCK_ALLOCATED: "used", _K.BLOCK_REUSED: "used"},  # reused: its content was kept after it was freed
    "used": {_K.BLOCK_REUSED: "used", _K.BLOCK_FREED: "free"},
}


@dataclass(slots=True)
class Share:
    """How many of a kind are right, and the first that is not."""

    right: int = 0
    total: int = 0
    first_wrong: str | None = None

    def count(self, right: bool, describe: str = "") -> None:
        self.total += 1
        if right:
            self.right += 1
        elif self.first_wrong is None:
            self.first_wrong = describe

    @property
    def value(self) -> float | None:
        """The share; ``None`` when there was nothing to count."""
        return self.right / self.total if self.total else None


@dataclass(slots=True)
class ClauseReport:
    """Everything the clauses need of one log."""

    events: int = 0
    dropped: int = 0
    unknown: int = 0  # events of kinds this version does not know
    unseen: int = 0  # entities whose beginning is not in the log
    workers: int | None = None
    delays_us: array[float] = field(default_factory=lambda: array("d"))
    unperceived: int = 0  # arrivals and cancels that the scheduler never saw although it had to
    round_trips: int = 0
    largest_round_trip_ns: int = 0
    tc: Share = field(default_factory=Share)
    rs: Share = field(default_factory=Share)
    fcau: Share = field(default_factory=Share)

    @property
    def window_ms(self) -> float | None:
        """The synchronisation window; ``None`` without a measured round trip."""
        return WINDOW_FACTOR * self.largest_round_trip_ns / 1e6 if self.round_trips else None


def judge_log(path: Path) -> ClauseReport:
    """The clauses over an ``events.jsonl.gz``. Raises ``InputError`` on a missing, foreign or damaged file."""
    header: dict[str, Any] = {}
    return judge_events(iter_log(path, header), header)


def iter_log(path: Path, header: dict[str, Any] | None = None) -> Iterator[Event]:
    """Events of a log as a stream; the fields of its first line are put into ``header``."""
    decode = msgspec.json.Decoder().decode
    number = 1
    try:
        with gzip.open(path, "rb") as file:
            first = decode(file.readline() or b"null")
            if not isinstance(first, dict) or first.get("sits_events") != 1:
                raise InputError(f"{path} is not a SITS event log", "Expected events.jsonl.gz beside result.json")
            if header is not None:
                header.update(first)
            for line in file:
                number += 1
                yield _event(decode(line))
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist", "It is written beside result.json by the embedded engine"
        ) from None
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged at line {number}: {error}", "Run the benchmark again") from None


def _event(row: Any) -> Event:
    if not isinstance(row, list) or not 4 <= len(row) <= 7:
        raise ValueError("not an event")
    numbers = [*row[:3], *row[4:6]]
    if not all(type(number) is int for number in numbers) or not isinstance(row[3], str):
        raise ValueError("an event has a field of the wrong type")
    return Event(*row)


def judge_events(events: Iterable[Event], header: dict[str, Any] | None = None) -> ClauseReport:
    """The clauses over events in the order of their sequence numbers. ``header`` is read after the last event, so it
    may be filled while they are (:func:`iter_log`)."""
    return _Judge({} if header is None else header).run(events)


class _Judge:
    """One pass over a log."""

    def __init__(self, header: dict[str, Any]):
        self.report = ClauseReport()
        self.header = header
        self.times: dict[int, int] = {}  # of each sequence number
        self.last: dict[str, int] = {}  # time of the last event of each entity
        self.requests: dict[str, str] = {}  # state
        self.blocks: dict[str, str] = {}
        self.admitted: set[str] = set()
        self.broken: dict[str, str] = {}  # entity -> the first illegal transition
        self.waiting: dict[int, tuple[EventKind, str]] = {}  # perceivable events not yet perceived
        self.first: int | None = None

    def run(self, events: Iterable[Event]) -> ClauseReport:
        report, previous, perceiving = self.report, -1, False
        for event in events:
            report.events += 1
            try:
                kind = EventKind(event.kind)
            except ValueError:
                report.unknown += 1
                continue
            if self.first is None:
                self.first = event.sequence
            if event.sequence <= previous:
                report.fcau.count(False, f"event {event.sequence} stands after event {previous} in the log")
            previous = max(previous, event.sequence)
            self._time(event, kind)
            self._cause(event, kind)
            perceiving |= kind is _K.PERCEIVED
            if kind is _K.ROUND_TRIP:
                report.round_trips += 1
                report.largest_round_trip_ns = max(report.largest_round_trip_ns, event.value)
            elif kind in _BLOCKS:
                self._step(event.entity, kind, self.blocks, BLOCK_TRANSITIONS, "free", event)
            elif kind in _REQUESTS:
                if kind is _K.ADMITTED:
                    self.admitted.add(event.entity)
                self._step(event.entity, kind, self.requests, REQUEST_TRANSITIONS, "new", event)
        dropped, workers = self.header.get("dropped"), self.header.get("workers")
        report.dropped = dropped if isinstance(dropped, int) else 0
        report.workers = workers if isinstance(workers, int) else None
        self._close(perceiving)
        return report

    def _time(self, event: Event, kind: EventKind) -> None:
        before = self.last.get(event.entity)
        if before is not None:
            back = before - event.time_ns
            text = f"{kind.name} of {event.entity} (event {event.sequence}) is {back} ns before the event it follows"
            self.report.tc.count(back <= 0, text)
        self.last[event.entity] = event.time_ns
        self.times[event.sequence] = event.time_ns
        if kind in _PERCEIVABLE:
            self.waiting[event.sequence] = (kind, event.entity)

    def _cause(self, event: Event, kind: EventKind) -> None:
        report = self.report
        if event.cause < 0:
            if kind in _MUST_HAVE_CAUSE:
                report.fcau.count(False, f"{kind.name} of {event.entity} (event {event.sequence}) names no cause")
            return
        happened = self.times.get(event.cause)
        if happened is None:
            # A cause older than the log's beginning was dropped from the ring; nothing can be said about it.
            if self.first is not None and event.cause < self.first:
                return
            text = f"{kind.name} of {event.entity} (event {event.sequence}) is logged before its cause {event.cause}"
            report.fcau.count(False, text)
            return
        early = happened - event.time_ns
        name = f"{kind.name} of {event.entity} (event {event.sequence})"
        text = f"{name} happens {early} ns before its cause {event.cause}"
        report.fcau.count(early <= 0, text)
        if kind is _K.PERCEIVED and self.waiting.pop(event.cause, None) is not None:
            report.delays_us.append((event.time_ns - happened) / 1e3)

    def _step(
        self,
        entity: str,
        kind: EventKind,
        states: dict[str, str],
        table: dict[str, dict[EventKind, str]],
        start: str,
        event: Event,
    ) -> None:
        state = states.get(entity)
        cut = self.report.dropped or (self.first or 0) > 0
        if state is None and kind not in table[start] and cut:
            self.report.unseen += 1
            states[entity] = "unseen"
            return
        if state == "unseen":
            return
        state = state or start
        following = table[state].get(kind)
        if following is None:
            self.broken.setdefault(entity, f"{kind.name} of {entity} (event {event.sequence}) while it is {state}")
            following = "finished" if kind is _K.FINISHED else "free" if kind is _K.BLOCK_FREED else state
        states[entity] = following

    def _close(self, perceiving: bool) -> None:
        report = self.report
        for entity in sorted(self.admitted):
            state = self.requests.get(entity)
            if state == "unseen":
                continue
            wrong = self.broken.get(entity)
            if wrong is None and state != "finished":
                wrong = f"request {entity} never ends: it is {state} at the end of the log"
            report.rs.count(wrong is None, wrong or "")
        for entity, wrong in self.broken.items():
            if entity in self.requests and entity not in self.admitted:
                report.rs.count(False, wrong)
        for entity, state in self.blocks.items():
            if state == "unseen":
                continue
            wrong = self.broken.get(entity)
            if wrong is None and state != "free":
                wrong = f"{entity} is still in use at the end of the log"
            report.rs.count(wrong is None, wrong or "")
        if perceiving:
            for kind, entity in self.waiting.values():
                ended = self.requests.get(entity) in ("finished", "unseen")
                if kind is _K.ARRIVAL or (kind is _K.CANCEL_REQUESTED and not ended):
                    report.unperceived += 1
