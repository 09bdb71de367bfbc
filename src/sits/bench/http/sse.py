"""Server-sent events, byte by byte: what a stream of HTTP body pieces says, however it was cut.

Accepts everything the WHATWG grammar allows (LF, CRLF or CR line ends, comments, ``event:``/``id:``/``retry:`` lines,
a byte-order mark, several ``data:`` lines) and what servers really send beyond it: ``data:`` without a space and
a last event without its blank line. Work is linear in the bytes received.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is larger than the limit; the stream cannot be trusted further."""


class SseParser:
    """Feed body pieces, get complete events as ``(event name, data bytes)``; the name is ``b""`` mostly."""

    __slots__ = ("_data", "_event", "_first", "_limit", "_partial", "_size", "_skip_lf")

    def __init__(self, limit_bytes: int = 64 << 20):
        self._limit = limit_bytes
        self._partial: list[bytes] = []  # pieces of the line that has not ended yet
        self._size = 0  # bytes held in the open event, its open line included
        self._data: list[bytes] = []
        self._event = b""
        self._skip_lf = False
        self._first = True

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Take the next body bytes; return the events they complete. Raises :class:`EventTooLarge`."""
        if not piece:
            return []
        if self._skip_lf:
            # The last piece ended in CR; an LF here belongs to it.
            self._skip_lf = False
            if piece[0] == 10:
                piece = piece[1:]
        if b"\r" in piece:
            self._skip_lf = piece[-1] == 13
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        if len(lines) == 1:
            self._partial.append(piece)
            self._grow(len(piece))
            return []
        if self._partial:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial.clear()
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[tuple[bytes, bytes]] = []
        data = self._data
        open_bytes = len(piece)
        tail = lines.pop()
        for line in lines:
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif not line:
                if data:
                    events.append((self._event, data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                self._event = b""
                open_bytes = 0
            else:
                self._field(line)
        if tail:
            self._partial.append(tail)
        if open_bytes:
            self._grow(open_bytes)
        else:
            self._size = len(tail)
        return events

    def finish(self) -> list[tuple[bytes, bytes]]:
        """The stream ended: return a last event that lacks its blank line, if any."""
        return self.feed(b"\n\n") if self._partial or self._data else []

    def _grow(self, count: int) -> None:
        self._size += count
        if self._size > self._limit:
            raise EventTooLarge(f"an event is larger than {self._limit} bytes")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        # Comments (empty name), id, retry and unknown fields carry nothing we use.
