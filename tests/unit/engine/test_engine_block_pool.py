"""The block pool: every block is accounted for, whatever is done to it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sits.cache.block_pool import BlockPool
from sits.cache.free_runs import FreeRuns
from sits.cache.prefix_hash import block_digest, extend_digests, root_digest
from sits.errors import InputError, SitsError


class PoolMachine(RuleBasedStateMachine):
    """Requests come, grow, share, publish and go; the model is a list of block lists and a dict of contents."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[int, bytes]] = []
        self.pool = BlockPool(24, 4, on_evict=lambda block, digest: self.evicted.append((block, digest)))
        self.owners: list[list[int]] = []
        self.content: dict[bytes, int] = {}
        self.names = 0

    @rule(count=st.integers(0, 10), room=st.integers(0, 30))
    def allocate(self, count: int, room: int) -> None:
        available = self.pool.available
        blocks = self.pool.allocate(count, room=room)
        assert (blocks is None) == (count > available)
        if blocks is not None:
            assert len(set(blocks)) == count
            assert 0 not in blocks
            assert all(self.pool.references(block) == 1 for block in blocks)
            self.owners.append(blocks)
        self._drop_evicted()

    @precondition(lambda self: any(self.owners))
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([blocks for blocks in self.owners if blocks]))
        fresh = self.pool.allocate(1, after=owner[-1])
        if fresh is not None:
            owner += fresh
        self._drop_evicted()

    @precondition(lambda self: any(self.owners))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(data.draw(st.sampled_from([b for b in self.owners if b]))))
        digest = b"%d" % self.names
        self.names += 1
        if self.pool.publish(block, digest):
            self.content[digest] = block

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def reuse(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.content)))
        blocks = self.pool.match([digest, b"unknown"])
        assert blocks == [self.content[digest]]
        self.pool.acquire(blocks)
        self.owners.append(blocks)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), forget=st.booleans())
    def release(self, data: st.DataObject, forget: bool) -> None:
        blocks = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        unused = self.pool.release(blocks, forget=forget)
        assert set(unused) == {b for b in blocks if not any(b in owner for owner in self.owners)}
        if forget:
            self.content = {digest: block for digest, block in self.content.items() if block not in blocks}

    @rule()
    def clear(self) -> None:
        self.pool.clear_cached()
        assert self.pool.cached == 0
        self._drop_evicted()

    def _drop_evicted(self) -> None:
        for block, digest in self.evicted:
            assert self.content.pop(digest) == block
        self.evicted.clear()

    @invariant()
    def accounted(self) -> None:
        self.pool.check_integrity(self.owners)
        assert self.pool.used == len({block for blocks in self.owners for block in blocks})
        assert all(self.pool.match([digest]) == [block] for digest, block in self.content.items())


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_growing_requests_keep_consecutive_blocks():
    pool = BlockPool(1025, 16)
    requests = [pool.allocate(4, room=32) for _ in range(8)]
    for _ in range(28):
        for blocks in requests:
            blocks += pool.allocate(1, after=blocks[-1])
    for blocks in requests:
        assert blocks == list(range(blocks[0], blocks[0] + 32))


def test_least_recently_released_goes_first_and_a_prefix_outlives_its_end():
    pool = BlockPool(7, 4)
    old, new = pool.allocate(3), pool.allocate(3)
    for block in old + new:
        pool.publish(block, b"%d" % block)
    pool.release(old)
    pool.release(new)
    pool.allocate(2)
    assert pool.match([b"%d" % old[0]]) == [old[0]]
    assert pool.match([b"%d" % old[1]]) == pool.match([b"%d" % old[2]]) == []
    assert pool.match([b"%d" % block for block in new]) == new


def test_the_first_of_two_equal_blocks_is_the_one_published():
    pool = BlockPool(5, 4)
    first, second = pool.allocate(1), pool.allocate(1)
    assert pool.publish(first[0], b"same")
    assert not pool.publish(second[0], b"same")
    pool.release(second)
    assert pool.match([b"same"]) == first
    pool.check_integrity([first])


@pytest.mark.parametrize("blocks", [0, 1])
def test_no_memory_for_one_block_is_a_clear_error(blocks):
    with pytest.raises(InputError, match="has room for 0 blocks"):
        BlockPool(blocks, 16)


def test_damage_is_found():
    pool = BlockPool(8, 4)
    blocks = pool.allocate(2)
    with pytest.raises(SitsError, match="reference counts"):
        pool.check_integrity([blocks[:1]])
    with pytest.raises(SitsError, match="released more often"):
        pool.release([blocks[0], blocks[0]])


def test_names_depend_on_everything_before_and_on_the_tenant():
    tokens = list(range(16))
    names: list[bytes] = []
    extend_digests(names, root_digest(), tokens, 4, 4)
    again: list[bytes] = names[:2]
    extend_digests(again, root_digest(), tokens, 4, 4)
    assert again == names
    assert len(set(names)) == 4
    changed: list[bytes] = []
    extend_digests(changed, root_digest(), [99, *tokens[1:]], 4, 4)
    other: list[bytes] = []
    extend_digests(other, root_digest("tenant"), tokens, 4, 4)
    assert not set(changed) & set(names)
    assert not set(other) & set(names)
    assert block_digest(names[0], [1, 2]) != block_digest(names[0], [1, 2, 0])


def test_free_runs_merge_on_both_sides():
    runs = FreeRuns(1, 10)
    taken = list(runs.take_new(10, 10))
    assert taken == list(range(1, 11))
    assert len(runs) == 0
    assert not runs.take_new(1, 1)
    for block in (3, 5, 4, 1, 2):
        runs.add(block)
    assert runs.runs() == {1: 5}
    assert list(runs.take_after(3, 9)) == []  # 4 is inside a run: its predecessor is free, so nobody asks after it
