"""Who owns which KV block. It knows ids, references and content names; it never touches a tensor.

Every block is in exactly one of three states: *used* (one or more references), *cached* (no reference, but its
content has a name and can be reused), *free*. Block 0 belongs to nobody: captured graphs point their padding
rows at it. Not thread-safe: the engine thread owns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from sits.cache.free_runs import FreeRuns
from sits.errors import InputError, SitsError

SCRATCH_BLOCK = 0
_EVICT_AHEAD = 16  # evicting a few blocks at once lets consecutive runs form again


class BlockPool:
    """Reference-counted blocks with a prefix index and least-recently-used eviction of cached blocks."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        on_evict: Callable[[int, bytes], None] | None = None,
    ):
        """``num_blocks`` counts the scratch block 0. ``on_evict(block, digest)`` is called before reuse."""
        if block_size < 1:
            raise InputError(f"block_size must be at least 1, not {block_size}")
        if num_blocks < 2:
            raise InputError(
                f"the KV cache has room for {max(num_blocks - 1, 0)} blocks, and one is the least that works",
                "Give more memory, fewer or smaller blocks (kv_blocks, block_size), or a smaller model",
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.on_evict = on_evict
        self._references = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._cached: dict[int, None] = {}  # insertion order is the order of eviction
        self._free = FreeRuns(1, num_blocks - 1)

    @property
    def capacity(self) -> int:
        """Blocks that requests can own."""
        return self.num_blocks - 1

    @property
    def available(self) -> int:
        """Blocks that can be allocated now: free ones, and cached ones nobody refers to."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that at least one request refers to."""
        return self.capacity - self.available

    @property
    def cached(self) -> int:
        """Blocks kept only for reuse."""
        return len(self._cached)

    def references(self, block: int) -> int:
        """How many requests own the block."""
        return self._references[block]

    def allocate(self, count: int, *, after: int | None = None, room: int = 0) -> list[int] | None:
        """``count`` blocks with one reference each, or ``None`` (and nothing changes) when there are too few.

        ``after`` is the last block of the request, which is continued consecutively if possible; ``room`` is how
        many blocks a new request may come to need in all.
        """
        if count > self.available:
            return None
        if count > len(self._free):
            self._evict(count - len(self._free) + min(_EVICT_AHEAD, len(self._cached) // 8))
        blocks: list[int] = []
        while len(blocks) < count:
            missing = count - len(blocks)
            piece = self._free.take_after(after, missing) if after is not None else range(0)
            if not piece:
                piece = self._free.take_new(missing, room - len(blocks))
            blocks.extend(piece)
            after = piece[-1]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest known prefix of ``digests``. Takes no reference: see :meth:`acquire`."""
        blocks: list[int] = []
        for digest in digests:
            block = self._index.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def count_cached(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` count as available now (acquiring them lowers ``available``)."""
        return sum(block in self._cached for block in blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; all must be used or cached."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int], *, forget: bool = False) -> list[int]:
        """Drop one reference of each block; returns those nobody refers to any more.

        Later blocks become evictable before earlier ones: a prefix is useful without its end, not the other way
        round. ``forget`` also removes their names, for content that must not be served again.
        """
        unused = []
        for block in reversed(blocks):
            if forget:
                self._forget(block)
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if self._references[block] < 0:
                raise SitsError(f"KV block {block} was released more often than acquired", "This is a bug in SITS")
            unused.append(block)
            if self._digests[block] is None:
                self._free.add(block)
            else:
                self._cached[block] = None
        return unused

    def publish(self, block: int, digest: bytes) -> bool:
        """Name the content of a used block that is full *and written*, so that others can find it.

        False when nothing was published: prefix caching is off, or another block has that content already.
        """
        if not self.prefix_caching or digest in self._index or self._digests[block] is not None:
            return False
        self._digests[block] = digest
        self._index[digest] = block
        return True

    def clear_cached(self) -> int:
        """Forget everything that no request uses; returns how many blocks became free."""
        count = len(self._cached)
        self._evict(count)
        return count

    def _evict(self, count: int) -> None:
        for block in list(self._cached)[:count] if count < len(self._cached) else list(self._cached):
            del self._cached[block]
            digest = self._digests[block]
            if self.on_evict is not None and digest is not None:
                self.on_evict(block, digest)
            self._forget(block)
            self._free.add(block)

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            self._digests[block] = None
            del self._index[digest]

    def check_integrity(self, owners: Iterable[Sequence[int]] | None = None) -> None:
        """Raise ``SitsError`` unless every block is accounted for; ``owners`` are the block lists of all requests."""
        free, cached = list(self._free), set(self._cached)
        used = {block for block in range(1, self.num_blocks) if self._references[block] > 0}
        problems = []
        if len(set(free)) != len(free) or len(free) != len(self._free):
            problems.append("a block is free twice")
        if len(free) + len(cached) + len(used) != self.capacity or set(free) | cached | used != set(
            range(1, self.num_blocks)
        ):
            problems.append(f"{len(free)} free + {len(cached)} cached + {len(used)} used is not {self.capacity}")
        if self._references[SCRATCH_BLOCK] != 0:
            problems.append("the scratch block is owned")
        if any(self._digests[block] is not None for block in free) or any(self._digests[b] is None for b in cached):
            problems.append("a free block has a name or a cached block has none")
        if {digest: block for block, digest in enumerate(self._digests) if digest is not None} != self._index:
            problems.append("the prefix index disagrees with the names of the blocks")
        if owners is not None:
            owned = Counter(block for blocks in owners for block in blocks)
            wrong = [b for b in range(1, self.num_blocks) if owned[b] != self._references[b]]
            if wrong:
                problems.append(f"reference counts of blocks {wrong[:8]} differ from their owners")
        if problems:
            raise SitsError("the KV block pool lost track: " + "; ".join(problems), "This is a bug in SITS")
