"""Freezing: the collector does not see large states, and finds garbage all the same."""

from __future__ import annotations

import gc
import weakref

import pytest

from forebay_backend_heap.collector import LARGE, Freezer, paused
from forebay_backend_heap.table import Cells


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()
    gc.collect()


class Node:
    """Garbage that only the collector finds."""


def cycle():
    node = Node()
    node.self = node
    return weakref.ref(node)


def frozen(thing):
    return gc.is_tracked(thing) and all(thing is not other for other in gc.get_objects())


def test_a_large_state_stays_frozen_while_it_is_written(thawed):
    freezer, cells = Freezer(), Cells({i: (i, i) for i in range(1000)})
    freezer.committed(LARGE)
    assert frozen(cells)
    cells[1] = (1, 2)
    gc.collect()
    assert frozen(cells)


def test_small_states_are_left_alone(thawed):
    cells = Cells()
    freezer = Freezer()
    freezer.committed(LARGE - 1)
    freezer.loaded(LARGE - 1)
    assert not frozen(cells)


def test_garbage_of_a_batch_is_collected_before_freezing(thawed):
    garbage = cycle()
    Freezer().committed(LARGE)
    assert garbage() is None


def test_garbage_that_was_frozen_is_found_after_the_thaw(thawed):
    freezer = Freezer()
    garbage = cycle()
    gc.freeze()
    for _ in range(31):
        freezer.committed(LARGE)
    assert garbage() is not None
    freezer.committed(LARGE)
    gc.collect()
    assert garbage() is None


def test_paused_restores_what_was():
    with paused():
        assert not gc.isenabled()
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
