"""A thousand micro-batches of a batch function hold no more memory and files than a hundred."""

from __future__ import annotations

import gc
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest

from forebay_state_api import KeyedBatchFunction, ListStateDescriptor, ValueStateDescriptor
from forebay_testing import FunctionHarness, ManualClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BATCHES, FIRST = 1_000, 200
START = datetime(2024, 1, 1, tzinfo=UTC)
SOME_BYTES = 1 << 20
"""The budget of a backend for the files that it keeps, and the most that others may grow by."""


class Busy(KeyedBatchFunction):
    """Uses a value, a list, timers, and the end of the batch."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        self.recent = context.get_list_state(ListStateDescriptor("recent", int))

    def process_batch(self, rows, ctx):
        g = ctx.groups
        n = g.cumcount(self.n.get_many(g))
        self.n.put_many(g, g.last(n))
        self.recent.add_many(g, n)
        ctx.timers.register_processing_time_many(g, ctx.processing_time + timedelta(seconds=3))
        return {"user": rows["user"], "n": n}

    def on_timers(self, at, ctx):
        self.recent.clear_many(ctx.groups)

    def end_batch(self, ctx):
        return {"n": [pc.sum(self.n.get_many(ctx.groups)).as_py()]}


def held() -> tuple[int, int]:
    """Return the bytes of Python objects, and the number of open files."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_memory_and_descriptors_stay_flat(backend, tmp_path):
    clock = ManualClock(START)
    options = {"state_dir": tmp_path, "backend": backend, "clock": clock, "cuts": None}
    tracemalloc.start()
    try:
        with FunctionHarness(Busy(), "user", **options) as harness:
            harness._job.cache_bytes = SOME_BYTES
            for batch in range(BATCHES):
                users = [f"user{(batch + n) % 100}" for n in range(20)]
                found = harness.process({"user": users})
                clock.advance(timedelta(seconds=1))
                if batch == FIRST:
                    before = held()
            after = held()
    finally:
        tracemalloc.stop()
    assert len(found) == 21  # a row for each row, and one for the end of the batch
    assert after[0] - before[0] < 2 * SOME_BYTES, (before, after)
    assert after[1] <= before[1]
