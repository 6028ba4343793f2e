"""Versions, janitor, pins, doctor and compaction on a server with the S3 protocol."""

from __future__ import annotations

import itertools
import logging
from datetime import timedelta
from typing import Any

import pytest

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import FencedError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.observing import DirectoryWatch
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.testing import KeyedJob
from forebay_state_api.testing.reference import ReferenceBackend
from forebay_state_api.versions import Janitor
from forebay_state_api.versions.layout import data_version
from forebay_state_api.versions.reader import open_version
from forebay_state_api.versions.storage_probe import examine

COUNT = ValueStateDescriptor("n", int)
_numbers = itertools.count()


@pytest.fixture
def storage(s3_options: dict[str, Any]) -> ObjectStorage:
    return open_storage(f"s3://bucket/versions/{next(_numbers)}", s3_options)


@pytest.fixture
def job(storage: ObjectStorage) -> KeyedJob:
    return KeyedJob(ReferenceBackend, storage, descriptors=[COUNT])


def test_the_doctor_finds_nothing(storage: ObjectStorage) -> None:
    assert [finding.problem for finding in examine(storage)] == [""] * 5
    assert storage.list() == []


def test_runs_restarts_and_rescales(job: KeyedJob) -> None:
    for number, parallelism in enumerate([1, 2, 1]):
        job.restart(parallelism=parallelism)
        before = number - 1 if number else None
        for key in ("a", "b", "c"):
            assert job.do(key, ("n.value",), ("n.update", number))[0] == before
        assert [job.peek(COUNT, key) for key in ("a", "b", "c")] == [number] * 3


def test_an_older_driver_is_fenced(job: KeyedJob, storage: ObjectStorage) -> None:
    job.do("a", ("n.update", 1))
    other = KeyedJob(ReferenceBackend, storage, descriptors=[COUNT])
    other.restart(batch_id=1)
    other.do("a", ("n.update", 2))
    with pytest.raises(FencedError):
        job.do("a", ("n.update", 3))


def test_the_janitor_clears_what_nobody_needs(job: KeyedJob) -> None:
    for number in range(8):
        job.do("a", ("n.update", number))
    janitor = Janitor(job.storage, run_key=job._run.key, retention=2, min_age=timedelta(0))
    with open_version(job.storage, uid=job.uid, version=4) as reader:
        janitor.sweep(8)
        janitor.sweep(8)
        kept = {data_version(info.name) for info in job.storage.list("data")}
        assert kept == {4, 6, 7, 8}
        assert reader.version == 4
    janitor.sweep(8)
    janitor.sweep(8)
    assert {data_version(info.name) for info in job.storage.list("data")} == {6, 7, 8}
    assert job.do("a", ("n.value",)) == [7]


def test_a_refresh_of_top_takes_three_requests_at_most(
    s3_options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    root = open_storage(f"s3://bucket/top/{next(_numbers)}", s3_options)
    for uid in ("op1", "op2"):
        job = KeyedJob(ReferenceBackend, root, uid=uid, descriptors=[COUNT])
        for number in range(12):
            job.do("a", ("n.update", number))
        janitor = Janitor(job.storage, run_key=job._run.key, retention=5, min_age=timedelta(0))
        janitor.sweep(12)
    watch = DirectoryWatch(root)
    caplog.set_level(logging.INFO, logger="werkzeug")
    counts = []
    for _ in range(4):
        caplog.clear()
        views = watch.refresh()
        counts.append(sum(record.name == "werkzeug" for record in caplog.records))
    assert [view.newest.version for view in views.values() if view.newest] == [12, 12]
    finding, operators = 2, 2
    assert counts[0] <= finding + 3 * operators
    assert counts[1:] == [operators] * 3, "what cannot change is not read again"
