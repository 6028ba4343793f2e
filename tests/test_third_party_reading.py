"""State of a third party's backend: what needs Arrow or a thread, which its kit does not bring."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.stored.restore import default_options
from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import START, FollowOptions, open_feed, open_state
from forebay_testing import KeyedJob, ManualClock

pytestmark = pytest.mark.long

DAY = StateTtlConfig(timedelta(days=1))
STATES = (
    ValueStateDescriptor("count", int),
    ListStateDescriptor("seen", int),
    MapStateDescriptor("by_number", int, str),
    ValueStateDescriptor("last", float, ttl=DAY),
)
WHERE = {"query": "query", "uid": "operator"}


def make_job(backend, folder, **given):
    sizes = {"parallelism": 2, "max_parallelism": 8, "key_type": str}
    how = {"descriptors": STATES, "options": default_options(backend), **sizes, **given}
    return KeyedJob(backend, open_storage(folder), **how)


@pytest.fixture
def made(tmp_path, shelf_backend):
    """Name → the state directory of a job of each backend, with the same three versions."""
    folders = {}
    for backend in (shelf_backend, HeapBackend):
        folders[backend.name] = str(tmp_path / backend.name)
        job = make_job(backend, folders[backend.name], clock=ManualClock())
        for number in (1, 2, 3):
            accesses = [("count.update", number), ("seen.add", number), ("last.update", 0.5)]
            accesses.append(("by_number.put", number, "x"))
            job.scripts([(key, accesses) for key in ("a", "b", f"only {number}")])
    return folders


def in_order(table):
    return sorted(table.read_all().to_pylist(), key=lambda row: row["key"])


def test_its_tables_are_those_of_heap(made):
    with (
        open_state(made["shelf"], **WHERE) as shelf,
        open_state(made["heap"], **WHERE) as heap,
    ):
        assert (shelf.backend, shelf.version) == ("shelf", heap.version) == ("shelf", 2)
        assert in_order(shelf.table()) == in_order(heap.table())
        for state in STATES:
            assert in_order(shelf.to_arrow(state.name)) == in_order(heap.to_arrow(state.name))
        assert len(in_order(shelf.table())) == 4


def test_its_changes_are_those_of_heap(made):
    found = []
    for folder in made.values():
        feed = open_feed(folder, **WHERE)
        first, second = feed.after(START)
        with feed.between(first, second) as difference:
            rows = [in_order(difference.to_arrow(state.name)) for state in STATES]
        found.append([[{**row, "run": ""} for row in of_state] for of_state in rows])
    assert found[0] == found[1]
    assert all(found[0])


def test_it_can_be_followed(made, shelf_backend):
    with open_state(
        made["shelf"], **WHERE, follow=FollowOptions(poll=timedelta(hours=1))
    ) as follower:
        assert follower.get("count", "a") == 2
        job = make_job(shelf_backend, made["shelf"])
        job.batch_id = 3
        job.scripts([("a", [("count.update", 4)])])
        assert follower.refresh()
        assert follower.get_many("count", ["a", "only 3"]) == [3, 3]
