"""Versions: failures and verified reads (docs/explanation/exactly-once.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from forebay_engine.versions.choosing.savepoints import create_savepoint, list_savepoints
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    ForebayError,
    StorageError,
)
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage.retry import RetryingStorage, RetryPolicy
from forebay_testing.backends.kinds import add
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.backends.subject import BackendSubject, NewJob, Recorded
from forebay_testing.job import KeyedJob
from forebay_testing.storage import Crash, Fault, FaultKind, FaultyStorage, WrappedStorage

T = TypeVar("T")

COUNT = [("r.add", 1), ("l.add", 1)]
READ = [("r.get",), ("l.get",), ("v.value",)]


class VersionTests(BackendSubject):
    """Attempts that fail, batches that come again, runs that go back."""

    @pytest.fixture
    def counting(self, new_job: NewJob) -> KeyedJob:
        """A job that counted twice under ``k``; ``v`` holds the last batch."""
        job = new_job(*three_states())
        for number in range(2):
            job.do("k", *COUNT, ("v.update", number))
        return job

    def test_a_version_is_made_of_the_newest_one_at_or_below_the_batch(
        self, counting: KeyedJob
    ) -> None:
        assert counting.reports[0].version == 2
        counting.do("k", *READ)
        assert (counting.reports[0].opened_version, counting.reports[0].version) == (2, 3)
        assert counting.reports[0].is_restored

    @pytest.mark.parametrize("handed_over", [False, True], ids=["held", "handed over"])
    def test_an_attempt_that_dies_before_its_commit_leaves_nothing(
        self, counting: KeyedJob, monkeypatch: pytest.MonkeyPatch, *, handed_over: bool
    ) -> None:
        if handed_over:
            monkeypatch.setattr("forebay_engine.execution.engine.SPILL_CELLS", 0)
        for _ in range(3):
            counting.scripts([(key, [*COUNT, ("v.update", 99)]) for key in "kl"], crash=True)
        assert counting.do("k", *READ) == [2, [1, 1], 1]
        assert counting.do("l", *READ) == [None, [], None]

    def test_an_attempt_that_fails_in_its_commit_leaves_nothing_in_the_process(
        self, new_job: NewJob, storage: ObjectStorage
    ) -> None:
        """The same process tries again with other rows, after each put that a batch makes."""
        for position in range(20):
            faulty = FaultyStorage(storage.child(f"put-{position}"))
            job = new_job(*three_states(), storage=faulty)
            job.do("k", *COUNT, ("v.update", 0))
            faulty.faults.append(Fault(operation="put*", skip=position))
            try:
                job.scripts([(key, [*COUNT, ("v.update", 99)]) for key in "kl"])
            except StorageError:
                job.do("k", *COUNT)
                assert job.do("k", *READ) == [2, [1, 1], 0]
                assert job.do("l", *READ) == [None, [], None]
            else:
                return
        pytest.fail("a batch put more than twenty objects")

    def test_what_a_manifest_names_is_durable_before_it(
        self, new_job: NewJob, storage: ObjectStorage
    ) -> None:
        """The process dies as soon as the manifest is put: the version is there."""
        faulty = FaultyStorage(storage)
        job = new_job(*three_states(), storage=faulty)
        job.do("k", *COUNT, ("v.update", 0))
        last = Fault(operation="put*", name="*/manifest-*", kind=FaultKind.AFTER, error=Crash)
        faulty.faults.append(last)
        with pytest.raises(Crash):
            job.do("k", *COUNT, ("v.update", 1))
        job.batch_id += 1
        job.restart()
        assert job.do("k", *READ) == [2, [1, 1], 1]

    def test_an_exception_in_the_function_leaves_nothing(self, counting: KeyedJob) -> None:
        def opened(f: Any, context: Any) -> None:
            f.v = context.get_state(ValueStateDescriptor("v", int))
            f.r = context.get_reducing_state(ReducingStateDescriptor("r", add, int))

        def process(f: Any, row: Any, ctx: Any) -> None:
            f.v.update(99)
            f.r.add(99)
            if row[1] == 3:
                raise LookupError("boom")

        with pytest.raises(ForebayError, match="boom"):
            counting.run(Recorded(opened, process), [("k", n) for n in range(5)])
        assert counting.do("k", *READ) == [2, [1, 1], 1]

    @pytest.mark.parametrize("same_process", [True, False])
    def test_a_batch_that_comes_again_has_no_double_effect(
        self, counting: KeyedJob, *, same_process: bool
    ) -> None:
        for _ in range(2):
            counting.batch_id = 1
            counting.do("k", *COUNT, ("v.update", 5))
            if not same_process:
                counting.restart()
        assert counting.do("k", *READ) == [2, [1, 1], 5]

    @pytest.mark.parametrize("same_process", [True, False])
    def test_a_run_that_goes_back_sees_nothing_of_the_time_after(
        self, counting: KeyedJob, *, same_process: bool
    ) -> None:
        for number in range(3):
            counting.do("k", *COUNT, ("v.update", 100 + number))
        counting.restart(batch_id=1, same_process=same_process)
        assert counting.do("k", *COUNT, *READ)[2:] == [2, [1, 1], 0]
        assert counting.do("k", *READ) == [2, [1, 1], 0]

    def test_nothing_stored_where_state_is_expected(
        self, new_job: NewJob, counting: KeyedJob
    ) -> None:
        job = new_job(*three_states(), uid="renamed")
        job.batch_id = 7
        with pytest.raises(ConfigurationError, match=r"'renamed'.*new_state"):
            job.do("k", *READ)
        with job.subtask(Recorded(lambda f, context: None, lambda *_: None), new_state=True) as new:
            new.commit()

    def test_without_versions_nothing_is_read_or_stored(
        self, counting: KeyedJob, storage: ObjectStorage
    ) -> None:
        from forebay_engine.execution.subtask import Subtask

        before = storage.list()
        subtask = counting.subtask(Recorded(lambda f, context: None, lambda f, row, ctx: [row]))
        ephemeral = Subtask(
            Recorded(lambda f, context: None, lambda f, row, ctx: [row]),
            counting.backend_class,
            subtask.task,
            versions=None,
            key_codec=counting.key_codec,
            now_us=0,
            backend_options=counting.options,
        )
        with ephemeral as running:
            running.process([("k",)], ["k"], [0])
            report = running.commit()
            assert running.take_rows() == [("k",)]
        assert (report.version, report.manifest_id, report.is_restored) == (0, None, False)
        assert storage.list() == before

    @pytest.mark.parametrize("kind", list(FaultKind)[:3], ids=lambda kind: kind.value)
    def test_a_write_that_fails_commits_all_or_nothing(
        self, new_job: NewJob, storage: ObjectStorage, kind: FaultKind
    ) -> None:
        """Every put of a batch fails once: before it, after it, or half-way through.

        A commit that reports no failure must have stored everything nevertheless.
        """
        for position in range(20):
            faulty = FaultyStorage(storage.child(f"{kind.value}-{position}"))
            job = new_job(*three_states(), storage=faulty)
            job.do("k", *COUNT, ("v.update", 0))
            fault = Fault(operation="put*", kind=kind, skip=position)
            faulty.faults.append(fault)
            try:
                job.do("k", *COUNT, ("v.update", 1))
            except StorageError:
                job.restart()
                job.do("k", *COUNT, ("v.update", 1))
            faulty.faults.clear()
            job.restart()
            assert job.do("k", *READ) == [2, [1, 1], 1]
            if fault.count == 1:  # it has not happened
                return
        pytest.fail("a batch put more than twenty objects")

    def test_a_kill_at_any_request_loses_nothing(
        self, new_job: NewJob, storage: ObjectStorage
    ) -> None:
        for position in range(60):
            faulty = FaultyStorage(storage.child(f"kill-{position}"))
            job = new_job(*three_states(), storage=faulty, parallelism=2)
            job.scripts([(key, COUNT) for key in "abc"])
            faulty.faults.append(Fault(skip=position, error=Crash))
            try:
                job.scripts([(key, COUNT) for key in "abc"])
            except Crash:
                job.restart(parallelism=1 + position % 3)
                job.scripts([(key, COUNT) for key in "abc"])
                assert (
                    job.scripts([(key, [("r.get",), ("l.get",)]) for key in "abc"])
                    == [[2, [1, 1]]] * 3
                )
            else:
                return
        pytest.fail("a batch made more than sixty requests")

    def test_slow_storage_changes_nothing(self, new_job: NewJob, storage: ObjectStorage) -> None:
        requests: list[str] = []
        slow = FaultyStorage(storage, latency=lambda operation, _: requests.append(operation))
        job = new_job(*three_states(), storage=slow)
        job.scripts([(key, COUNT) for key in "abc"])
        job.restart()
        assert job.scripts([(key, [("r.get",)]) for key in "abc"]) == [[1]] * 3
        assert "put" in requests

    def test_lost_answers_change_nothing(self, new_job: NewJob, storage: ObjectStorage) -> None:
        """Each object is put, the answer is lost, and the put is tried again."""
        retry = RetryPolicy(budget_s=30, sleep=lambda _: None)
        losing = _LosesAnswers(storage)
        job = new_job(*three_states(), storage=RetryingStorage(losing, retry))
        for number in range(4):
            job.restart(parallelism=1 + number % 3)
            job.scripts([(key, COUNT) for key in "abc"])
        assert (
            job.scripts([(key, [("r.get",), ("l.get",)]) for key in "abc"])
            == [[4, [1, 1, 1, 1]]] * 3
        )
        saved = create_savepoint(job.storage, "kept", uid=job.uid)
        assert list_savepoints(job.storage) == [saved]
        assert losing.lost


class _LosesAnswers(WrappedStorage):
    """Carries out every put, and reports the first put of each name as failed."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.lost: set[str] = set()

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        answer = request()
        if operation.startswith("put") and name not in self.lost:
            self.lost.add(name)
            raise StorageError(f"no answer to the put of {name}", transient=True)
        return answer


