"""Free block ids as maximal runs of consecutive ids.

Attention on a CPU can *view* the cache when the blocks of a request are consecutive, and has to copy it when they
are not. So a request is continued right after its last block where possible, and a new request starts where it
has room to grow. It knows nothing of references or content.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class FreeRuns:
    """A set of ids kept as disjoint runs; every operation is O(log runs)."""

    def __init__(self, first: int, count: int):
        self._first = first
        self._length_at: dict[int, int] = {}  # start of a run -> its length
        self._start_of_end: dict[int, int] = {}  # one past the end of a run -> its start
        self._largest: list[tuple[int, int]] = []  # heap of (-length, start); entries may be stale
        self._count = 0
        if count:
            self._insert(first, count)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start, length in self._length_at.items():
            yield from range(start, start + length)

    def runs(self) -> dict[int, int]:
        """A copy of {start: length}."""
        return dict(self._length_at)

    def add(self, block: int) -> None:
        """Give one id back, merging with its neighbours."""
        start, length = block, 1
        before = self._start_of_end.get(block)
        if before is not None:
            length += self._remove(before)
            start = before
        if block + 1 in self._length_at:
            length += self._remove(block + 1)
        self._insert(start, length)

    def take_after(self, block: int, count: int) -> range:
        """Up to ``count`` ids directly after ``block``, which must not be free. May be empty."""
        if block + 1 not in self._length_at:
            return range(0)
        return self._cut(block + 1, 0, count)

    def take_new(self, count: int, room: int) -> range:
        """Up to ``count`` ids from the largest run, placed so that ``room`` ids are likely to stay consecutive."""
        while self._largest:
            negative, start = self._largest[0]
            if self._length_at.get(start) == -negative:
                break
            heapq.heappop(self._largest)
        else:
            return range(0)
        spare = -negative - max(count, room)
        # The owner of the block before this run may still grow into it: leave it half of what is spare.
        return self._cut(start, 0 if start == self._first or spare <= 0 else spare // 2, count)

    def _cut(self, start: int, offset: int, count: int) -> range:
        length = self._remove(start)
        taken = min(count, length - offset)
        if offset:
            self._insert(start, offset)
        if length - offset - taken:
            self._insert(start + offset + taken, length - offset - taken)
        return range(start + offset, start + offset + taken)

    def _insert(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_of_end[start + length] = start
        self._count += length
        heapq.heappush(self._largest, (-length, start))
        if len(self._largest) > 4 * len(self._length_at) + 64:  # drop stale entries before they pile up
            self._largest = [(-size, begin) for begin, size in self._length_at.items()]
            heapq.heapify(self._largest)

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_of_end[start + length]
        self._count -= length
        return length
