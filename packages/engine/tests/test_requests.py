"""Requests of a micro-batch by class of price: one more in each subtask fails here."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from forebay_engine.versions.writer_memory import WriterMemory
from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
)
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.job import KeyedJob
from forebay_testing.storage import CountingStorage

GROUPS = 64
START = datetime(2026, 1, 1, tzinfo=UTC)
CLASSES = {
    "put": "puts",
    "put_if_absent": "puts",
    "list": "lists",
    "list_folders": "lists",
    "get": "gets",
    "get_ranges": "gets",
}
"""Request → class. Stores bill puts and lists alike, and gets at about a twelfth."""
SMALL = {
    # marker, manifest, which holds the data; own folder; the number above the run's
    "heap": {"puts": 2, "lists": 1, "gets": 1},
    "lsm": {"puts": 3, "lists": 1, "gets": 1},
}
"""Backend → the most requests of a subtask in a micro-batch that changes little state."""
LARGE = {
    # marker, data, manifest; own folder; the number above the run's
    "heap": {"puts": 3, "lists": 1, "gets": 1},
    "lsm": {"puts": 3, "lists": 1, "gets": 1},
}
"""Backend → the most requests of a subtask in a micro-batch that changes more state."""
EMPTY = {
    "heap": {"puts": 2, "lists": 1, "gets": 1},
    "lsm": {"puts": 2, "lists": 1, "gets": 1},
}
"""Backend → the most requests of a subtask in a micro-batch that changes nothing."""
INSTALLING = {"lists": 1, "gets": 3}
"""The most requests of a subtask for the files of a compaction: result, files; footer, block."""


class Row(NamedTuple):
    key: str
    at: datetime
    text: str = ""


class Texts(KeyedProcessFunction):
    def open(self, context):
        self.texts = context.get_list_state(ListStateDescriptor("texts", str))

    def process_element(self, row, ctx):
        self.texts.add(row.text)
        return []


def keys_of_each_subtask(parallelism):
    """Return a key for each subtask."""
    found: dict[int, str] = {}
    for number in range(100_000):
        subtask = subtask_of(key_group_of(f"k{number}", GROUPS), parallelism, GROUPS)
        found.setdefault(subtask, f"k{number}")
        if len(found) == parallelism:
            return list(found.values())
    raise AssertionError


@pytest.mark.long
@pytest.mark.parametrize("event_time", [False, True])
@pytest.mark.parametrize("parallelism", [1, 16, 64])
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_requests_of_a_subtask_do_not_grow_with_the_subtasks(backend, parallelism, event_time):
    inner = MemoryStorage(f"memory://{uuid.uuid4()}")
    counting = CountingStorage(inner)
    job = KeyedJob(
        plugins().backend(backend),
        counting,
        parallelism=parallelism,
        max_parallelism=GROUPS,
        key_type=str,
        event_time=(lambda row: row.at) if event_time else None,
        compaction=ImmediateCompaction.open(inner, {}),
    )
    keys = keys_of_each_subtask(parallelism)

    def requests_of(rows):
        counting.reset()
        job.run(Texts(), rows)
        compacted = [kind for kind, name in counting.requests if "/compaction-" in name]
        assert not per_subtask(compacted) - Counter(INSTALLING)
        return per_subtask([k for k, name in counting.requests if "/compaction-" not in name])

    def per_subtask(kinds):
        counted = Counter(CLASSES[kind] for kind in kinds)
        return Counter({kind: number / parallelism for kind, number in counted.items()})

    def rows(batch, text):
        return [Row(key, START + timedelta(seconds=batch), text) for key in keys]

    requests_of(rows(0, "x" * 20_000))  # a snapshot that is not outgrown soon
    for batch in (1, 2):
        found = requests_of(rows(batch, "small"))
    assert found == SMALL[backend]
    assert requests_of(rows(3, "x" * 6_000)) == LARGE[backend]
    assert requests_of([]) == EMPTY[backend]


class Operators(KeyedProcessFunction, CheckpointedFunction):
    """Has operator state that each subtask changes in each micro-batch."""

    def __init__(self, mode):
        self.mode = mode

    def initialize_state(self, context):
        declare = getattr(context.operator_state_store, f"get_{self.mode}_state")
        self.list = declare(ListStateDescriptor("list", int))

    def snapshot_state(self, context):
        self.list.update([context.version])

    def process_element(self, row, ctx):
        return []


class OfProcesses(KeyedJob):
    """A job whose subtasks run in several processes, in turn."""

    def in_processes(self, number):
        self.memories = [WriterMemory() for _ in range(number)]
        return self

    def subtask(self, function, subtask=0, **how):
        self._memory = self.memories[subtask % len(self.memories)]
        return super().subtask(function, subtask, **how)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "parallelism", "processes"),
    [("list", 16, 4), ("union_list", 1, 1), ("union_list", 16, 1), ("union_list", 16, 4)],
)
def test_operator_state_makes_no_request_for_each_subtask(mode, parallelism, processes):
    """A union state reads each manifest once in each process that did not put it."""
    counting = CountingStorage(MemoryStorage(f"memory://{uuid.uuid4()}"))
    job = OfProcesses(
        plugins().backend("heap"), counting, parallelism=parallelism, max_parallelism=GROUPS
    ).in_processes(processes)
    for _ in range(4):
        counting.reset()
        job.run(Operators(mode), [])
    counted = Counter(CLASSES[kind] for kind, _ in counting.requests)
    everybody = mode == "union_list" and parallelism > 1
    assert counted == {
        "puts": 2 * parallelism,
        "lists": (2 if everybody else 1) * parallelism,
        "gets": parallelism + (parallelism * (processes - 1) if everybody else 0),
    }
