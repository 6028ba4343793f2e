"""The inside of a worker, without Ray."""

from __future__ import annotations

import errno
import threading
import time

import attrs
import pytest
from compaction_ray_toys import PATIENCE_S, Concatenation, submission

import forebay_compaction_ray.worker.body
from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.messages import NO_STORAGE, OLDER_RELEASE, TAKEN_PREFIX
from forebay_compaction_ray.worker.body import WorkerBody, WorkerStorage
from forebay_compaction_ray.worker.guard import JobStorage
from forebay_compaction_ray.worker.noop_compactor import NoopCompactor
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    PluginError,
    StorageError,
)
from forebay_state_api.storage.opening import open_storage


@pytest.fixture
def compactor():
    return Concatenation()


@pytest.fixture
def body(state_dir, storage, compactor):
    compactors = {"toy": compactor, "nothing-1": NoopCompactor()}
    return WorkerBody({"default": WorkerStorage(state_dir)}, compactors=lambda: compactors)


def begun(body, given):
    """Run the job on a thread; return the thread and the list that will hold its outcome."""
    found = []
    thread = threading.Thread(target=lambda: found.append(body.run(given)))
    thread.start()
    return thread, found


def test_what_it_is(body):
    info = body.describe({})
    assert info.formats == ("nothing-1", "toy")
    assert (info.boot, body.describe({}).boot) == (info.boot, info.boot)
    assert info.pid > 0


def test_a_worker_compares_the_marks_of_its_storages(body, storage):
    assert "has no mark" in body.describe({"default": "a"}).problems["default"]
    mark = storage_mark.put(storage)
    assert body.describe({"default": mark}).problems == {}
    problem = body.describe({"default": "a1b2c3d4e5"}).problems["default"]
    assert f"has the mark {mark[:8]} on" in problem
    assert "the mark a1b2c3d4 where the gateway has it" in problem


def lose_mount(body, tmp_path):
    """Let another, empty directory be at the place of the storage."""
    body._opened["default"] = open_storage(str(tmp_path / "empty"))
    return body._opened["default"]


def test_a_job_does_not_begin_without_the_directory_of_the_gateway(
    body, storage, compactor, tmp_path
):
    body.describe({"default": storage_mark.put(storage)})
    empty = lose_mount(body, tmp_path)
    outcome = body.run(submission())
    assert (outcome.phase, outcome.code) == (CompactionPhase.FAILED, NO_STORAGE)
    assert outcome.fault is CompactionFault.TRANSIENT
    assert "has no mark on" in outcome.message
    assert compactor.runs == 0
    assert empty.list("") == [], "not even a claim"
    body._opened["default"] = storage
    assert body.run(submission()).phase is CompactionPhase.DONE


def test_a_failure_without_the_directory_says_nothing_about_the_job(
    body, storage, compactor, tmp_path
):
    body.describe({"default": storage_mark.put(storage)})
    compactor.fault = CorruptStateError("it is missing")
    assert body.run(submission()).fault is CompactionFault.CORRUPTION
    compact = compactor.compact

    def unmounted_meanwhile(*given):
        lose_mount(body, tmp_path)
        return compact(*given)

    compactor.compact = unmounted_meanwhile
    outcome = body.run(submission())
    assert (outcome.fault, outcome.code) == (CompactionFault.TRANSIENT, NO_STORAGE)


def test_a_storage_that_cannot_be_read_is_named_by_its_error():
    def refuse(url, options):
        raise ConfigurationError("no credentials")

    body = WorkerBody({"default": WorkerStorage("s3://b")}, compactors=dict, open_=refuse)
    assert body.describe({"default": "a"}).problems == {"default": "no credentials"}
    assert body.check("default") == {"it can be opened": "no credentials"}
    outcome = body.run(submission())
    assert (outcome.phase, outcome.fault) == (CompactionPhase.FAILED, CompactionFault.TRANSIENT)


def test_plugins_that_cannot_be_imported_are_an_answer_and_no_silence(monkeypatch):
    def broken():
        raise PluginError("toy_of_tests: libfoo.so.1")

    monkeypatch.setattr(forebay_compaction_ray.worker.body, "plugins", broken)
    body = WorkerBody({"default": WorkerStorage("/x")})
    with pytest.raises(PluginError, match="libfoo"):
        body.describe({})


def test_a_job_is_done_and_counted(body, storage):
    given = submission()
    outcome = body.run(given)
    assert outcome.phase is CompactionPhase.DONE
    assert outcome.bytes_in == 100
    assert outcome.bytes_out == 100
    assert outcome.seconds > 0
    assert storage.child("query/op").get(given.job.result_name)
    assert body.ping() == {}


def test_progress_while_it_runs(body, compactor):
    compactor.go.clear()
    given = submission()
    thread, found = begun(body, given)
    assert compactor.began.wait(PATIENCE_S)
    before = body.ping()[given.job.id].steps
    deadline = time.monotonic() + PATIENCE_S
    while body.ping()[given.job.id].steps == before:  # the compactor asks again and again
        assert time.monotonic() < deadline
    compactor.go.set()
    thread.join(PATIENCE_S)
    assert found[0].phase is CompactionPhase.DONE


