"""The engine's diary: plain tuples appended on the hot path, read by everybody else later.

An entry costs one clock read, one counter and one append. It holds nothing but plain numbers and texts, so that the
garbage collector need not look at it: a member of an enumeration in it would make each collection of all generations
walk the whole log, with everybody waiting. Any thread may write. The log is a ring: when it is
full the oldest entries go, and ``dropped`` says how many.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count, islice, repeat
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

import msgspec

from sits.errors import InputError
from sits.spec.events import Event, EventKind

DEFAULT_CAPACITY = 1 << 18


class EventLog:
    """Events of one engine; see ``sits.spec.events``."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY, *, enabled: bool = True):
        self.enabled = enabled
        self._entries: deque[tuple[int, int, int, str, int, int, str]] = deque(maxlen=capacity)
        self._append = self._entries.append
        self._sequence = count()
        self._next = self._sequence.__next__
        self._written = 0

    def add(self, kind: int, entity: str, cause: int = -1, value: int = 0, detail: str = "", time_ns: int = 0) -> int:
        """Record an event now (or at ``time_ns``); returns its sequence number, -1 when the log is off."""
        if not self.enabled:
            return -1
        sequence = self._next()
        self._append((sequence, time_ns or monotonic_ns(), int(kind), entity, cause, value, detail))
        return sequence

    def add_each(
        self,
        kind: int,
        entities: Sequence[str],
        causes: Iterable[int],
        values: Iterable[int],
        detail: str,
        time_ns: int,
    ) -> list[int]:
        """Record one event of a kind for each of ``entities``, all at the same time; returns their sequence numbers.

        A tenth of the cost of as many :meth:`add`. Only with the log on.
        """
        sequences = list(islice(self._sequence, len(entities)))
        self._entries.extend(
            zip(sequences, repeat(time_ns), repeat(int(kind)), entities, causes, values, repeat(detail))
        )
        return sequences

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def dropped(self) -> int:
        """Entries lost because the ring was full."""
        entries = self._snapshot()
        return max((entry[0] for entry in entries), default=-1) + 1 - len(entries)

    def clear(self) -> None:
        """Forget all entries; sequence numbers go on."""
        self._entries.clear()

    def events(self) -> list[Event]:
        """All entries in order of their sequence number."""
        return [
            Event(sequence, time, EventKind(kind), entity, cause, value, detail)
            for sequence, time, kind, entity, cause, value, detail in sorted(self._snapshot())
        ]

    def write(self, path: Path, meta: dict[str, Any] | None = None) -> int:
        """Write ``events.jsonl.gz`` atomically: a header line, then one array per event. Returns the count."""
        entries = sorted(self._snapshot())
        header = {
            "sits_events": 1,
            "columns": list(Event._fields),
            "kinds": {kind.name: int(kind) for kind in EventKind},
            "monotonic_ns": monotonic_ns(),
            "unix_ns": time_ns(),  # the same instant on both clocks, to join with other logs
            "dropped": self.dropped,
            **(meta or {}),
        }
        encode = msgspec.json.encode
        temporary = path.with_name(path.name + ".partial")
        try:
            with gzip.open(temporary, "wb", compresslevel=3) as file:
                file.write(encode(header) + b"\n")
                for entry in entries:
                    file.write(encode(entry) + b"\n")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return len(entries)

    def _snapshot(self) -> list[tuple[int, int, int, str, int, int, str]]:
        while True:
            try:
                return list(self._entries)
            except RuntimeError:  # another thread appended while we copied; it will not win for long
                continue


def read_events(path: Path) -> list[Event]:
    """The events of a file written by :meth:`EventLog.write`. Raises ``InputError`` on a foreign or damaged file."""
    try:
        with gzip.open(path, "rb") as file:
            header = msgspec.json.decode(file.readline() or b"null")
            if not isinstance(header, dict) or header.get("sits_events") != 1:
                raise InputError(f"{path} is not a SITS event log")
            rows = [msgspec.json.decode(line) for line in file]
        return [Event(s, t, EventKind(kind), *rest) for s, t, kind, *rest in rows]
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}", "Run again to write a new one") from None
