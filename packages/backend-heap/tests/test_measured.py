"""Measurements of the backend: new and removed cells, and whether the process held the state."""

from __future__ import annotations

from datetime import timedelta

from forebay_backend_heap import HeapBackend
from forebay_state_api import (
    CleanupFullSnapshot,
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_testing import KeyedJob, ManualClock
from forebay_testing.backends.subject import memory_storage


class Keep(KeyedProcessFunction):
    """A row (key, value): 0 removes the key's cell of each state."""

    ttl = None

    def open(self, ctx):
        self.value = ctx.get_state(ValueStateDescriptor("v", int, ttl=self.ttl))
        self.list = ctx.get_list_state(ListStateDescriptor("l", int))

    def process_element(self, row, ctx):
        if row[1]:
            self.value.update(row[1])
            self.list.add(row[1])
        else:
            self.value.clear()
            self.list.clear()


def figures(job, rows, function=None):
    job.run(function or Keep(), rows)
    return job.reports[0].figures


def test_new_and_removed_cells_are_counted():
    job = KeyedJob(HeapBackend, memory_storage())
    first = figures(job, [("a", 1), ("b", 1), ("a", 2)])
    assert (first["keys_new"], first["keys_removed"], first["keys"]) == (4, 0, 4)
    assert "cache_hits_process" not in first, "there was nothing to open"
    second = figures(job, [("a", 0), ("c", 1), ("nobody", 0), ("d", 1), ("d", 0)])
    assert second["keys"] == 4
    assert second["keys_new"] - second["keys_removed"] == 0
    assert second["keys_new"] == 4, "c, and d, which is removed again"
    assert (second["cache_hits_process"], second["cache_misses_process"]) == (1, 0)
    third = figures(job, [])
    assert (third["keys_new"], third["keys_removed"], third["keys"]) == (0, 0, 4)


def test_without_a_cache_the_files_are_read():
    job = KeyedJob(HeapBackend, memory_storage(), cache_bytes=0)
    figures(job, [("a", 1)])
    second = figures(job, [("b", 1)])
    assert (second["cache_hits_process"], second["cache_misses_process"]) == (0, 1)
    assert (second["keys_new"], second["keys"]) == (2, 4)


def test_cells_that_a_snapshot_drops_are_removed_cells():
    clock = ManualClock()
    function = Keep()
    function.ttl = StateTtlConfig(timedelta(seconds=10), cleanup=[CleanupFullSnapshot()])
    job = KeyedJob(HeapBackend, memory_storage(), clock=clock)
    figures(job, [("a", 1)], function)
    clock.advance(timedelta(minutes=1))
    found = figures(job, [(f"new {n}", 1) for n in range(50)], function)
    assert found["keys"] == 2 + 100 - found["keys_removed"]
    assert found["keys_new"] == 100