@pytest.mark.usefixtures("damages")
class VerificationTests(BackendSubject):
    """Reads are verified: an error names file and version; no wrong value is ever returned."""

    @pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "empty"])
    def test_damaged_files_are_found(
        self, new_job: NewJob, stored_cells: StoredCells, damage: str
    ) -> None:
        job = new_job(*three_states())
        job.scripts([(key, [*COUNT, ("v.update", 1)]) for key in "abcdef"])
        pieces = stored_cells.pieces(job.storage)
        assert pieces
        for name, data in pieces.items():
            _damage(stored_cells, job.storage, name, data, damage)
        job.restart()
        with pytest.raises(CorruptStateError) as failure:
            job.scripts([(key, READ) for key in "abcdef"])
        message = str(failure.value)
        assert any(name in message for name in pieces)
        assert "version 1" in message
        assert "operator" in message

    def test_bytes_after_the_end_are_found_or_left_unread(
        self, new_job: NewJob, stored_cells: StoredCells
    ) -> None:
        job = new_job(*three_states())
        job.scripts([(key, [*COUNT, ("v.update", 1)]) for key in "abcdef"])
        for name, data in stored_cells.pieces(job.storage).items():
            _damage(stored_cells, job.storage, name, data, "longer")
        job.restart()
        try:
            found = job.scripts([(key, READ) for key in "abcdef"])
        except CorruptStateError:  # found
            return
        assert found == [[1, [1], 1]] * 6

    @pytest.mark.parametrize("position", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    def test_a_changed_bit_anywhere(
        self, new_job: NewJob, stored_cells: StoredCells, position: float
    ) -> None:
        job = new_job(*three_states())
        job.scripts([(f"key {n}", [*COUNT, ("v.update", n)]) for n in range(30)])
        for name, data in stored_cells.pieces(job.storage).items():
            if data:
                altered = bytearray(data)
                altered[int(len(data) * position)] ^= 1
                stored_cells.put(job.storage, name, bytes(altered))
        job.restart()
        with pytest.raises(CorruptStateError):
            job.scripts([(f"key {n}", READ) for n in range(30)])


def three_states() -> list[StateDescriptor]:
    """Return what `COUNT` changes and `READ` reads."""
    return [
        ReducingStateDescriptor("r", add, int),
        ListStateDescriptor("l", int),
        ValueStateDescriptor("v", int),
    ]


def _damage(
    stored: StoredCells, storage: ObjectStorage, name: str, data: bytes, damage: str
) -> None:
    if damage == "missing":
        stored.delete(storage, name)
    elif damage == "altered" and data:
        middle = len(data) // 2
        stored.put(storage, name, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        changed = {"truncated": data[:-3], "empty": b"", "altered": b"", "longer": data + b"x"}
        stored.put(storage, name, changed[damage])
