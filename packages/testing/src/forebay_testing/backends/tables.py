"""The contract of `forebay_state_api.contract.backend`, tested without the engine."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forebay_engine.execution.declared_state import spec_of
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Capability, Opening, StateBackend, Table
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.plugins.checks import problem_of
from forebay_state_api.plugins.kinds import BACKENDS
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.backends.table_contents import paged, write_list, write_map, write_points

EVERYTHING = KeyGroupRange(0, 7)
_DESCRIPTORS = Path("/dev/fd")
"""The directory that lists the open descriptors of this process."""


class TableTests(BackendSubject):
    """The guarantees of tables to the engine."""

    @pytest.fixture
    def empty(
        self,
        backend_class: type[StateBackend],
        all_options: Mapping[str, Any],
        storage: ObjectStorage,
    ) -> Any:
        """An opened version 0."""
        opening = Opening.outside_job(storage, "operator", EVERYTHING, all_options)
        backend = backend_class.open(opening)
        yield backend
        backend.close()

    def test_the_class_says_what_it_is(self, backend_class: type[StateBackend]) -> None:
        problem = problem_of(BACKENDS, backend_class)
        assert not problem, f"as a plugin, {backend_class.__name__} would be broken: it {problem}"
        assert isinstance(backend_class.capabilities, Capability)
        assert all(name == setting.name for name, setting in backend_class.options.items())

    def test_a_space_is_the_same_object_each_time(self, empty: StateBackend) -> None:
        spec, _ = spec_of(ValueStateDescriptor("v", int), codec_for(str, what="key"), "operator")
        table = empty.table(spec)
        assert table.space(None) is table.space(None)
        assert table.space("w") is table.space("w") is not table.space(None)
        resident = Capability.RESIDENT in empty.capabilities
        assert table.space(None).complete is resident
        assert empty.table(spec) is table

    def test_point_reads_answer_in_order(self, empty: StateBackend) -> None:
        table = _table(empty, ValueStateDescriptor("v", int))
        write_points(table, {"a": 1, "b": 2})
        asked = [(1, "b"), (1, "none"), (1, "a"), (1, "b")]
        assert table.get_many(None, asked) == [2, ABSENT, 1, 2]
        assert table.get_many("elsewhere", asked) == [ABSENT] * 4
        write_points(table, {"a": 3, "b": ABSENT})
        assert table.get_many(None, asked) == [ABSENT, ABSENT, 3, ABSENT]
        assert table.get_many(None, []) == []

    def test_entry_reads_answer_in_order(self, empty: StateBackend) -> None:
        table = _table(empty, MapStateDescriptor("m", str, int))
        write_map(table, "k", {"a": 1, "b": None})
        asked = [(1, "k", "b"), (1, "k", "c"), (1, "other", "a"), (1, "k", "a")]
        assert table.get_entries(None, asked) == [None, ABSENT, ABSENT, 1]
        write_map(table, "k", {"c": 3, "a": ABSENT})
        assert table.get_entries(None, asked) == [None, 3, ABSENT, ABSENT]
        write_map(table, "k", {"a": 5}, cleared=True)
        assert table.get_entries(None, asked) == [ABSENT, ABSENT, ABSENT, 5]

    @pytest.mark.parametrize("page_size", [1, 2, 3, 100])
    def test_scans_come_in_pages_of_at_most_the_size(
        self, empty: StateBackend, page_size: int
    ) -> None:
        elements, entries = list(range(7)), {str(n): n for n in range(7)}
        numbers = _table(empty, ListStateDescriptor("l", int))
        write_list(numbers, "k", elements)
        table = _table(empty, MapStateDescriptor("m", str, int))
        write_map(table, "k", entries)
        pages = list(numbers.scan(None, 1, "k").pages(page_size))
        assert list(itertools.chain(*pages)) == elements
        assert max(map(len, pages)) <= page_size
        pages = list(table.scan(None, 1, "k").pages(page_size))
        assert dict(itertools.chain(*pages)) == entries
        assert max(map(len, pages)) <= page_size

    @pytest.mark.parametrize("page_size", [1, 2, 100])
    def test_range_scans_come_in_order_and_in_pages(
        self, empty: StateBackend, page_size: int
    ) -> None:
        table = _table(empty, SortedMapStateDescriptor("s", int, int))
        write_map(table, "k", {n: n for n in (7, 3, 11, 1, 9, 5)})
        write_map(table, "k", {4: 4, 5: -5, 9: ABSENT, 300: 300, -300: -300})
        scan = table.scan_range(None, 1, "k", KeyRange(3, 11))
        assert paged(scan, page_size) == [(3, 3), (4, 4), (5, -5), (7, 7)]
        down = KeyRange(3, 11, descending=True)
        assert paged(table.scan_range(None, 1, "k", down), page_size) == [
            *[(7, 7), (5, -5), (4, 4), (3, 3)]
        ]
        every = [-300, 1, 3, 4, 5, 7, 11, 300]
        whole = table.scan_range(None, 1, "k", KeyRange())
        assert [key for key, _ in paged(whole, page_size)] == every
        last = table.scan_range(None, 1, "k", KeyRange(descending=True))
        assert [key for key, _ in paged(last, page_size)] == every[::-1]
        assert paged(table.scan_range("w", 1, "k", KeyRange()), page_size) == []
        write_map(table, "k", {6: 6}, cleared=True)
        assert paged(scan, page_size) == [(3, 3), (4, 4), (5, -5), (7, 7)]
        assert paged(table.scan_range(None, 1, "k", KeyRange(3)), page_size) == [(6, 6)]

    def test_nothing_is_an_empty_scan(self, empty: StateBackend) -> None:
        table = _table(empty, ListStateDescriptor("l", int))
        assert list(itertools.chain(*table.scan(None, 1, "k").pages(10))) == []
        write_list(table, "k", [1])
        write_list(table, "k", [], replaced=True)
        assert list(itertools.chain(*table.scan(None, 1, "k").pages(10))) == []

    def test_the_view_of_a_scan_does_not_move(self, empty: StateBackend) -> None:
        table = _table(empty, ListStateDescriptor("l", int))
        write_list(table, "k", [1, 2, 3])
        scan = table.scan(None, 1, "k")
        pages = scan.pages(2)
        first = next(pages)
        write_list(table, "k", [4])
        assert [*first, *itertools.chain(*pages)] == [1, 2, 3]
        write_list(table, "k", [9], replaced=True)
        assert list(itertools.chain(*scan.pages(2))) == [1, 2, 3], "a second pass starts over"
        entries = _table(empty, MapStateDescriptor("m", str, int))
        write_map(entries, "k", {"a": 1, "b": 2})
        view = entries.scan(None, 1, "k")
        write_map(entries, "k", {"a": 5, "b": ABSENT, "c": 7})
        assert dict(itertools.chain(*view.pages(1))) == {"a": 1, "b": 2}

    def test_reads_may_run_on_several_threads_at_once(self, empty: StateBackend) -> None:
        table = _table(empty, ValueStateDescriptor("v", int))
        write_points(table, {str(n): n for n in range(200)})
        asked = [[(1, str(n)) for n in range(start, 200, 7)] for start in range(7)] * 5
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda keys: table.get_many(None, keys), asked))
        assert answers == [[int(key) for _, key in keys] for keys in asked]

    def test_a_batch_may_be_larger_than_what_a_store_takes_at_once(
        self, empty: StateBackend
    ) -> None:
        """More than the 65,535 parameters of a statement that PostgreSQL takes, and SQLite."""
        many = {f"key {n}": n for n in range(70_000)}
        points = _table(empty, ValueStateDescriptor("v", int))
        write_points(points, many)
        assert points.get_many(None, [(1, key) for key in many]) == list(many.values())
        entries = _table(empty, MapStateDescriptor("m", str, int))
        write_map(entries, "k", many)
        asked = [(1, "k", entry) for entry in many]
        assert entries.get_entries(None, asked) == list(many.values())

    def test_closing_twice_is_safe(self, empty: StateBackend) -> None:
        _table(empty, ValueStateDescriptor("v", int))
        empty.close()
        empty.close()


class CommitTests(BackendSubject):
    """The sizes and files of a commit."""

    def test_when_nothing_changed_no_file_is_written(self, new_job: NewJob) -> None:
        job = new_job(ValueStateDescriptor("v", int))
        job.do("k", ("v.update", 1))
        before = {info.name for info in job.storage.list("data")}
        job.do("k", ("v.value",))
        assert {info.name for info in job.storage.list("data")} == before
        assert job.reports[0].bytes_written == 0
        job.restart()
        assert job.do("k", ("v.value",)) == [1]

    def test_objects_are_neither_changed_nor_deleted(self, new_job: NewJob) -> None:
        job = new_job(ValueStateDescriptor("v", int), ListStateDescriptor("l", int))
        seen: dict[str, bytes] = {}
        for number in range(6):
            job.do("k", ("v.update", number), ("l.add", number))
            job.do("other", ("l.update", [number]))
            now = {info.name: job.storage.get(info.name) for info in job.storage.list("data")}
            assert seen.items() <= now.items()
            seen = now

    def test_what_a_commit_writes_does_not_add_up_over_the_commits(self, new_job: NewJob) -> None:
        """Sixty values; each batch changes a different one."""
        job = new_job(ValueStateDescriptor("v", str))
        keys = [f"key {n}" for n in range(60)]
        job.scripts([(key, [("v.update", "old" * 40)]) for key in keys])
        job.restart()
        written = []
        for key in keys[:40]:
            job.do(key, ("v.update", "new" * 40))
            written.append(job.reports[0].bytes_written)
        limit = "the least of the last 8 commits is at most twice the least of the first 8"
        assert min(written[-8:]) <= 2 * min(written[:8]), f"{limit}: {written}"

    def test_with_a_budget_of_nothing_nothing_is_kept_between_batches(
        self, new_job: NewJob, stored_cells: StoredCells
    ) -> None:
        job = new_job(ValueStateDescriptor("v", bytes), cache_bytes=0)
        job.do("k", ("v.update", random.Random(1).randbytes(50_000)))
        for name in stored_cells.pieces(job.storage):
            stored_cells.delete(job.storage, name)
        with pytest.raises(CorruptStateError):  # only the process's own copy has the value
            job.do("k", ("v.value",))

    def test_batches_leave_nothing_open(self, new_job: NewJob) -> None:
        """Files, sockets and threads, of committed and of failed batches."""
        job = new_job(ValueStateDescriptor("v", int), parallelism=2)
        opened = []
        for number in range(30):
            job.scripts([(key, [("v.update", number)]) for key in "abcd"], crash=number % 3 == 2)
            opened.append((sum(1 for _ in _DESCRIPTORS.iterdir()), threading.active_count()))
        (files, threads), (later_files, later_threads) = opened[4], opened[-1]
        limit = "fewer than 10 more are tolerated after 25 batches"
        assert later_files < files + 10, f"files are open that nobody uses; {limit}"
        assert later_threads < threads + 10, f"threads run that nobody waits for; {limit}"

    def test_the_report_counts_cells_and_bytes(
        self, new_job: NewJob, stored_cells: StoredCells
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int), ListStateDescriptor("l", int))
        job.scripts([(key, [("v.update", 1), ("l.add", 1)]) for key in "abc"])
        report = job.reports[0]
        assert report.keys in (None, 6)
        assert 0 < report.bytes_written <= report.bytes_total
        # The outputs of a compaction belong to the version that installs them.
        sizes = [i.size for i in job.storage.list("data") if "/compaction-" not in i.name]
        if stored_cells.in_files:
            assert report.bytes_total == sum(sizes)

    def test_reopening_in_another_process_gives_exactly_that_version(
        self, new_job: NewJob, forget: Callable[[], None]
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int), MapStateDescriptor("m", str, int))
        for number in range(5):
            job.scripts(
                [
                    (key, [("v.update", number), ("m.put", str(number), number)])
                    for key in "abcdef"[: number + 2]
                ]
            )
        forget()
        read = [("v.value",), ("m.items",)]
        got = job.scripts([(key, read) for key in "af"])
        assert got[0] == [4, [(str(n), n) for n in range(5)]]
        assert got[1] == [4, [("4", 4)]]


def _table(backend: StateBackend, descriptor: StateDescriptor) -> Table:
    spec, _ = spec_of(descriptor, codec_for(str, what="the key"), "operator")
    return backend.table(spec)
