"""The event log of an engine: everything that happens, with a monotonic nanosecond time and a cause.

The P3197 clauses, traces, ``sits explain`` and the tests all read this one log. An event is a plain tuple on
the hot path (:class:`Event` is what readers see); appending one costs well under a microsecond.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class EventKind(IntEnum):
    """What happened. The number is what is stored; never reuse one."""

    ARRIVAL = 1  # entity = request
    ADMITTED = 2  # request got its first KV block
    SCHEDULED = 3  # request is part of a step; value = tokens of it in this step
    CHUNK = 4  # a prefill chunk of it finished; value = prompt tokens computed so far
    TOKEN = 5  # one output token exists; value = its index, from 0
    PREEMPTED = 6  # its blocks were taken; it will be recomputed
    FINISHED = 7  # terminal; detail = finish reason
    CANCEL_REQUESTED = 8  # the caller asked; the scheduler has not acted yet
    STEP_BEGIN = 9  # it was handed to the device; entity = step; value = tokens in the batch
    STEP_END = 10  # the device had finished it (known, and logged, a little later); value = requests in the batch
    BLOCK_ALLOCATED = 11  # entity = block id
    BLOCK_FREED = 12
    BLOCK_REUSED = 13  # prefix hit; entity = block id
    PERCEIVED = 14  # the scheduler saw an arrival, a cancel or a step completion; cause = that event
    ROUND_TRIP = 15  # a message to another worker or replica and back; entity = the pair, value = ns


class Event(NamedTuple):
    """One entry. ``cause`` is the sequence number of the event that made this one happen, or -1."""

    sequence: int
    time_ns: int
    kind: EventKind
    entity: str
    cause: int = -1
    value: int = 0
    detail: str = ""
