"""The pin of a snapshot: it is renewed while nobody uses the snapshot, until it is closed.

Each test waits for a lease or two. Pins know no backend, so they run on lsm when slow; by default
only what a dropped snapshot leaves behind is tested on both, as each backend opens its own files.
"""

from __future__ import annotations

import gc
import threading
from datetime import timedelta

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.errors import StorageError, VersionGoneError
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing import KeyedJob, WrappedStorage

pytestmark = pytest.mark.long
lsm_when_slow = pytest.mark.parametrize(
    "backend_class",
    [HeapBackend, pytest.param(LsmBackend, marks=pytest.mark.slow)],
    ids=["heap", "lsm"],
)

COUNT = ValueStateDescriptor("count", int)
PATIENCE_S = 100
SHORT = timedelta(seconds=1)
OPENING = 2
"""Pins that a reader puts to open a version; the second one names its files."""


class Renewing(WrappedStorage):
    """Lets a test wait for renewals of pins, and fail some of them.

    Views of folders below are copies, which share what is mutable.
    """

    def __init__(self, inner):
        super().__init__(inner)
        self.faults = []
        self.put_pins = []
        self.renewed = threading.Condition()

    def around(self, operation, name, request):
        if operation != "put" or "pins/" not in name:
            return request()
        if self.faults and len(self.put_pins) >= OPENING:
            raise self.faults.pop()
        request()
        with self.renewed:
            self.put_pins.append(name)
            self.renewed.notify_all()
        return None

    def wait_for(self, more):
        with self.renewed:
            wanted = len(self.put_pins) + more
            return self.renewed.wait_for(lambda: len(self.put_pins) >= wanted, PATIENCE_S)


@pytest.fixture
def storage(tmp_path):
    return Renewing(open_storage(str(tmp_path)))


@pytest.fixture
def job(storage, backend_class):
    job = KeyedJob(backend_class, storage, descriptors=[COUNT], key_type=str)
    job.do("a", ("count.update", 1))
    job.do("a", ("count.update", 2))
    return job


@pytest.fixture
def opened(job, storage):
    settings = reader_settings({})
    source = OperatorSource.with_settings(storage, query="query", uid="operator", settings=settings)

    def open_():
        return snapshot_of(source, source.choose(), lease=SHORT)

    return open_


@lsm_when_slow
def test_it_is_renewed_while_nobody_uses_the_snapshot(job, opened, storage):
    with opened():
        assert storage.wait_for(2)
        renewals = [int(pin.name.rpartition("-")[2]) for pin in job.storage.list("pins")]
        assert max(renewals) >= OPENING
    assert not job.storage.list("pins")


@lsm_when_slow
def test_a_renewal_that_fails_is_not_the_last(job, opened, storage, caplog):
    storage.faults.append(StorageError("reset"))
    with opened() as snapshot:
        assert storage.wait_for(1)
        assert snapshot.get("count", "a") == 1
    assert "a pin on version 1 in" in caplog.text
    assert "was not renewed: reset" in caplog.text


def test_whoever_drops_the_snapshot_renews_it_no_more(job, opened):
    before = set(threading.enumerate())
    snapshot = opened()
    (renewing,) = (one for one in set(threading.enumerate()) - before if one.name == "forebay-pin")
    del snapshot
    gc.collect()
    renewing.join(PATIENCE_S)
    assert not renewing.is_alive()
    assert len(job.storage.list("pins")) == 1, "it expires"


@lsm_when_slow
def test_a_version_that_was_deleted_meanwhile_is_not_read(job, opened, storage):
    snapshot = opened()
    job.storage.delete([one.name for one in job.storage.list("versions")])
    assert storage.wait_for(2)
    with pytest.raises(VersionGoneError, match=r"version 1@\w+ .* longer than the lease"):
        snapshot.get("count", "a")
    snapshot.close()
