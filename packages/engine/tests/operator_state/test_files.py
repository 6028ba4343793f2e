"""Files of operator state: the janitor keeps the files that are needed."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.blobs import INLINE_BYTES
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
)
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ClockedStorage, KeyedJob, ManualClock
from forebay_testing.reference import ReferenceBackend

HOUR = timedelta(hours=1)
RETENTION = 2
WIDE = ListStateDescriptor("wide", bytes)
SMALL = ListStateDescriptor("small", str)
UNION = ListStateDescriptor("union", int)
MAP = MapStateDescriptor("map", str, int)


class Wide(KeyedProcessFunction, CheckpointedFunction):
    """Rewrites its large list if there are rows; its byte stream stays that of version 1."""

    def initialize_state(self, context):
        store = context.operator_state_store
        self.wide, self.small = store.get_list_state(WIDE), store.get_list_state(SMALL)
        self.union, self.map = store.get_union_list_state(UNION), store.get_broadcast_state(MAP)
        self.touched = not context.is_restored
        self.is_first = not context.is_restored

    def process_element(self, row, ctx):
        self.touched = True

    def snapshot_state(self, context):
        if self.touched:
            self.wide.update([bytes([context.version]) * INLINE_BYTES])
        if self.is_first:
            self.small.update(["a", "b", "c"])
            self.union.update([1, 2])
            self.map.put_all({"x": 1, "y": None})
            context.raw_output.write(b"raw" * INLINE_BYTES)


class Reading(KeyedProcessFunction, CheckpointedFunction):
    """Emits the state that it finds, and changes nothing."""

    def initialize_state(self, context):
        store = context.operator_state_store
        self.found = {
            "wide": store.get_list_state(WIDE).get(),
            "small": store.get_list_state(SMALL).get(),
            "union": store.get_union_list_state(UNION).get(),
            "map": dict(store.get_broadcast_state(MAP).items()),
            "raw": [stream.read() for stream in context.raw_inputs],
        }

    def process_element(self, row, ctx):
        return [self.found]

    def snapshot_state(self, context):
        """Keep all of it."""


class Query:
    def __init__(self):
        self.clock = ManualClock()
        root = ClockedStorage(open_storage(f"memory://{uuid.uuid4()}"), self.clock)
        self.job = KeyedJob(ReferenceBackend, root, clock=self.clock)
        self.storage = self.job.storage

    def batches(self, count, *, rows=True):
        for _ in range(count):
            self.clock.advance(timedelta(minutes=1))
            self.job.run(Wide(), [(f"k{n}",) for n in range(20)] if rows else [])

    def sweep(self):
        run_key = list_epochs(self.storage).newest().run_key
        for _ in range(3):
            self.clock.advance(3 * HOUR)
            janitor = Janitor(self.storage, run_key=run_key, retention=RETENTION, min_age=HOUR)
            base = janitor.sweep(self.job.batch_id).base
        return base

    def files(self):
        return {i.name for i in self.storage.list("data") if "/operator-" in i.name}

    def needed(self, base):
        names = set()
        for version in range(base, self.job.batch_id + 1):
            with open_version(self.storage, uid=self.job.uid, version=version) as reader:
                for manifest in reader.manifests:
                    content = OperatorStateContent.loaded(manifest.operator_state)
                    names |= {file.name for file in content.files()}
        return names


@pytest.fixture
def query():
    return Query()


def test_files_of_operator_state_that_no_version_needs_go(query):
    query.batches(12)
    before = query.files()
    assert len(before) == 12 + 1, "a list for each version, and one byte stream"
    base = query.sweep()
    assert base == 12 - RETENTION
    assert query.files() == query.needed(base)
    assert len(query.files()) == RETENTION + 1 + 1


def test_a_file_of_long_ago_stays_as_long_as_a_version_needs_it(query):
    query.batches(1)
    query.batches(15, rows=False)
    first = query.files()
    query.sweep()
    assert query.files() == first == query.needed(query.job.batch_id)
    query.batches(1)
    query.batches(RETENTION + 1, rows=False)
    query.sweep()
    assert query.files() == query.needed(query.job.batch_id)
    assert len(query.files() & first) == 1, "the byte stream alone is still that of the first"


def test_what_a_lost_attempt_left_goes(query):
    query.batches(5)
    lost = data_name(2, "operator")
    query.storage.put(lost, b"written before its task died")
    query.batches(5)
    base = query.sweep()
    assert lost not in query.files()
    assert query.files() == query.needed(base)


@pytest.mark.long
@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_files_of_another_parallelism_stay(query, parallelism):
    query.job.parallelism = 3
    query.batches(2)
    query.job.restart(parallelism=parallelism)
    query.batches(12, rows=False)
    base = query.sweep()
    assert query.files() == query.needed(base)
    rows = [(f"k{number}",) for number in range(20)]
    found = {id(row): row for row in query.job.run(Reading(), rows)}.values()
    assert len(found) == min(parallelism, 5)
    assert sum(len(one["wide"]) for one in found) == 3
    assert [raw for one in found for raw in one["raw"]] == [b"raw" * INLINE_BYTES] * 3
    assert sorted(s for one in found for s in one["small"]) == [*"aaabbbccc"]
