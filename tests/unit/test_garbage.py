"""The heap stays frozen as long as anybody wants it so."""

from __future__ import annotations

import gc

import pytest

from sits.garbage import FrozenHeap, calm_collector


@pytest.fixture(autouse=True)
def nothing_is_left_frozen():
    assert gc.get_freeze_count() == 0
    yield
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_last_one_thaws_the_heap(order):
    held = [FrozenHeap() for _ in range(3)]
    for index in order[:-1]:
        held[index].release()
        held[index].release()  # twice counts once
        assert gc.get_freeze_count() > 0
    held[order[-1]].release()


def test_what_is_garbage_already_is_not_kept():
    freed = []

    class Node:
        def __del__(self):
            freed.append(True)

    node = Node()
    node.itself = node
    del node
    heap = FrozenHeap()
    assert freed == [True]
    heap.release()


def test_a_measurement_leaves_an_engine_its_frozen_heap():
    engine, before = FrozenHeap(), gc.get_threshold()
    with calm_collector():
        with calm_collector():
            pass
        assert gc.get_threshold()[0] == 50_000
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() > 0
    engine.release()


def test_an_engine_that_closes_in_a_measurement_leaves_it_calm():
    engine = FrozenHeap()
    with calm_collector():
        engine.release()
        assert gc.get_freeze_count() > 0
