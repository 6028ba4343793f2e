"""Measurements of the backend: runs, compaction, and the caches."""

from __future__ import annotations

from forebay_backend_lsm import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage


class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)


ROWS = [(f"key {n}",) for n in range(100)]


def job(**options):
    return KeyedJob(LsmBackend, memory_storage(), options=options)


def figures(job):
    job.run(Count(), ROWS)
    return job.reports[0].figures


def test_runs_and_pending_compactions():
    running = job()
    assert figures(running)["runs_max"] == 1
    second = figures(running)
    assert second["runs_max"] == 2
    assert second["compaction_stalled_seconds"] == 0
    assert "keys_new" not in second, "writes do not look whether a cell exists"


def test_a_commit_that_has_to_compact_was_stalled():
    running = job(**{"max-runs": 2})
    found = [figures(running) for _ in range(4)]
    assert any(one["compaction_stalled_seconds"] > 0 for one in found)
    assert all(one["runs_max"] <= 2 for one in found)


def test_blocks_in_memory_are_hits_and_others_misses():
    running = job()
    figures(running)
    second = figures(running)
    assert (second["cache_hits_memory"], second["cache_misses_memory"]) == (100, 0)
    CACHE.clear()
    third = figures(running)
    assert third["cache_misses_memory"] >= 100
    assert "cache_hits_disk" not in third


def test_the_disk_cache_has_figures_of_its_own(tmp_path):
    running = job(**{"disk-cache-dir": str(tmp_path)})
    figures(running)
    found = []
    for _ in range(2):
        CACHE.clear()
        running.run(Count(), [])
        found.append(running.reports[0].figures)
    assert (found[0]["cache_hits_disk"], found[1]["cache_misses_disk"]) == (0, 0)
    assert found[0]["cache_misses_disk"] == found[1]["cache_hits_disk"] == 1, "the file's tail"
