"""The life of a subtask: the order of its calls, and its state after a failure."""

from __future__ import annotations

import logging

import attrs
import pytest

from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.manifest_metrics import flat, nested
from forebay_state_api import (
    CorruptStateError,
    FunctionError,
    KeyedProcessFunction,
    StateAccessError,
    StorageError,
    ValueStateDescriptor,
)
from forebay_state_api.metrics import KEYED
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend
from forebay_testing.storage import Fault, FaultyStorage

from ..subjects import Timeless

calls = []


class Watched(ReferenceBackend):
    @classmethod
    def open(cls, opening):
        calls.append("backend.open")
        return super().open(opening)

    def commit(self, version):
        calls.append(f"backend.commit({version})")
        return super().commit(version)

    def installed(self, manifest_id):
        calls.append(f"installed({len(manifest_id)})")

    def close(self):
        calls.append("backend.close")
        super().close()


class Telling(KeyedProcessFunction):
    fails_in = None

    def open(self, context):
        self.tell("open")
        self.v = context.get_state(ValueStateDescriptor("v", int, default=0))

    def process_element(self, row, ctx):
        self.tell("record")
        self.v.update(self.v.value() + 1)
        return [(row[0], self.v.value(), ctx.batch_id, ctx.attempt_number, ctx.subtask_index)]

    def close(self):
        self.tell("close")

    def tell(self, call):
        calls.append(call)
        if call == self.fails_in:
            raise LookupError(call)


@pytest.fixture
def job():
    calls.clear()
    return KeyedJob(Watched, memory_storage())


def test_the_order_of_events(job):
    assert job.run(Telling(), [("k",)]) == [("k", 1, 0, 0, 0)]
    assert calls == [
        "backend.open",
        "open",
        "record",
        "backend.commit(1)",
        "installed(24)",
        "close",
        "backend.close",
    ]


@pytest.mark.parametrize(
    ("fails_in", "expected"),
    [
        ("open", ["backend.open", "open", "close", "backend.close"]),
        ("record", ["backend.open", "open", "record", "close", "backend.close"]),
    ],
)
def test_a_failure_closes_everything_and_leaves_no_version(job, fails_in, expected):
    function = Telling()
    function.fails_in = fails_in
    with pytest.raises(FunctionError, match=fails_in):
        job.run(function, [("k",)])
    assert calls == expected
    assert not [info for info in job.storage.list("versions") if "manifest" in info.name]
    assert job.run(Telling(), [("k",)]) == [("k", 1, 0, 0, 0)]


def test_a_backend_that_cannot_be_opened(job):
    job.run(Telling(), [("k",)])
    for info in job.storage.list("data"):
        job.storage.put(info.name, b"")
    calls.clear()
    with pytest.raises(CorruptStateError):
        job.run(Telling(), [("k",)])
    assert calls == ["backend.open"]


@pytest.mark.parametrize("name", ["*/marker-*", "*/manifest-*"])
def test_an_error_of_storage_names_the_operator(name):
    full = StorageError("full")
    storage = FaultyStorage(
        memory_storage(), Fault(operation="put*", name=name, error=lambda: full)
    )
    with pytest.raises(StorageError, match="full") as caught:
        KeyedJob(Watched, storage).run(Telling(), [("k",)])
    assert caught.value.__notes__ == ["in the state of operator 'operator', subtask 0, batch 0"]


def test_the_function_that_fails_to_close_after_the_commit(job):
    function = Telling()
    function.fails_in = "close"
    with pytest.raises(FunctionError, match="close"):
        job.run(function, [("k",)])
    assert calls[-1] == "backend.close"
    job.batch_id = 1
    assert job.run(Telling(), [("k",)])[0][1] == 2, "the version stands"


def test_rows_may_be_taken_before_and_after_the_commit(job):
    with job.subtask(Telling()) as running:
        running.process([("a",)], ["a"], [0])
        assert [row[0] for row in running.take_rows()] == ["a"]
        running.process([("b",), ("c",)], ["b", "c"], [0, 0])
        running.commit()
        assert [row[0] for row in running.take_rows()] == ["b", "c"]
        assert running.take_rows() == []


