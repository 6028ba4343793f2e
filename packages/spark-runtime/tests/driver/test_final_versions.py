"""Marks of final versions, from progress events, without Spark."""

from __future__ import annotations

import threading
import uuid

import attrs
import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.choosing.finality import newest_shown
from forebay_engine.versions.format.epochs import RunIdentity
from forebay_spark_runtime.driver.final_versions import FinalVersions
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.driver.session import MicroBatch
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob
from forebay_testing.storage import CountingStorage

APP, RUN, QUERY = "app", str(uuid.uuid4()), "the-query"
PATIENCE_S = 100


def identity(made):
    return RunIdentity(keyed_uuid=made, app_id=APP, run_id=RUN)


@pytest.fixture
def made():
    return str(uuid.uuid4())


@pytest.fixture
def job(tmp_path, made):
    """A job that has made two versions, in the run of `identity`."""
    job = KeyedJob(
        *(HeapBackend, open_storage(str(tmp_path))),
        descriptors=[ValueStateDescriptor("n", int)],
        query=QUERY,
    )
    job._run = identity(made)
    job.do("ann", ("n.update", 1))
    job.do("ann", ("n.update", 2))
    return job


@pytest.fixture
def options(tmp_path, made):
    return KeyedOptions(
        uid="operator",
        parallelism=1,
        max_parallelism=8,
        batch=MicroBatch(),
        state_dir=str(tmp_path),
        order_by=(),
        new_state=False,
        settings=resolve_settings({}),
        keyed_uuid=made,
    )


def event(*operators, batch=1, duration="commitOffsets", run=RUN):
    return {
        "id": QUERY,
        "runId": run,
        "batchId": batch,
        "durationMs": {duration: 3},
        "observedMetrics": {f"forebay:{uid}:{made}": {"rows_in": 1} for uid, made in operators},
    }


@pytest.fixture
def marks(options):
    marks = FinalVersions()
    marks.remember(options)
    return marks


def shown(job):
    found = newest_shown(job.storage, provisional=False)
    return found and found.at.version


def test_the_newest_version_is_final_when_its_batch_is_committed(job, marks, made):
    assert shown(job) == 1
    marks.committed(event(("operator", made)), APP)
    marks.wait(PATIENCE_S)
    assert shown(job) == 2


def test_one_put_for_each_batch_and_a_get_for_each_run(job, marks, made, monkeypatch):
    counting = CountingStorage(job.storage)
    monkeypatch.setattr(marks, "_storage", lambda _: counting)
    for batch in (0, 1):
        marks.committed(event(("operator", made), batch=batch), APP)
        marks.wait(PATIENCE_S)
    assert counting.counts == {"get": 1, "put_if_absent": 2}


def test_a_query_with_a_name_of_its_own(job, marks, made, options):
    marks.remember(attrs.evolve(options, batch=MicroBatch(query=QUERY)))
    marks.committed({**event(("operator", made)), "id": "another"}, APP)
    marks.wait(PATIENCE_S)
    assert shown(job) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"duration": "addBatch"},  # not committed
        {"run": "another"},  # its tasks know the run under another key
    ],
)
def test_what_is_not_known_to_be_committed_gets_no_mark(job, marks, made, other):
    marks.committed(event(("operator", made), **other), APP)
    marks.wait(PATIENCE_S)
    assert [*job.storage.list("final")] == []


def test_operators_of_other_processes_and_metrics_of_users_are_ignored(job, marks):
    marks.committed(event(("operator", str(uuid.uuid4()))), APP)
    marks.committed({**event(), "observedMetrics": {"mine": {}, "forebay:x": {}}}, APP)
    marks.wait(PATIENCE_S)
    assert shown(job) == 1


def test_a_storage_that_fails_is_asked_again_for_the_next_batch(job, marks, made, monkeypatch):
    storage = marks._storage
    monkeypatch.setattr(marks, "_storage", lambda _: 1 / 0)
    marks.committed(event(("operator", made), batch=0), APP)
    marks.wait(PATIENCE_S)
    monkeypatch.setattr(marks, "_storage", storage)
    marks.committed(event(("operator", made)), APP)
    marks.wait(PATIENCE_S)
    assert shown(job) == 2


def test_slow_storage_holds_nothing_up_and_gets_the_newest_mark_only(job, marks, made, monkeypatch):
    storage, begun, goes_on = marks._storage, threading.Event(), threading.Event()

    def slow(commit):
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        return storage(commit)

    monkeypatch.setattr(marks, "_storage", slow)
    marks.committed(event(("operator", made), batch=0), APP)
    assert begun.wait(PATIENCE_S)
    for batch in (1, 2, 3):
        marks.committed(event(("operator", made), batch=batch), APP)
    goes_on.set()
    marks.wait(PATIENCE_S)
    run = identity(made).key
    names = [info.name for info in job.storage.list("final")]
    assert sorted(names) == [f"final/{version}-{run}" for version in (1, 4)]
