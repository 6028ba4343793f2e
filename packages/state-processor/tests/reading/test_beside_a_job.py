"""Readers during a running job, its janitor and its compactor; damage, and abandoned pins."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api import MapStateDescriptor, ValueStateDescriptor
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing.listing import list_operator
from forebay_state_processor.reading import START, FollowOptions, open_feed, open_state
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing import ClockedStorage, CountingStorage, KeyedJob, ManualClock

COUNT = ValueStateDescriptor("count", int)
BY_NUMBER = MapStateDescriptor("by_number", int, int)
KEYS = [f"k{n}" for n in range(20)]
AT_ONCE = timedelta(seconds=-100)
"""Objects of any age are deleted: the clock of the store may be ahead of its own files."""


def options_of(backend_class):
    return {"max-runs": 3} if backend_class is LsmBackend else {}


class Versions(threading.Thread):
    """Makes versions in which all keys have the number of the version, and clears older ones."""

    def __init__(self, job):
        super().__init__()
        self.job, self.number, self.failed = job, job.batch_id, None
        self.enough = threading.Event()

    def run(self):
        try:
            while not self.enough.is_set():
                write(self.job, self.number + 1)
                self.number += 1
                if self.number % 5 == 0:
                    sweep(self.job)
        except Exception as error:  # noqa: BLE001 - the test raises it
            self.failed = error


def write(job, number):
    accesses = [("count.update", number), ("by_number.put", number % 7, number)]
    job.scripts([(key, accesses) for key in KEYS])


def sweep(job):
    janitor = Janitor(job.storage, run_key=job.run_key, retention=3, min_age=AT_ONCE)
    return janitor.sweep(job.batch_id)


def check_whole(snapshot):
    """Check that everything is of one version."""
    number = snapshot.version
    assert {row.value for row in snapshot.scan("count")} == {number}
    assert snapshot.get_many("count", KEYS) == [number] * len(KEYS)
    newest = {max(row.value.values()) for row in snapshot.scan("by_number")}
    assert newest == {number}
    return number


def read_beside(make_job, tmp_path, backend_class, versions):
    job = make_job(COUNT, BY_NUMBER, key_type=str, parallelism=2, options=options_of(backend_class))
    write(job, 1)
    write(job, 2)  # makes the first version final
    writer = Versions(job)
    where = {"query": "query", "uid": "operator"}
    seen = set()
    with open_state(
        str(tmp_path), **where, follow=FollowOptions(poll=timedelta(milliseconds=5))
    ) as follower:
        writer.start()
        try:
            while writer.is_alive() and (writer.number < versions or len(seen) < 2):
                with open_state(str(tmp_path), **where) as snapshot:
                    seen.add(check_whole(snapshot))
                with follower.snapshot() as snapshot:
                    check_whole(snapshot)
                assert len(set(follower.get_many("count", KEYS))) == 1
        finally:
            writer.enough.set()
            writer.join()
    if writer.failed is not None:
        raise writer.failed
    with open_state(str(tmp_path), **where) as snapshot:
        assert check_whole(snapshot) == writer.number - 1
    sweep(job)
    assert not [*tmp_path.rglob("pins/*")]


@pytest.mark.long
def test_a_reader_sees_whole_versions_beside_a_job(make_job, tmp_path, backend_class):
    read_beside(make_job, tmp_path, backend_class, 13)


@pytest.fixture
def before_pinning(monkeypatch):
    """Let something happen between the choice of a version and its pin, the first time."""
    opened = []

    def happens(what):
        def late(source, at, *arguments):
            opened.append(at.version)
            if len(opened) == 1:
                what()
            return open_(source, at, *arguments)

        open_ = OperatorSource.open
        monkeypatch.setattr(OperatorSource, "open", late)
        return opened

    return happens


@pytest.mark.long
@pytest.mark.parametrize("follow", [False, True])
def test_a_newest_version_that_is_deleted_before_it_is_pinned(
    make_job, tmp_path, before_pinning, follow
):
    job = make_job(COUNT, BY_NUMBER)
    for number in range(1, 4):
        write(job, number)

    def go_on():
        for number in range(4, 9):
            write(job, number)
        sweep(job)

    opened = before_pinning(go_on)
    with open_state(str(tmp_path), query="query", uid="operator", follow=follow) as shown:
        assert shown.get_many("count", KEYS) == [7] * len(KEYS)
    assert opened[:2] == [2, 7]
    assert not [*tmp_path.rglob("pins/*")]


@pytest.mark.long
def test_a_newest_version_that_is_damaged_is_not_passed_over(make_job, tmp_path, before_pinning):
    job = make_job(COUNT, BY_NUMBER)
    for number in range(1, 4):
        write(job, number)

    def go_on():
        for path in (one for one in tmp_path.rglob("data/**/*") if one.is_file()):
            path.write_bytes(path.read_bytes()[:-1])
        for number in range(4, 9):
            write(job, number)

    opened = before_pinning(go_on)
    with pytest.raises(CorruptStateError, match=r"of version 2 .* has \d+ bytes"):
        open_state(str(tmp_path), query="query", uid="operator")
    assert opened == [2]
    assert not [*tmp_path.rglob("pins/*")]


@pytest.mark.slow
def test_a_reader_beside_200_versions(make_job, tmp_path, backend_class):
    read_beside(make_job, tmp_path, backend_class, 200)


@pytest.mark.long
def test_a_reader_writes_nothing_but_pins(make_job, tmp_path):
    job = make_job(COUNT, BY_NUMBER, key_type=str)
    for number in (1, 2, 3):
        write(job, number)
    storage = CountingStorage(open_storage(str(tmp_path)))
    feed = open_feed(storage, query="query", uid="operator")
    with snapshot_of(feed.source, feed.source.choose()) as snapshot:
        check_whole(snapshot)
        snapshot.table().read_all()
        list(snapshot.timers())
    first, second = feed.after(START)
    with feed.between(first, second) as difference:
        list(difference.rows("count"))
    written = {
        name.removeprefix(f"{job.operator}/").split("/")[0]
        for operation, name in storage.requests
        if operation not in {"get", "get_ranges", "list", "list_folders"}
    }
    assert written == {"pins"}


def requests_of_a_batch(backend_class, folder, open_reader):
    """Return operation → the requests that a job makes in a batch while a reader is open."""
    storage = CountingStorage(open_storage(str(folder)))
    job = KeyedJob(backend_class, storage, descriptors=[COUNT, BY_NUMBER], key_type=str)
    for number in (1, 2, 3):
        write(job, number)
    with open_reader(str(folder), query="query", uid="operator"):
        storage.reset()
        write(job, 4)
        return storage.counts


@pytest.mark.long
@pytest.mark.parametrize("follow", [False, FollowOptions(poll=timedelta(milliseconds=1))])
def test_a_job_makes_the_same_requests_beside_a_reader(tmp_path, backend_class, follow):
    alone = requests_of_a_batch(backend_class, tmp_path / "alone", lambda *_, **__: nullcontext())
    assert alone["create"] or alone["put"]
    reader = partial(open_state, follow=follow)
    assert requests_of_a_batch(backend_class, tmp_path / "beside", reader) == alone


@pytest.fixture
def stored_files(make_job, tmp_path):
    job = make_job(COUNT, key_type=str)
    for number in (1, 2):
        job.scripts([(key, [("count.update", number)]) for key in KEYS])
    return sorted(path for path in tmp_path.rglob("data/*/*") if path.is_file())


@pytest.mark.parametrize("look", ["scan", "get_many"])
def test_a_damaged_file_is_named(stored_files, read, look):
    first = stored_files[0] if "fffffffffffe" in str(stored_files[0]) else stored_files[-1]
    content = bytearray(first.read_bytes())
    for at in range(len(content) // 3, 2 * len(content) // 3):
        content[at] ^= 0xFF
    first.write_bytes(content)
    name = "/".join(Path(first).parts[-3:])
    snapshot = read()
    with pytest.raises(CorruptStateError, match=name):
        list(snapshot.scan("count")) if look == "scan" else snapshot.get_many("count", KEYS)


def test_a_file_that_is_gone_is_named_when_the_version_is_opened(stored_files, read):
    for one in stored_files:
        one.unlink()
    with pytest.raises(CorruptStateError, match=r"file data/\w+/\S+ .* is missing"):
        read()


@pytest.mark.long
def test_the_pin_of_an_abandoned_reader_expires(tmp_path, backend_class):
    clock = ManualClock()
    storage = ClockedStorage(open_storage(str(tmp_path)), clock)
    job = KeyedJob(backend_class, storage, descriptors=[COUNT, BY_NUMBER], key_type=str)
    write(job, 1)
    write(job, 2)
    settings = reader_settings({})
    source = OperatorSource.with_settings(storage, query="query", uid="operator", settings=settings)
    abandoned = snapshot_of(source, source.choose(), lease=timedelta(minutes=5))
    for number in range(3, 13):
        write(job, number)
    sweep(job)
    assert abandoned.version in {made.version for made in _stored(job)}
    clock.advance(timedelta(minutes=6))
    sweep(job)
    assert abandoned.version not in {made.version for made in _stored(job)}
    assert not job.storage.list("pins")


def _stored(job):
    return list_operator(job.storage).timeline.versions
