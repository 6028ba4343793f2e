"""Requests of a micro-batch by class of price: one more in each subtask fails here."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
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
MOST = {
    # marker, data, manifest; epochs, own folder, epochs again; own manifest
    "heap": {"puts": 3, "lists": 3, "gets": 1},
    # also the result of a compaction, its list, and footers and blocks of a file
    "lsm": {"puts": 3, "lists": 4, "gets": 4},
}
"""Backend → the most requests of a subtask in a micro-batch that changes state."""
EMPTY = {
    "heap": {"puts": 2, "lists": 3, "gets": 1},
    "lsm": {"puts": 2, "lists": 4, "gets": 3},
}
"""Backend → the most requests of a subtask in a micro-batch that changes nothing."""
EVENT_TIME = {"lists": 1}
"""More with event time: the list of the whole version, whose names carry the clocks."""


class Row(NamedTuple):
    key: str
    at: datetime


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
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
        job.run(Count(), rows)
        counted = Counter(CLASSES[kind] for kind, _ in counting.requests)
        return {kind: number / parallelism for kind, number in counted.items()}

    more = Counter(EVENT_TIME if event_time else {})
    for batch in range(3):
        found = requests_of([Row(key, START + timedelta(seconds=batch)) for key in keys])
    assert found == Counter(MOST[backend]) + more
    assert requests_of([]) == Counter(EMPTY[backend]) + more
