"""Two processes on one state, and what a process holds: copies, threads, descriptors, objects."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import pytest

from forebay_state_api.contract.backend import Opening, StateBackend
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import StorageError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage import ForwardingStorage
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.backends.table_contents import paged, write_list, write_map
from forebay_testing.backends.table_versions import OverVersions, Versions, spec_for
from forebay_testing.job import KeyedJob
from forebay_testing.storage import Fault, FaultyStorage

T = TypeVar("T")

DESCRIPTORS: Final = Path("/dev/fd")
"""The directory that lists the open descriptors of this process."""
_KEYS: Final = "abcdef"
_READS: Final = [("v.value",), ("l.get",), ("m.items",)]
_BATCHES: Final = 150
_TOLERATED: Final = 12
"""Descriptors, threads, temporary files and live objects that may come within the batches."""
_PATIENCE_S: Final = 20.0


def in_another_process(backend_class: type[StateBackend]) -> type[StateBackend]:
    """Return a backend that finds nothing of what this process has cached, and the other way round.

    Copies are kept under `Opening.path`, which is another one here.
    """

    class Elsewhere(backend_class):  # type: ignore[misc, valid-type]
        contract_version = backend_class.contract_version

        @classmethod
        def open(cls, opening: Opening) -> StateBackend:
            there = attrs.evolve(opening, path=f"{opening.path}#another process")
            opened: StateBackend = super().open(there)
            return opened

    return Elsewhere


class AnotherProcessTests(BackendSubject):
    """A process whose copy is behind, or of another history: another process went on meanwhile."""

    @pytest.fixture
    def pair(self, new_job: NewJob, backend_class: type[StateBackend]) -> tuple[KeyedJob, KeyedJob]:
        """Two processes of one operator, of which the first has made three versions."""
        states = [
            ValueStateDescriptor("v", int),
            ListStateDescriptor("l", int),
            MapStateDescriptor("m", str, int),
        ]
        job, other = new_job(*states), new_job(*states)
        other.backend_class = in_another_process(backend_class)
        for number in range(3):
            _batch(job, number)
        return job, other

    @pytest.mark.parametrize("ahead", [0, 1, 4])
    def test_another_process_goes_back_and_makes_the_version_again(
        self, pair: tuple[KeyedJob, KeyedJob], ahead: int
    ) -> None:
        """The first one continues with the other's version of the same number, or a later one."""
        job, other = pair
        other.restart(batch_id=1, same_process=True)
        for number in range(2 + ahead):
            _batch(other, 100 + number)
        expected = _content(other, crash=True)  # makes no version
        job.restart(batch_id=other.batch_id, same_process=True)
        assert _content(job) == expected
        _batch(job, 7)
        assert job.do("a", ("v.value",)) == [7]

    def test_processes_take_turns(self, pair: tuple[KeyedJob, KeyedJob]) -> None:
        jobs = pair
        appended = [0, 1, 2]
        for number in range(3, 12):
            turn = jobs[number % 2]
            turn.restart(batch_id=number, same_process=True)
            _batch(turn, number)
            appended.append(number)
        last = jobs[0]
        last.restart(batch_id=12, same_process=True)
        assert last.do("a", ("v.value",), ("l.get",)) == [11, appended]

    def test_queries_with_one_uid_have_their_own_state(self, new_job: NewJob) -> None:
        state = ValueStateDescriptor("v", int), ListStateDescriptor("l", int)
        one, other = (new_job(*state, query=query) for query in ("one", "other"))
        for number in range(3):
            one.do("a", ("v.update", number), ("l.add", number))
            other.do("a", ("v.update", 10 + number), ("l.add", 10 + number))
        assert one.do("a", ("v.value",), ("l.get",)) == [2, [0, 1, 2]]
        assert other.do("a", ("v.value",), ("l.get",)) == [12, [10, 11, 12]]


def _batch(job: KeyedJob, number: int) -> None:
    """Write all keys, and entries that are not the same in any two batches."""
    writes = [("v.update", number), ("l.add", number), ("m.put", f"{number % 4}", number)]
    job.scripts([(key, writes) for key in _KEYS])


def _content(job: KeyedJob, *, crash: bool = False) -> list[Any]:
    return job.scripts([(key, _READS) for key in _KEYS], crash=crash)


