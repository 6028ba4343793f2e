"""The requests that look-ups make."""

from __future__ import annotations

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.format.epochs import RunVersion
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing import CountingStorage


@pytest.fixture
def counted(make_job, tmp_path):
    """Return a snapshot of 200 keys in 8 key groups of 4 subtasks, and its counted storage."""
    job = make_job(ValueStateDescriptor("count", int), key_type=str, parallelism=4)
    job.scripts([(f"k{n}", [("count.update", n)]) for n in range(200)])
    storage = CountingStorage(open_storage(str(tmp_path)))
    settings = reader_settings({})
    source = OperatorSource.with_settings(storage, query="query", uid="operator", settings=settings)
    shown = ShownVersion(RunVersion(version=1, run_key=job.run_key), final=False)
    with snapshot_of(source, shown) as snapshot:
        storage.reset()
        yield snapshot, storage


def files_read(storage):
    return {name for _, name in storage.requests if "/data/" in name}


def test_one_key_opens_the_file_of_its_key_group(counted):
    snapshot, storage = counted
    assert snapshot.get("count", "k7") == 7
    assert len(files_read(storage)) == 1
    before = len(storage.requests)
    assert before <= 2
    snapshot.get("count", "k7")
    assert len(storage.requests) == before


def test_many_keys_open_each_file_once(counted, backend_class):
    snapshot, storage = counted
    keys = [f"k{n}" for n in range(200)]
    assert snapshot.get_many("count", keys) == [*range(200)]
    assert len(files_read(storage)) == 4
    opened = 4 if backend_class is LsmBackend else 8
    assert len(storage.requests) <= 2 * opened
