"""A copy of a checkpoint without state, which counts when it is whole."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.importing.checkpoint_copy import CheckpointCopy
from forebay_state_processor.importing.spark_checkpoint import StoppedQuery, watermark_ms_after
from forebay_testing.storage import Fault, FaultyStorage

FILES = {
    "metadata": b'{"id":"a"}',
    "offsets/0": b"v1\n{}\n0",
    "offsets/1": b"v1\n{}\n1",
    "commits/0": b'v1\n{"nextBatchWatermarkMs":5}',
    "sources/0/0": b"files",
    "state/0/0/1.zip": b"Spark's",
}


@pytest.fixture
def source(tmp_path):
    storage = open_storage(tmp_path / "checkpoint")
    for name, data in FILES.items():
        storage.put(name, data)
    return storage


@pytest.fixture
def target(tmp_path):
    return open_storage(tmp_path / "copy")


def content(storage):
    return {info.name: storage.get(info.name) for info in storage.list()}


def test_the_copy_has_everything_but_the_state(source, target):
    copied = CheckpointCopy(source, target)
    copied.begin()
    assert "metadata" not in content(target)
    copied.check_unchanged()
    copied.finish()
    assert content(target) == {n: data for n, data in FILES.items() if not n.startswith("state/")}
    assert content(source) == FILES


def test_a_location_that_is_not_empty_is_refused(source, target):
    target.put("anything", b"")
    with pytest.raises(ConfigurationError, match="is not empty: name a new location"):
        CheckpointCopy(source, target)


@pytest.mark.parametrize("folder", ["", "copy"])
def test_a_location_in_the_checkpoint_is_refused(source, folder):
    target = source.child(folder) if folder else source
    with pytest.raises(ConfigurationError, match="name a location outside of it"):
        CheckpointCopy(source, target)


@pytest.mark.parametrize("name", ["offsets/2", "commits/1"])
def test_a_query_that_ran_meanwhile_is_noticed(source, target, name):
    copied = CheckpointCopy(source, target)
    copied.begin()
    source.put(name, b"v1")
    with pytest.raises(ConfigurationError, match="ran while its state was imported: stop it"):
        copied.check_unchanged()


def test_a_copy_that_failed_is_undone(source, target):
    target.put("other", b"")
    inside = target.child("copy")
    copied = CheckpointCopy(source, inside)
    copied.begin()
    copied.undo()
    assert content(target) == {"other": b""}


def test_an_id_that_was_not_copied_can_be_copied_by_hand(source, target):
    faulty = FaultyStorage(target, Fault(operation="put", name="metadata"))
    copied = CheckpointCopy(source, faulty)
    copied.begin()
    with pytest.raises(StorageError, match="everything else is done: copy metadata from"):
        copied.finish()


DAMAGED = (
    b"",
    b"\xff",
    b"null",
    b"[" * 5_000,
    b"v1\n[]",
    b"v1\nnull",
    b'v1\n{"batchTimestampMs":"x","nextBatchWatermarkMs":null}',
    b'v1\n{"batchTimestampMs":1e400,"nextBatchWatermarkMs":1e400}',
)


@pytest.mark.parametrize("damaged", range(len(DAMAGED)))
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("metadata", StoppedQuery.read),
        ("offsets/0", StoppedQuery.read),
        ("commits/0", lambda checkpoint: watermark_ms_after(checkpoint, 0)),
    ],
)
def test_a_damaged_file_of_a_checkpoint_is_named(source, name, read, damaged):
    source.put(name, DAMAGED[damaged])
    with pytest.raises(ConfigurationError, match=f"{name} is missing or not Spark's"):
        read(source)


def test_the_watermark_is_that_of_the_commit(source):
    assert watermark_ms_after(source, 0) == 5
    with pytest.raises(ConfigurationError, match="commits/1 is missing or not Spark's"):
        watermark_ms_after(source, 1)