class LeakTests(BackendSubject):
    """150 batches, some of which fail, leave nothing behind that a commit or an error has made."""

    def test_many_batches_leave_nothing_behind(
        self,
        new_job: NewJob,
        storage: ObjectStorage,
        backend_class: type[StateBackend],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Neither descriptors, threads and temporary files nor closed backends."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        faulty = FaultyStorage(storage)
        job = new_job(ValueStateDescriptor("v", int), ListStateDescriptor("l", int), storage=faulty)
        held: list[dict[str, int]] = []
        for number in range(_BATCHES):
            faulty.faults[:] = [_failing(number)] if number % 3 == 2 else []
            with suppress(StorageError):
                job.do("k", ("v.update", number), ("l.update", [number]))
            if number in (_BATCHES // 10, _BATCHES - 1):
                held.append(_held(backend_class, tmp_path))
        early, late = held
        more = {what: count - early[what] for what, count in late.items()}
        limit = f"{_TOLERATED} more are tolerated in {_BATCHES} batches"
        assert max(more.values()) <= _TOLERATED, f"{limit}: {more}"


def _failing(number: int) -> Fault:
    """The batch's first read fails, or its first write."""
    return Fault(operation="get*" if number % 2 else "put*", name="*/data/*")


def _held(backend_class: type[StateBackend], temporary: Path) -> dict[str, int]:
    """Return what this process holds, by its kind."""
    gc.collect()
    return {
        "descriptors": sum(1 for _ in DESCRIPTORS.iterdir()),
        "threads": threading.active_count(),
        "temporary files": sum(1 for _ in temporary.iterdir()),
        "backends": sum(type(one) is backend_class for one in gc.get_objects()),
    }


class _Gate(ForwardingStorage):
    """Blocks reads while it is closed, and notes those of the thread that may not wait."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self.opened = threading.Event()
        self.opened.set()
        self.task_thread: int | None = None
        self.waited: list[str] = []

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        if threading.get_ident() == self.task_thread:
            self.waited.append(f"{operation} {name}")
        else:
            self.opened.wait(_PATIENCE_S)
        return request()


class WaitingTests(OverVersions):
    """The calls on the task thread that must not wait, and the reads that may come together."""

    @pytest.fixture
    def stored(self, versions: Versions) -> Iterator[tuple[_Gate, StateBackend, list[Any]]]:
        """A list, a map and a sorted map, opened on storage that can be stopped."""
        specs = [
            spec_for(ListStateDescriptor("l", int)),
            spec_for(MapStateDescriptor("m", int, int)),
            spec_for(SortedMapStateDescriptor("s", int, int)),
        ]
        entries = {n: -n for n in range(200)}
        with versions.writing(*specs) as (numbers, table, ordered):
            for key in "abcd":
                write_list(numbers, key, [*range(200)])
                write_map(table, key, entries)
                write_map(ordered, key, entries)
        gate = _Gate(versions.storage)
        backend = versions.open(storage=gate)
        yield gate, backend, [backend.table(spec) for spec in specs]
        gate.opened.set()
        backend.close()

    def test_a_scan_returns_while_reads_are_blocked(
        self, stored: tuple[_Gate, StateBackend, list[Any]]
    ) -> None:
        """It takes its snapshot without waiting, for storage or for a read of another thread."""
        gate, _, (numbers, table, ordered) = stored
        gate.opened.clear()
        with ThreadPoolExecutor(2) as pool:
            under_way = pool.submit(table.get_entries, None, [(1, "a", n) for n in range(200)])
            scans = pool.submit(_scans, gate, numbers, table, ordered)
            try:
                made = scans.result(_PATIENCE_S / 4)
            except TimeoutError:
                pytest.fail("a scan waits until a read of another thread is done")
            finally:
                gate.task_thread = None
                gate.opened.set()
            assert gate.waited == [], "a scan makes requests on the task thread"
            assert under_way.result(_PATIENCE_S) == [-n for n in range(200)]
        elements, entries, part, last = (paged(scan, 50) for scan in made)
        assert elements == [*range(200)]
        assert dict(entries) == {n: -n for n in range(200)}
        assert part == [(n, -n) for n in range(5, 9)]
        assert last[:2] == [(199, -199), (198, -198)]

    def test_reads_of_every_shape_may_run_on_several_threads_at_once(
        self, stored: tuple[_Gate, StateBackend, list[Any]]
    ) -> None:
        _, _, (numbers, table, ordered) = stored
        asked = [[(1, key, n) for n in range(part, 200, 7)] for part in range(7) for key in "abcd"]
        scans = [numbers.scan(None, 1, key) for key in "abcd"] * 4
        ranges = [ordered.scan_range(None, 1, key, KeyRange(5, 99)) for key in "abcd"] * 4
        with ThreadPoolExecutor(4) as pool:
            entries = pool.map(lambda cells: table.get_entries(None, cells), asked)
            elements = pool.map(lambda scan: paged(scan, 30), scans)
            parts = pool.map(lambda scan: paged(scan, 30), ranges)
            assert [*entries] == [[-n for _, _, n in cells] for cells in asked]
            assert [*elements] == [[*range(200)]] * 16
            assert [*parts] == [[(n, -n) for n in range(5, 99)]] * 16


def _scans(gate: _Gate, numbers: Any, table: Any, ordered: Any) -> list[Any]:
    gate.task_thread = threading.get_ident()
    return [
        numbers.scan(None, 1, "a"),
        table.scan(None, 1, "b"),
        ordered.scan_range(None, 1, "c", KeyRange(5, 9)),
        ordered.scan_range(None, 1, "d", KeyRange(descending=True)),
    ]
