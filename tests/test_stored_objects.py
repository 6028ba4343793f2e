"""The number of stored objects follows from what is retained; small changes are joined cheaply."""

from __future__ import annotations

import itertools
import math
import re
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from forebay_backend_heap import HeapBackend
from forebay_backend_lsm import LsmBackend
from forebay_engine.versions import Janitor
from forebay_engine.versions.cleaning.cadence import FolderPasses, is_due, pass_every
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.storage.obstore import ObstoreStorage
from forebay_testing.clock import ManualClock
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.job import KeyedJob
from forebay_testing.storage import ClockedStorage

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "storage.md"
BACKENDS = {"heap": HeapBackend, "lsm": LsmBackend}
SUBTASKS = 2
RETENTION = 10
TRIGGER = timedelta(seconds=1)
_numbers = itertools.count()


def most_objects(backend, min_age):
    """Evaluate the formula of the page."""
    section = PAGE.read_text().partition("### How much is stored")[2]
    steps = re.search(r"```text\n(.*?)```", section, re.DOTALL)[1]
    row = re.search(rf"\| {backend} \| ([\d.]+):.*?\| (\d+)", section)
    names = {
        "r": RETENTION,
        "a": min_age.total_seconds(),
        "t": TRIGGER.total_seconds(),
        "subtasks": SUBTASKS,
        "w": float(row[1]),
        "k": int(row[2]),
        "max": max,
    }
    for step in steps.replace("\N{MULTIPLICATION SIGN}", "*").splitlines():
        name, _, value = step.partition(" = ")
        names[name.strip()] = eval(value, {"__builtins__": {}}, names)
    return names["objects"]


class Stream:
    """A job with a micro-batch a second, and its janitor; the clock is the test's.

    As for larger changes, each file of heap is an object.
    """

    def __init__(self, backend, *, keys, changed, min_age=timedelta(0), answers=True):
        self.clock = ManualClock()
        store = ObstoreStorage(MemoryStore(), f"memory://stored-{next(_numbers)}")
        self.storage = ClockedStorage(store, self.clock)
        self.job = KeyedJob(
            BACKENDS[backend],
            self.storage,
            descriptors=[ValueStateDescriptor("v", int)],
            parallelism=SUBTASKS,
            clock=self.clock,
            compaction=ImmediateCompaction(self.storage, hold=not answers),
            options={"held-bytes": 0} if backend == "heap" else {},
        )
        self.keys, self.changed, self.min_age = keys, changed, min_age
        self.passes = FolderPasses(self._seconds)
        self.write(range(keys))

    def _seconds(self):
        return self.clock.now.timestamp()

    @property
    def data_bytes(self):
        """The bytes of all files that are stored."""
        return sum(info.size for info in self.job.storage.list("data"))

    def write(self, keys):
        self.clock.advance(TRIGGER)
        self.job.scripts([(str(key), [("v.update", self.job.batch_id)]) for key in keys])

    def batch(self):
        first = self.job.batch_id * self.changed
        self.write((first + i) % self.keys for i in range(self.changed))

    def sweep_if_due(self):
        """Run the janitor as a worker does; return the number of objects before, or ``None``."""
        due = is_due(self.job.batch_id, 0, pass_every(RETENTION))
        if not due or not self.passes.may_begin(self.min_age):
            return None
        before = len(self.job.storage.list())
        self.passes.begun()
        janitor = Janitor(
            self.job.storage,
            run_key=self.job.run_key,
            retention=RETENTION,
            min_age=self.min_age,
            remembered=self.passes.remembered,
        )
        janitor.sweep(self.job.batch_id)
        return before


CASES = [("heap", True), ("lsm", True), ("lsm", False)]
"""Backend, and whether the compaction service ever answers."""
SIZES = [(200, 4), (30, 20), (20, 20)]
SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "answers", "keys", "changed", "versions"),
    [
        ("heap", True, 200, 4, 70),
        ("lsm", True, 30, 20, 70),
        *(pytest.param(*case, *size, 2_000, marks=SLOW) for case in CASES for size in SIZES),
    ],
)
def test_objects_are_bounded_by_what_is_retained(backend, answers, keys, changed, versions):
    min_age = timedelta(seconds=30)
    stream = Stream(backend, keys=keys, changed=changed, min_age=min_age, answers=answers)
    counts = []
    for _ in range(versions):
        stream.batch()
        if (before := stream.sweep_if_due()) is not None:
            counts.append(before)
    most = most_objects(backend, min_age)
    assert most / 3 < max(counts) <= most


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "answers", "versions"),
    [
        ("heap", True, 40),
        ("lsm", True, 40),
        *(pytest.param(*case, 2_000, marks=SLOW) for case in CASES),
    ],
)
def test_small_changes_are_joined_without_a_rewrite_of_the_state(backend, answers, versions):
    stream = Stream(backend, keys=1_000 if versions < 100 else 20_000, changed=4, answers=answers)
    state = stream.data_bytes
    stream.batch()
    change = stream.data_bytes - state
    for _ in range(versions - 1):
        stream.batch()
    written = stream.data_bytes - state  # nothing is deleted
    assert written < change * versions * math.log2(versions) / 2
