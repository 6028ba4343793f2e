"""Versions: failures, verified reads, migration (docs/explanation/exactly-once.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import attrs
import pytest

from forebay_state_api.codecs import Alias, Codec, MigratedFrom
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    ForebayError,
    StateMigrationError,
    StorageError,
)
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage.retry import RetryingStorage, RetryPolicy
from forebay_state_api.testing.conformance.kinds import add
from forebay_state_api.testing.conformance.stored_cells import StoredCells
from forebay_state_api.testing.conformance.subject import BackendSubject, NewJob, Recorded
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.testing.storage import (
    Crash,
    Fault,
    FaultKind,
    FaultyStorage,
    WrappedStorage,
)
from forebay_state_api.versions.savepoints import create_savepoint, list_savepoints

T = TypeVar("T")

COUNT = [("r.add", 1), ("l.add", 1)]
READ = [("r.get",), ("l.get",), ("v.value",)]


class VersionTests(BackendSubject):
    """Attempts that fail, batches that come again, runs that go back."""

    @pytest.fixture
    def counting(self, new_job: NewJob) -> KeyedJob:
        """A job that counted twice under ``k``; ``v`` holds the last batch."""
        job = new_job(*_states())
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
            monkeypatch.setattr("forebay_state_api.engine.engine.SPILL_CELLS", 0)
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
            job = new_job(*_states(), storage=faulty)
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
        job = new_job(*_states(), storage=faulty)
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
        job = new_job(*_states(), uid="renamed")
        job.batch_id = 7
        with pytest.raises(ConfigurationError, match=r"'renamed'.*new_state"):
            job.do("k", *READ)
        with job.subtask(Recorded(lambda f, context: None, lambda *_: None), new_state=True) as new:
            new.commit()

    def test_without_versions_nothing_is_read_or_stored(
        self, counting: KeyedJob, storage: ObjectStorage
    ) -> None:
        from forebay_state_api.engine.subtask import Subtask

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
            job = new_job(*_states(), storage=faulty)
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
            job = new_job(*_states(), storage=faulty, parallelism=2)
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
        job = new_job(*_states(), storage=slow)
        job.scripts([(key, COUNT) for key in "abc"])
        job.restart()
        assert job.scripts([(key, [("r.get",)]) for key in "abc"]) == [[1]] * 3
        assert "put" in requests

    def test_lost_answers_change_nothing(self, new_job: NewJob, storage: ObjectStorage) -> None:
        """Each object is put, the answer is lost, and the put is tried again."""
        retry = RetryPolicy(budget_s=30, sleep=lambda _: None)
        losing = _LosesAnswers(storage)
        job = new_job(*_states(), storage=RetryingStorage(losing, retry))
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


class VerificationTests(BackendSubject):
    """Reads are verified: an error names file and version; no wrong value is ever returned."""

    @pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "empty"])
    def test_damaged_files_are_found(
        self, new_job: NewJob, stored_cells: StoredCells, damage: str
    ) -> None:
        job = new_job(*_states())
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
        job = new_job(*_states())
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
        job = new_job(*_states())
        job.scripts([(f"key {n}", [*COUNT, ("v.update", n)]) for n in range(30)])
        for name, data in stored_cells.pieces(job.storage).items():
            altered = bytearray(data)
            altered[int(len(data) * position)] ^= 1
            stored_cells.put(job.storage, name, bytes(altered))
        job.restart()
        with pytest.raises(CorruptStateError):
            job.scripts([(f"key {n}", READ) for n in range(30)])


class Point(NamedTuple):
    """A version of a record."""

    x: int
    y: int


class Text(Codec[str]):
    """A user codec."""

    id = "text"
    version = 1

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()

    def describe(self) -> str:
        return "text"

    def compatible_with(self, stored_description: str) -> bool:
        return stored_description == "text"


class Flat:
    """Holds the older of two classes of one name."""

    @attrs.define
    class Position:
        """A record with one field."""

        x: int


class Tall:
    """Holds the newer of two classes of one name."""

    @attrs.define
    class Position:
        """A record with one more field."""

        x: int
        height: float = 1.5


class Swapped:
    """Holds a class with the fields of `Tall` the other way round."""

    @attrs.define
    class Position:
        """A record."""

        height: float
        x: int


class Turned:
    """Holds a class whose field had another name."""

    @attrs.define
    class Position:
        """A record with one field."""

        east: Annotated[int, Alias("x")]


def _positions(one: Any) -> list[StateDescriptor]:
    """A value, a list and a map of ``one``."""
    return [
        ValueStateDescriptor("s", one),
        ListStateDescriptor("l", one),
        MapStateDescriptor("m", str, one),
    ]


def _written(value: Any) -> list[Any]:
    return [("s.update", value), ("l.add", value), ("m.put", "a", value)]


class MigrationTests(BackendSubject):
    """Restoring under another declaration."""

    @pytest.mark.parametrize(
        ("stored", "declared", "value", "read"),
        [
            (Flat.Position, Tall.Position, Flat.Position(3), "Tall.Position(x=3, height=1.5)"),
            (Tall.Position, Flat.Position, Tall.Position(3, 2.0), "Flat.Position(x=3)"),
            (
                Tall.Position,
                Swapped.Position,
                Tall.Position(3, 2.0),
                "Swapped.Position(height=2.0, x=3)",
            ),
            (int, float, 3, "3.0"),
            (int, int | None, 3, "3"),
            (tuple[int, int], tuple[int, ...], (1, 2), "(1, 2)"),
        ],
        ids=[
            "field added",
            "field removed",
            "fields reordered",
            "int to float",
            "optional",
            "longer tuples",
        ],
    )
    def test_compatible_changes_read_old_values(
        self, new_job: NewJob, stored: Any, declared: Any, value: Any, read: str
    ) -> None:
        job = new_job(ValueStateDescriptor("s", stored), ListStateDescriptor("l", stored))
        job.do("k", ("s.update", value), ("l.add", value))
        job.descriptors = [ValueStateDescriptor("s", declared), ListStateDescriptor("l", declared)]
        for _ in range(2):
            job.restart()
            got, elements = job.do("k", ("s.value",), ("l.get",))
            assert (repr(got), repr(elements)) == (read, f"[{read}]")
            job.do("other", ("s.update", got))
        assert repr(job.do("other", ("s.value",))[0]) == read

    def test_a_field_that_was_renamed_is_found_under_its_alias(self, new_job: NewJob) -> None:
        job = new_job(*_positions(Flat.Position))
        job.do("k", *_written(Flat.Position(3)))
        job.descriptors = _positions(Turned.Position)
        job.restart()
        got, elements, entry = job.do("k", ("s.value",), ("l.get",), ("m.get", "a"))
        assert [got, *elements, entry] == [Turned.Position(east=3)] * 3

    def test_a_function_migrates_what_was_stored(self, new_job: NewJob) -> None:
        job = new_job(*_positions(int))
        job.do("old", *_written(3))
        job.do("newer", *_written(4))
        migrated = Annotated[Flat.Position, MigratedFrom(int, Flat.Position)]
        job.descriptors = _positions(migrated)
        for _ in range(3):  # values that were not rewritten are migrated again
            job.restart()
            reads = [("s.value",), ("l.get",), ("m.get", "a")]
            assert job.do("old", *reads) == [Flat.Position(3), [Flat.Position(3)], Flat.Position(3)]
            job.do("newer", ("s.update", Flat.Position(5)), ("l.add", Flat.Position(6)))
        assert job.do("newer", ("s.value",)) == [Flat.Position(5)]
        four = job.do("newer", ("l.get",))[0]
        assert four == [Flat.Position(4), *[Flat.Position(6)] * 3]

    def test_a_migration_that_fails_names_itself_and_both_types(self, new_job: NewJob) -> None:
        job = new_job(*_positions(int))
        job.do("k", *_written(3))
        job.descriptors = _positions(Annotated[Flat.Position, MigratedFrom(int, str)])
        job.restart()
        with pytest.raises(StateMigrationError, match=r"migration str from int.*Position"):
            job.do("k", ("s.value",), ("l.get",), ("m.get", "a"))
        job.descriptors = _positions(int)
        job.restart()
        assert job.do("k", ("s.value",)) == [3], "the stored state is untouched"

    def test_types_of_all_kinds_survive(self, new_job: NewJob) -> None:
        job = new_job(
            ValueStateDescriptor("p", Point),
            ValueStateDescriptor("t", Text()),
            MapStateDescriptor("m", Text(), list[Point]),
            ValueStateDescriptor("u"),
        )
        untyped = {"a": [1, (2, "x")], 3: None, (1, True): b"\x00"}
        writes = [
            ("p.update", Point(1, 2)),
            ("t.update", "ä"),
            ("m.put", "a", [Point(3, 4)]),
            ("u.update", untyped),
        ]
        job.do("k", *writes)
        job.restart()
        reads = [("p.value",), ("t.value",), ("m.items",), ("u.value",)]
        assert job.do("k", *reads) == [Point(1, 2), "ä", [("a", [Point(3, 4)])], untyped]

    def test_state_that_is_no_longer_declared_is_kept(self, new_job: NewJob) -> None:
        job = new_job(*_states(), parallelism=2)
        keys = "abcdefghijkl"
        job.scripts([(key, [*COUNT, ("namespace", "w"), *COUNT]) for key in keys])
        everything, job.descriptors = job.descriptors, [ValueStateDescriptor("v", int)]
        for number in range(3):
            job.restart(parallelism=number + 1)
            job.scripts([(key, [("v.update", number)]) for key in "abc"])
        for number in range(24):  # until every backend has merged files
            job.scripts([(key, [("v.update", number)]) for key in keys])
        job.descriptors = everything
        job.restart(parallelism=2)
        got = job.scripts([(key, [*READ, ("namespace", "w"), *READ]) for key in keys])
        assert got == [[1, [1], 23, None, 1, [1], None]] * len(keys)

    def test_state_that_is_no_longer_declared_is_logged(
        self, new_job: NewJob, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = new_job(*_states())
        job.scripts([(key, COUNT) for key in "abc"])
        job.descriptors = [ValueStateDescriptor("v", int)]
        with caplog.at_level(logging.INFO, "forebay_state_api"):
            job.do("a", ("v.value",))
        kept = [one.getMessage() for one in caplog.records if "kept" in one.getMessage()]
        assert kept == [f"operator {job.uid}, subtask 0: not declared any more, and kept: l, r"]


class MigrationRefusalTests(BackendSubject):
    """Refusals of the engine itself; they need one backend only, see `EngineTests`."""

    @pytest.mark.parametrize(
        ("stored", "declared", "write", "message"),
        [
            (
                ValueStateDescriptor("s", int),
                ListStateDescriptor("s", int),
                ("s.update", 1),
                "kind value.*kind list",
            ),
            (
                ListStateDescriptor("s", int),
                ValueStateDescriptor("s", int),
                ("s.add", 1),
                "kind list.*kind value",
            ),
            (
                ValueStateDescriptor("s", int),
                ReducingStateDescriptor("s", add, int),
                ("s.update", 1),
                "kind value.*kind reducing",
            ),
            (
                ValueStateDescriptor("s", int),
                ValueStateDescriptor("s", str),
                ("s.update", 1),
                r"\bint\b.*\bstr\b",
            ),
            (
                ValueStateDescriptor("s", int | None),
                ValueStateDescriptor("s", int),
                ("s.update", 1),
                r"\bint \| None\b.*\bint\b",
            ),
            (
                ListStateDescriptor("s", str),
                ListStateDescriptor("s", bytes),
                ("s.add", "x"),
                r"\bstr\b.*\bbytes\b",
            ),
            (
                MapStateDescriptor("s", str, int),
                MapStateDescriptor("s", int, int),
                ("s.put", "a", 1),
                r"\bstr\b.*\bint\b",
            ),
            (
                MapStateDescriptor("s", str, int),
                MapStateDescriptor("s", str, str),
                ("s.put", "a", 1),
                r"\bint\b.*\bstr\b",
            ),
            (
                ValueStateDescriptor("s", Text()),
                ValueStateDescriptor("s", str),
                ("s.update", "x"),
                r"text.*\bstr\b",
            ),
        ],
        ids=lambda one: getattr(one, "kind", one) and None,
    )
    def test_an_incompatible_declaration_names_state_types_and_way_out(
        self,
        new_job: NewJob,
        stored: StateDescriptor,
        declared: StateDescriptor,
        write: Any,
        message: str,
    ) -> None:
        job = new_job(stored)
        job.do("k", write)
        job.descriptors = [declared]
        job.restart()
        with pytest.raises(StateMigrationError, match=rf"'s'.*{message}.*another name"):
            job.do("k", ("s.clear",))
        job.descriptors = [stored]
        job.restart()
        assert job.peek(stored, "k"), "the stored state is untouched"

    def test_a_changed_key_type(self, new_job: NewJob) -> None:
        job = new_job(ValueStateDescriptor("s", int), key_type=str)
        job.do("k", ("s.update", 1))
        other = new_job(ValueStateDescriptor("s", int), key_type=int)
        other.batch_id = 1
        with pytest.raises(StateMigrationError, match=r"'s'.*str.*int"):
            other.do(1, ("s.value",))


def _states() -> list[StateDescriptor]:
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
    elif damage == "altered":
        middle = len(data) // 2
        stored.put(storage, name, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        changed = {"truncated": data[:-3], "empty": b"", "longer": data + b"x"}
        stored.put(storage, name, changed[damage])
