"""Freezing at the beginning of tasks: old objects are skipped, and garbage is still found."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest

from forebay_spark_runtime.worker_process import garbage_collection
from forebay_spark_runtime.worker_process.garbage_collection import (
    THAW_EVERY,
    YOUNG_OBJECTS,
    begin_task,
    loading,
)


@pytest.fixture(autouse=True)
def first_task(monkeypatch):
    """Set the collector as in a fresh process, and restore it.

    All objects are frozen at the end, as after the collection of tests: what one of these tests
    thaws, each later test that collects garbage would traverse.
    """
    monkeypatch.setattr(garbage_collection, "_tasks", itertools.count(1))
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()


class Node:
    """Make garbage that only the collector finds."""


def cycle():
    node = Node()
    node.self = node
    return weakref.ref(node)


def is_frozen(thing):
    return gc.is_tracked(thing) and all(thing is not other for other in gc.get_objects())


def test_what_lives_when_a_task_begins_is_not_looked_at():
    state = {i: [i] for i in range(100)}
    begin_task()
    assert is_frozen(state)
    later = [state]
    gc.collect()
    assert not is_frozen(later)


def test_garbage_of_a_task_is_found_after_it():
    begin_task()
    garbage = cycle()
    gc.collect()
    assert garbage() is None


@pytest.mark.long
def test_what_becomes_garbage_later_is_found_after_a_while():
    garbage = cycle()
    for _ in range(THAW_EVERY - 1):
        begin_task()
        gc.collect()
    assert garbage() is not None
    begin_task()
    gc.collect()
    assert garbage() is None


@pytest.mark.parametrize(
    ("before", "after"),
    [(700, YOUNG_OBJECTS), (2 * YOUNG_OBJECTS, 2 * YOUNG_OBJECTS), (0, 0)],
)
def test_the_collector_comes_seldom_unless_it_does_already_or_never(before, after):
    gc.set_threshold(before, 11, 12)
    begin_task()
    assert gc.get_threshold() == (after, 11, 12)


def test_a_loaded_state_is_not_traversed():
    with loading(begin_task()) as loaded:
        assert not gc.isenabled()
        state = {i: [i] for i in range(100)}
        loaded()
        assert is_frozen(state)
        assert gc.isenabled()
    assert gc.isenabled()


@pytest.mark.long
def test_garbage_of_loading_is_found_after_a_while():
    found = []
    for _ in range(THAW_EVERY):
        with loading(begin_task()) as loaded:
            found.append(cycle())
            loaded()
        gc.collect()
    assert [garbage() for garbage in found] == [None] * THAW_EVERY


def test_the_collector_goes_on_when_loading_fails():
    with pytest.raises(OSError, match="no such file"), loading(begin_task()):
        raise OSError("no such file")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_so():
    gc.disable()
    try:
        with loading(begin_task()) as loaded:
            loaded()
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