def test_the_report(job):
    with job.subtask(Telling()) as running:
        running.process([("a",), ("b",)], ["a", "b"], [0, 0])
        report = running.commit()
    assert (report.version, report.opened_version, report.is_restored) == (1, 0, False)
    assert report.keys == 2
    assert report.bytes_written == report.bytes_total > 0
    assert report.opening_s > 0
    assert report.commit_s > 0
    assert (report.metrics.records, report.metrics.rows_out) == (2, 2)
    assert report.manifest_id in job.storage.list("versions")[0].name


def test_the_manifest_holds_what_the_compaction_service_tells(job, monkeypatch):
    job.run(Telling(), [("a",)])
    monkeypatch.setattr(job.compaction, "metrics", lambda: {"inflight": 2})
    job.run(Telling(), [("a",)])
    with open_version(job.storage, uid=job.uid, version=1) as reader:
        assert "compaction" not in reader.manifests[0].metrics
    with open_version(job.storage, uid=job.uid, version=2) as reader:
        assert reader.manifests[0].metrics["compaction"] == {"inflight": 2}


def test_the_manifest_holds_what_was_measured(job):
    job.run(Telling(), [("a",), ("b",)])
    with open_version(job.storage, uid=job.uid, version=1) as reader:
        metrics = reader.manifests[0].metrics
    figures = flat(metrics)
    assert nested(figures).items() <= metrics.items()
    assert (figures["rows_in"], figures["rows_out"], figures["commits"]) == (2, 2, 1)
    assert figures["failed_records"] == 0, "a number that is known is there, though it is 0"
    assert metrics["phase_seconds"]["commit_files"] == figures["phase_seconds_commit_files"] > 0
    assert metrics["state_access_seconds"]["v"], "state → bucket → cells"
    known = {key for metric in KEYED for key in metric.keys}
    assert set(figures) <= known


def test_committing_twice(job):
    with job.subtask(Telling()) as running:
        running.commit()
        with pytest.raises(StateAccessError, match="already"):
            running.commit()


def test_leaving_without_a_commit(job):
    with job.subtask(Telling()) as running:
        running.process([("k",)], ["k"], [0])
    assert "backend.commit(1)" not in calls
    assert job.run(Telling(), [("k",)])[0][1] == 1


def test_before_and_after(job):
    subtask = job.subtask(Telling())
    with pytest.raises(StateAccessError, match="not open"):
        subtask.process([("k",)], ["k"], [0])
    with subtask:
        assert not subtask.is_restored
    subtask.close()
    with pytest.raises(StateAccessError, match="not open"):
        subtask.take_rows()


class Counting(KeyedProcessFunction):
    """Counts in each of its states."""

    def __init__(self, *names):
        self.names = names

    def open(self, context):
        self.states = [context.get_state(ValueStateDescriptor(n, int)) for n in self.names]

    def process_element(self, row, ctx):
        for state in self.states:
            state.update((state.value() or 0) + 1)
        return [(row[0], *[state.value() for state in self.states])]


def test_a_subtask_of_a_stream_that_knows_no_time_is_found_again(job):
    job.clock = Timeless()
    for batch in range(2):
        subtask = job.subtask(Telling())
        subtask.task = attrs.evolve(subtask.task, consecutive=True)
        with subtask:
            assert subtask.commit().opened_version == batch
        job.batch_id += 1


def test_what_is_no_longer_declared_is_kept_and_logged(job, caplog):
    job.run(Counting("a", "b"), [("k",)])
    with caplog.at_level(logging.INFO, "forebay_engine.execution.subtask"):
        assert job.run(Counting("b"), [("k",)]) == [("k", 2)]
    assert "not declared any more, and kept: a" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "forebay_engine.execution.subtask"):
        assert job.run(Counting("a", "b"), [("k",)]) == [("k", 2, 3)]
    assert "declared" not in caplog.text


def test_a_generator_that_is_given_up_leaves_no_version(job):
    def rows():
        with job.subtask(Counting("a")) as running:
            running.process([("k",)], ["k"], [0])
            yield from running.take_rows()
            running.commit()

    taken = rows()
    assert next(taken) == ("k", 1)
    taken.close()
    assert calls[-1] == "backend.close"
    assert job.run(Counting("a"), [("k",)]) == [("k", 1)]
