"""Versions, janitor, pins, doctor and compaction on a server with the S3 protocol."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
from moto.backends import get_backend

from forebay_engine.versions import Janitor
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.storage_probe import examine
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import Figures
from forebay_state_api.contract.file_names import data_name, data_version
from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage
from forebay_state_api.errors import FencedError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.clouds import S3Storage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import DirectoryWatch
from forebay_testing import KeyedJob
from forebay_testing.committing_job import coordinates
from forebay_testing.reference import ReferenceBackend

pytestmark = pytest.mark.long

T = TypeVar("T")

COUNT = ValueStateDescriptor("n", int)
_numbers = itertools.count()


@pytest.fixture
def storage(s3_options: dict[str, Any]) -> ObjectStorage:
    return open_storage(f"s3://bucket/versions/{next(_numbers)}", s3_options)


@pytest.fixture
def job(storage: ObjectStorage) -> KeyedJob:
    return KeyedJob(ReferenceBackend, storage, descriptors=[COUNT])


def test_the_doctor_finds_nothing(storage: ObjectStorage) -> None:
    assert [finding.problem for finding in examine(storage)] == [""] * 12
    assert storage.list() == []


def test_runs_restarts_and_rescales(job: KeyedJob) -> None:
    for number, parallelism in enumerate([1, 2, 1]):
        job.restart(parallelism=parallelism)
        before = number - 1 if number else None
        keys = ("a", "b", "c")
        rows = job.scripts([(key, [("n.value",), ("n.update", number)]) for key in keys])
        assert [row[0] for row in rows] == [before] * 3
        assert job.peek_all(keys) == [[number]] * 3


def test_an_older_driver_is_fenced(job: KeyedJob, storage: ObjectStorage) -> None:
    job.do("a", ("n.update", 1))
    other = KeyedJob(ReferenceBackend, storage, descriptors=[COUNT])
    other.restart(batch_id=1)
    other.do("a", ("n.update", 2))
    with pytest.raises(FencedError):
        job.do("a", ("n.update", 3))


def test_the_janitor_clears_what_nobody_needs(job: KeyedJob) -> None:
    for number in range(6):
        job.do("a", ("n.update", number))
    janitor = Janitor(job.storage, run_key=job._run.key, retention=2, min_age=timedelta(0))
    with open_version(job.storage, uid=job.uid, version=2) as reader:
        janitor.sweep(6)
        janitor.sweep(6)
        kept = {data_version(info.name) for info in job.storage.list("data")}
        assert kept == {2, 4, 5, 6}
        assert reader.version == 2
    janitor.sweep(6)
    janitor.sweep(6)
    assert {data_version(info.name) for info in job.storage.list("data")} == {4, 5, 6}
    assert job.do("a", ("n.value",)) == [5]


class Requests:
    """Counts what arrives at the server while a block runs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="werkzeug")
        self._caplog = caplog

    def of(self, act: Callable[[], T]) -> tuple[T, int]:
        """Return what a function returns, and the requests that it made."""
        self._caplog.clear()
        found = act()
        return found, sum(record.name == "werkzeug" for record in self._caplog.records)


@pytest.fixture
def requests(caplog: pytest.LogCaptureFixture) -> Requests:
    return Requests(caplog)


def test_a_refresh_of_top_takes_three_requests_at_most(
    s3_options: dict[str, Any], requests: Requests
) -> None:
    root = open_storage(f"s3://bucket/top/{next(_numbers)}", s3_options)
    for uid in ("op1", "op2"):
        job = KeyedJob(ReferenceBackend, root, uid=uid, descriptors=[COUNT])
        for number in range(5):
            job.do("a", ("n.update", number))
        janitor = Janitor(job.storage, run_key=job._run.key, retention=3, min_age=timedelta(0))
        janitor.sweep(5)
    operators = 2
    query = job.storage.folder.partition("/")[0]
    for uid in (None, "op1"):
        watched = operators if uid is None else 1
        watch = DirectoryWatch(root, query=None if uid is None else query, uid=uid)
        counts = []
        for _ in range(12):
            views, count = requests.of(watch.refresh)
            counts.append(count)
        assert [view.newest.version for view in views.values() if view.newest] == [5] * watched
        assert max(counts) <= 3 * watched
        assert counts[3:10] == [watched] * 7, "what cannot change is not read again"


def many(bucket_folder: str, names: Iterable[str]) -> None:
    """Store objects past the network: thousands of requests take long."""
    bucket = get_backend("s3")["123456789012"]["global"]
    for name in names:
        bucket.put_object("bucket", f"{bucket_folder}/{name}", b"1234567")


def large_operator(versions: Iterable[int], subtasks: int) -> Iterator[str]:
    """Names of a large operator's objects; a manifest of 7 bytes is whole by its name."""
    for version in versions:
        for subtask in range(subtasks):
            made = coordinates(version, subtask, subtasks, subtasks)
            yield layout.marker_name(made)
            yield layout.manifest_name(made, 1, 7, Figures({"rows_in": 5}))
            yield data_name(version, "toy")


@pytest.mark.slow  # by default: observing/test_paged_listing.py, and S3's pages below
def test_a_folder_of_many_names_takes_three_requests_too(
    s3_options: dict[str, Any], requests: Requests
) -> None:
    folder = f"top/{next(_numbers)}"
    subtasks, versions = 56, range(1, 7)  # two pages of names
    many(f"{folder}/q/op", large_operator(versions, subtasks))
    watch = DirectoryWatch(open_storage(f"s3://bucket/{folder}", s3_options))
    counts = []
    while True:
        views, count = requests.of(watch.refresh)
        counts.append(count)
        if views:
            break
    pages = -(-3 * subtasks * len(versions) // 1_000)
    assert max(counts) <= 3
    assert sum(counts) <= 2 + pages + 3, "all pages once, and those of the first view"
    for version in (7, 8):
        many(f"{folder}/q/op", large_operator([version], subtasks))
        views, count = requests.of(watch.refresh)
        assert count <= 3
        (view,) = views.values()
        assert view.newest is not None
        assert view.newest.version == version
        assert view.newest.count("rows_in") == 5 * subtasks
    for _ in range(pages + 2):
        views, count = requests.of(watch.refresh)
        assert count <= 3
    (view,) = views.values()
    assert view.listing.data_files == 8 * subtasks


def test_s3_returns_pages_of_a_thousand_names(
    s3_options: dict[str, Any], requests: Requests
) -> None:
    folder = f"pages/{next(_numbers)}"
    names = [f"b/{number:05}" for number in range(2_000)]
    many(folder, [*names, "a"])
    storage = open_storage(f"s3://bucket/{folder}", s3_options)
    for after, first, last in (("", 0, False), ("b/01000", 1_002, True)):
        page, count = requests.of(partial(storage.list_page, after))
        assert count == 1
        wanted = ["a", *names][first : first + 1_000]
        assert [info.name for info in page.objects] == wanted
        assert page.is_last is last
    page, count = requests.of(partial(storage.list_page, "b/00999"))
    assert (len(page.objects), page.is_last, count) == (1_000, False, 1)
    assert not storage.list_page(names[-1]).objects


def test_a_directory_bucket_is_listed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = S3Storage("s3://bucket--x-s3/folder", {"region": "us-east-1"})
    found = [ObjectInfo(name, 1, datetime.now(UTC)) for name in ("b", "a")]
    monkeypatch.setattr(storage, "list", lambda: found)
    assert [info.name for info in storage.list_page("a").objects] == ["b"]
