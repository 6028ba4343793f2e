"""Results of commits: what they write, report and keep, on tables over several versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
import pytest

from forebay_state_api.contract.backend import Capability, StateBackend, TableSpec
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.contract.file_names import data_version
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import StorageError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.backends.subject import SECOND, skip_unless_claimed
from forebay_testing.backends.table_contents import (
    exported,
    read_contents,
    spread,
    write_contents,
    write_list,
    write_points,
)
from forebay_testing.backends.table_versions import OverVersions, Versions, spec_for
from forebay_testing.storage import Fault, FaultyStorage

POINTS: Final = spec_for(ValueStateDescriptor("v", int))
LISTS: Final = spec_for(ListStateDescriptor("l", str))
MAPS: Final = spec_for(MapStateDescriptor("m", str, int))
_ALL: Final = (POINTS, LISTS, MAPS)
_KEYS: Final = [f"key {n}" for n in range(24)]
_HALVES: Final = (KeyGroupRange(0, 3), KeyGroupRange(4, 7))


def _written(number: int) -> list[dict[str, Any]]:
    """Return the contents of some keys, for each of the three states."""
    keys = _KEYS[number::5]
    return [
        dict.fromkeys(keys, number),
        {key: [f"{number}", "x"] for key in keys},
        {key: {"a": number, f"{number}": 1} for key in keys},
    ]


def _write(versions: Versions, contents: Sequence[Mapping[str, Any]]) -> None:
    with versions.writing(*_ALL) as tables:
        for table, spec, content in zip(tables, _ALL, contents, strict=True):
            write_contents(table, spec, content, group_of=spread)


def _everything(versions: Versions) -> list[Any]:
    """Return what another process exports of each state."""
    backend = versions.open()
    found = [exported(backend, spec) for spec in _ALL]
    backend.close()
    return found


def _names(storage: ObjectStorage) -> dict[str, int]:
    return {info.name: info.size for info in storage.list()}


class ReportTests(OverVersions):
    """The sizes and counts of commits are those of what is stored, after several commits too."""

    def test_counts_are_those_of_the_stored_cells(self, versions: Versions) -> None:
        """Of all states together, after overwrites and deletes; also what is new and removed."""
        stored, added = 0, 0
        for number in range(12):
            contents = _written(number % 5)
            if number >= 5:
                keys = _KEYS[number % 5 :: 10]
                contents = [dict.fromkeys(keys, ABSENT) for _ in _ALL]
            _write(versions, contents)
            (state,) = versions.committed
            before, stored = stored, sum(map(len, _everything(versions)))
            assert state.keys in (None, stored), f"cells after {number + 1} commits"
            if state.keys_new is not None and state.keys_removed is not None:
                added = state.keys_new - state.keys_removed
                assert added == stored - before, "new cells less removed ones"
                assert min(state.keys_new, state.keys_removed) >= 0
                most = sum(map(len, contents))
                assert max(state.keys_new, state.keys_removed) <= most

    def test_sizes_are_those_of_the_files(
        self, versions: Versions, stored_cells: StoredCells
    ) -> None:
        """Of all files of a version, those of older commits among them."""
        before: dict[str, int] = {}
        for number in range(12):
            _write(versions, _written(number % 5))
            (state,) = versions.committed
            objects = _names(versions.storage)
            for file in state.files:
                size = objects[file.name] if file.data is None else len(file.data)
                assert file.size == size, f"the size of {file.name}"
            if stored_cells.in_files:
                assert state.bytes_total == sum(file.size for file in state.files)
                new = sum(size for name, size in objects.items() if name not in before)
                assert state.bytes_written >= new, "bytes of new objects"
                assert state.bytes_written <= new + _held(state), "bytes that were not written"
            before = objects


def _held(state: CommittedState) -> int:
    """Return the bytes of files that a manifest holds."""
    return sum(len(file.data) for file in state.files if file.data is not None)


class UnchangedTests(OverVersions):
    """A commit without changes keeps files, their ranges, `meta` and everything else."""

    @pytest.mark.parametrize("asked", [0, 1, 3], ids=["no table", "a table", "every table"])
    def test_meta_survives_a_commit_without_changes(self, versions: Versions, asked: int) -> None:
        """Several in a row, in which none, one or all of the tables are made and read."""
        for number in range(9):
            _write(versions, _written(number % 5))
        (before,), expected = versions.committed, _everything(versions)
        for number in range(3):
            with versions.writing(*_ALL[:asked]) as tables:
                for table, spec in zip(tables, _ALL, strict=False):
                    read_contents(table, spec, _KEYS, group_of=spread)
            (after,) = versions.committed
            assert _everything(versions) == expected, (
                f"after {number + 1} commits without changes: meta was {before.meta}, "
                f"and is {after.meta}"
            )
        _write(versions, _written(0))
        (points, *_) = _everything(versions)
        assert points == expected[0] | {(None, k): (spread(k), 0) for k in _KEYS[::5]}

    @pytest.mark.parametrize("rewrites", [0, 1], ids=["the first half", "the second half"])
    def test_a_commit_without_changes_keeps_the_ranges_of_files(
        self, versions: Versions, rewrites: int
    ) -> None:
        """Two subtasks; one rewrites all it has. Then one subtask, which only reads."""
        held = dict.fromkeys(_KEYS, 1)
        with versions.writing(POINTS) as (table,):
            write_points(table, held, group_of=spread)
        parts = [(half, versions.open(half), [POINTS]) for half in _HALVES]
        mine = [key for key in _KEYS if spread(key) in _HALVES[rewrites]]
        table = parts[rewrites][1].table(POINTS)
        write_points(table, dict.fromkeys(mine[1:], ABSENT), group_of=spread)
        write_points(table, {mine[0]: 2}, group_of=spread)
        versions.commit(*parts)
        expected = {
            (None, key): (spread(key), 2 if key == mine[0] else 1)
            for key in _KEYS
            if key not in mine[1:]
        }
        for _ in range(2):
            backend = versions.open()
            found = exported(backend, POINTS)
            versions.commit((versions.whole, backend, [POINTS]))
            assert found == expected, "what a subtask has deleted is back"

    def test_a_state_that_is_not_asked_for_survives_many_commits(self, versions: Versions) -> None:
        _write(versions, _written(0))
        _, *expected = _everything(versions)
        for number in range(25):
            with versions.writing(POINTS) as (table,):
                write_points(table, {f"other {number % 3}": number}, group_of=spread)
        _, *found = _everything(versions)
        assert found == expected


class ObjectTests(OverVersions):
    """The objects that a backend reads and writes besides what a commit returns."""

    def test_opening_and_reading_write_nothing(self, versions: Versions) -> None:
        with versions.reading(*_ALL):
            assert _names(versions.storage) == {}
        for number in range(9):
            _write(versions, _written(number % 5))
        before = _names(versions.storage)
        with versions.reading(*_ALL) as tables:
            for table, spec in zip(tables, _ALL, strict=True):
                read_contents(table, spec, _KEYS, group_of=spread)
            assert _names(versions.storage) == before
        assert _names(versions.storage) == before, "closing has written or deleted"

    def test_a_commit_writes_below_data_for_its_version(self, versions: Versions) -> None:
        """The janitor deletes nothing elsewhere, and finds the version in the name."""
        seen: set[str] = set()
        for number in range(9):
            _write(versions, _written(number % 5))
            new = set(_names(versions.storage)) - seen
            assert {data_version(name) for name in new} <= {versions.version}, sorted(new)
            seen |= new

    def test_an_attempt_without_a_manifest_deletes_nothing(self, versions: Versions) -> None:
        """The manifest may be there although its writer saw an error."""
        _write(versions, _written(0))
        backend = versions.open()
        write_contents(backend.table(POINTS), POINTS, {"k": 1}, group_of=spread)
        state = backend.commit(versions.version + 1)
        before = _names(versions.storage)
        backend.close()
        backend.close()
        assert _names(versions.storage) == before
        assert {file.name for file in state.files if file.data is None} <= {*before}

    def test_a_read_that_fails_is_no_damage_and_may_be_repeated(self, versions: Versions) -> None:
        for number in range(9):
            _write(versions, _written(number % 5))
        expected = _everything(versions)
        for position in range(4):
            faulty = FaultyStorage(versions.storage)
            faulty.faults.append(Fault(operation="get*", skip=position))
            _read_with(versions, faulty)
            assert _everything(versions) == expected

    def test_a_commit_that_fails_closes_without_an_error(self, versions: Versions) -> None:
        _write(versions, _written(0))
        expected = _everything(versions)
        faulty = FaultyStorage(versions.storage, Fault(operation="put*", count=None))
        backend = versions.open(storage=faulty)
        with suppress(StorageError):  # of a table that writes when its buffer is full, too
            write_contents(backend.table(POINTS), POINTS, {"k": 1}, group_of=spread)
            backend.commit(versions.version + 1)
        backend.close()
        backend.close()
        assert _everything(versions) == expected

    def test_a_fork_writes_nothing_into_its_source(self, versions: Versions) -> None:
        """Files of the source have names below ``from/``, here as in the engine's storage."""
        for number in range(9):
            _write(versions, _written(number % 5))
        expected, source = _everything(versions), _names(versions.storage)
        shared = versions.storage
        versions.storage = _Fork(shared.child("fork"), shared)
        versions.parents = [
            attrs.evolve(one, files=[_of_source(file) for file in one.files])
            for one in versions.parents
        ]
        versions.version = 0
        assert _everything(versions) == expected
        for number in range(9):
            _write(versions, [{f"new {number}": number}, {}, {}])
        now = {n: size for n, size in _names(shared).items() if not n.startswith("fork/")}
        assert now == source, "a fork has written into the folder of its source"
        found = _everything(versions)
        news = {(None, f"new {n}"): (spread(f"new {n}"), n) for n in range(9)}
        assert found == [expected[0] | news, *expected[1:]]

    def test_a_sweep_returns_how_much_it_has_removed(
        self, versions: Versions, backend_class: type[StateBackend]
    ) -> None:
        skip_unless_claimed(backend_class, Capability.CLEANUP_INCREMENTALLY)
        spec = _swept()
        with versions.writing(spec) as (table,):
            for number in range(10):
                write_list(table, f"k{number}", [(number, "a"), (number, "b")])
        backend = versions.open()
        table = backend.table(spec)
        removed = table.sweep(100, until_us=3)
        versions.commit((versions.whole, backend, [spec]))
        assert removed == 8, "two elements of four keys"
        backend = versions.open()
        left = exported(backend, spec)
        backend.close()
        assert {key for _, key in left} == {f"k{n}" for n in range(4, 10)}


def _swept() -> TableSpec:
    return spec_for(ListStateDescriptor("l", str, ttl=StateTtlConfig(SECOND)))


def _read_with(versions: Versions, storage: ObjectStorage) -> None:
    """Read on storage that fails: a failure is the storage's, never taken for damage."""
    with suppress(StorageError):
        backend = versions.open(storage=storage)
        try:
            for spec in _ALL:
                exported(backend, spec)
        finally:
            backend.close()


def _of_source(file: StateFile) -> StateFile:
    return file if file.data is not None else attrs.evolve(file, name=f"from/{file.name}")


class _Fork(FaultyStorage):
    """A folder through which files of its source can be read, but not written."""

    def __init__(self, own: ObjectStorage, source: ObjectStorage) -> None:
        super().__init__(own)
        self._source = source

    def get(self, name: str) -> bytes:
        if name.startswith("from/"):
            return self._source.get(name.removeprefix("from/"))
        return super().get(name)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if name.startswith("from/"):
            return self._source.get_ranges(name.removeprefix("from/"), ranges)
        return super().get_ranges(name, ranges)