def test_aborting_a_job_that_runs_and_one_that_does_not(body, compactor):
    compactor.go.clear()
    given = submission()
    thread, found = begun(body, given)
    assert compactor.began.wait(PATIENCE_S)
    body.abort(given.job.id)
    thread.join(PATIENCE_S)
    assert found[0].phase is CompactionPhase.ABORTED
    compactor.go.set()
    early = submission(2)
    body.abort(early.job.id)
    assert body.run(early).phase is CompactionPhase.DONE


def test_a_prefix_that_is_taken_is_named_by_a_code(body, storage):
    given = submission()
    storage.child("query/op").put(given.job.claim_name, b"")
    outcome = body.run(given)
    assert (outcome.fault, outcome.code) == (CompactionFault.TRANSIENT, TAKEN_PREFIX)
    assert "is truncated to 0 bytes" in outcome.message


def test_a_worker_does_not_run_a_job_that_it_knows_in_part(body, storage, compactor):
    whole = submission()
    asked = attrs.evolve(whole, digest=whole.job.digest)
    known = attrs.evolve(asked, job=attrs.evolve(asked.job, options={}))
    assert body.run(known).code == OLDER_RELEASE
    assert compactor.runs == 0
    assert storage.child("query/op").list(whole.job.output_prefix) == []
    assert body.run(asked).phase is CompactionPhase.DONE


@pytest.mark.parametrize(
    ("raised", "fault"),
    [
        (StorageError("throttled"), CompactionFault.TRANSIENT),
        (CorruptStateError("altered"), CompactionFault.CORRUPTION),
        (PluginError("odd"), CompactionFault.PERMANENT),
        (ZeroDivisionError(), CompactionFault.PERMANENT),
        (MemoryError(), CompactionFault.TRANSIENT),
        (OSError(errno.EMFILE, "Too many open files"), CompactionFault.TRANSIENT),
        (OSError(errno.ENOSPC, "No space left on device"), CompactionFault.TRANSIENT),
        (PermissionError(errno.EACCES, "denied"), CompactionFault.TRANSIENT),
        (ConnectionResetError(), CompactionFault.TRANSIENT),
        (TimeoutError("slow"), CompactionFault.TRANSIENT),
        (RuntimeError("can't start new thread"), CompactionFault.TRANSIENT),
        (ConfigurationError("no credentials"), CompactionFault.TRANSIENT),
    ],
)
def test_faults_are_told_apart(body, compactor, raised, fault):
    compactor.fault = raised
    outcome = body.run(submission())
    assert (outcome.phase, outcome.fault) == (CompactionPhase.FAILED, fault)
    assert outcome.message


def test_an_empty_job_leaves_a_result_without_outputs(body, storage):
    import attrs

    given = submission(file_format="nothing-1")
    assert body.run(given).fault is CompactionFault.CORRUPTION
    given = submission(file_format="nothing-1")
    empty = attrs.evolve(given, job=attrs.evolve(given.job, inputs=[]))
    assert body.run(empty).phase is CompactionPhase.DONE


def test_a_storage_is_probed(body, storage):
    before = storage.list("")
    found = body.check("default")
    assert found
    assert set(found.values()) == {""}
    assert storage.list("") == before


def test_what_examinations_left_is_cleared(body, storage):
    storage.put(".compaction/doctor/abc/result", b"x")
    storage.put(".compaction/added/10.0.0.7!9461", b"y")
    body.check("default")
    assert [info.name for info in storage.list(".compaction")] == [
        ".compaction/added/10.0.0.7!9461"
    ]


def test_secrets_of_storages_are_in_no_repr():
    assert "hush" not in repr(WorkerStorage("s3://bucket", {"aws_secret_access_key": "hush"}))


# -- storage as a job may use it ----------------------------------------------------------------


@pytest.fixture
def guarded(storage):
    return JobStorage(storage, "query/op/data/mine/", lambda size: None)


def test_a_job_writes_below_its_prefix_only(guarded, storage):
    here = guarded.child("query/op")
    here.put("data/mine/a", b"1")
    assert here.put_if_absent("data/mine/b", b"2")
    for name in ("data/in1", "data/mine", "data/minestrone/a", "other"):
        with pytest.raises(PluginError, match="not below"):
            here.put(name, b"x")
        with pytest.raises(PluginError, match="not below"):
            here.put_if_absent(name, b"x")
    with pytest.raises(PluginError):
        guarded.put("data/mine/c", b"x")
    with pytest.raises(ValueError, match="root"):
        here.put("data/mine/../in1", b"x")
    assert storage.get("query/op/data/in1") == b"\x01" * 100


def test_a_job_deletes_nothing(guarded):
    with pytest.raises(PluginError, match="janitor"):
        guarded.child("query/op").delete(["data/mine/a"])


def test_a_job_reads_what_it_likes(guarded):
    here = guarded.child("query").child("op/")
    assert here.get("data/in1") == b"\x01" * 100
    assert here.get_ranges("data/in2", [(0, 2), (5, 1)]) == [b"\x02\x02", b"\x02"]
    assert len(here.list("data")) == 9
    assert guarded.list_folders("query") == ["op"]
    assert here.url.endswith("op")


def test_what_a_job_reads_is_counted(storage):
    read = []
    here = JobStorage(storage, "query/op/x/", read.append).child("query/op")
    here.get("data/in1")
    here.get_ranges("data/in1", [(0, 10), (20, 5)])
    here.put("x/a", b"12345")
    assert read == [100, 15]
