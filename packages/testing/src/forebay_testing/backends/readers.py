"""Readers from outside (docs/reference/state-tables.md): look-ups, scans, and differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from forebay_engine.stored.restore import default_options
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.format.epochs import RunVersion
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading import difference as difference_module
from forebay_state_processor.reading.bounded_passes import Pass, held_in_passes
from forebay_state_processor.reading.difference import HELD_BYTES, Difference
from forebay_state_processor.reading.history_positions import Position
from forebay_state_processor.reading.rows import cells_of
from forebay_state_processor.reading.snapshot import Snapshot, snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.backends.ttl import TTL, WRITES, states_with

if TYPE_CHECKING:
    from forebay_engine.versions import OperatorStorage
    from forebay_state_api.contract.changes import Changes
    from forebay_testing.job import KeyedJob

KEYS: Final = [f"key {n}" for n in range(12)]
HELD: Final[dict[str, Any]] = {
    "v": 1,
    "l": [1, 2],
    "m": {"a": 1, "b": 2},
    "r": 1,
    "a": (1, 1.0),
    "s": {1: 1, 2: 2},
}
"""The content of the six states after `WRITES`, as readers show it."""
MORE: Final[list[tuple[Any, ...]]] = [
    ("v.update", 2),
    ("l.add", 3),
    ("m.put", "b", 3),
    ("m.remove", "a"),
    ("r.clear",),
    ("s.put", 3, 3),
]

Read = Callable[["KeyedJob", int], Snapshot]
"""Opens a version of a job's state."""


def _cells(exported: Iterable[Changes]) -> dict[Any, Any]:
    """Return the content of each key and namespace; each is there once."""
    cells = [cell for changes in exported for cell in cells_of(changes)]
    found = {(cell.key, cell.namespace): (cell.group, cell.content) for cell in cells}
    assert len(found) == len(cells)
    return found


class ReaderTests(BackendSubject):
    """Twelve keys with a state of each kind, read without the job's classes."""

    @pytest.fixture
    def read(self, backend_class: type[StateBackend], backend_options: Mapping[str, Any]) -> Any:
        """Open a version of a job's state; it is closed at the end of the test."""
        options = {**default_options(backend_class), **backend_options}
        with ExitStack() as opened:

            def open_(job: KeyedJob, version: int) -> Snapshot:
                source = OperatorSource(
                    storage=cast("OperatorStorage", job.storage),
                    query="query",
                    uid=job.uid,
                    settings=reader_settings({}),
                )
                at = RunVersion(version=version, run_key=job.run_key)
                snapshot = snapshot_of(
                    source, ShownVersion(at, final=False), backend=backend_class, options=options
                )
                return opened.enter_context(snapshot)

            yield open_

    @pytest.fixture(params=[None, StateTtlConfig(TTL)], ids=["plain", "ttl"])
    def job(self, new_job: NewJob, request: pytest.FixtureRequest) -> KeyedJob:
        """A job of three subtasks with two versions: content, and changes to half of it."""
        job = new_job(*states_with(request.param), parallelism=3, key_type=str)
        job.scripts([*((key, WRITES) for key in KEYS), ("far", [("namespace", "n"), *WRITES])])
        job.scripts([(key, MORE) for key in KEYS[::2]])
        return job

    def test_look_ups_show_the_version_that_was_opened(self, job: KeyedJob, read: Read) -> None:
        snapshot = read(job, 1)
        for name, held in HELD.items():
            assert snapshot.get_many(name, [*KEYS, "none"])[:-1] == [held] * len(KEYS)
            assert snapshot.get(name, "far", "n") == held
        newer = read(job, 2)
        assert newer.get_many("l", KEYS[:2]) == [[1, 2, 3], [1, 2]]
        assert newer.get_many("m", KEYS[:2]) == [{"b": 3}, {"a": 1, "b": 2}]
        assert newer.get_many("r", KEYS[:2]) == [None, 1]

    def test_a_scan_yields_what_look_ups_find(self, job: KeyedJob, read: Read) -> None:
        snapshot = read(job, 2)
        for name in HELD:
            rows = list(snapshot.scan(name))
            assert len(rows) == len({(row.key, row.namespace) for row in rows})
            for row in rows:
                assert snapshot.get(name, row.key, row.namespace) == row.value
            assert {row.key for row in rows} >= {*KEYS[1::2], "far"}

    def test_each_key_group_is_scanned_alone(self, job: KeyedJob, read: Read) -> None:
        snapshot = read(job, 1)
        for name in HELD:
            parts = [
                list(snapshot.scan(name, key_groups=KeyGroupRange(group, group)))
                for group in snapshot.key_groups
            ]
            assert sorted(row.key for rows in parts for row in rows) == sorted([*KEYS, "far"])
            assert all(row.key_group == n for n, rows in enumerate(parts) for row in rows)

    def test_an_export_needs_no_table(self, job: KeyedJob, read: Read) -> None:
        snapshot = read(job, 2)
        for name in HELD:
            spec = snapshot.state(name).spec
            for part in snapshot.opened.parts(snapshot.key_groups):
                with snapshot.opened.scanning(part) as backend:
                    found = _cells(backend.export(spec, 2))
                    assert found == _cells(backend.table(spec).export(2))
                    assert found == _cells(backend.export(spec, 1_000))  # the table is there, too

    def test_stored_bytes_are_those_of_the_states(
        self, backend_class: type[StateBackend], job: KeyedJob, read: Read
    ) -> None:
        sizes = [read(job, version).state_bytes() for version in (1, 2)]
        if None in sizes:
            pytest.skip(f"{backend_class.__name__} does not report the size of each state")
        before, after = cast("list[dict[str, int]]", sizes)
        assert before.keys() == after.keys() == HELD.keys()
        assert all(before.values())
        assert sum(before.values()) <= read(job, 1).bytes
        job.scripts([(key, [("v.update", 3)]) for key in [f"more {n}" for n in range(500)]])
        grown = cast("dict[str, int]", read(job, 3).state_bytes())
        assert grown["v"] > 2 * after["v"]
        assert grown["m"] <= 2 * after["m"]

    # Two or three rows are held at once; with none, each needs sixteen passes to be alone.
    @pytest.mark.parametrize("held_bytes", [HELD_BYTES, 500], ids=["at_once", "in_passes"])
    def test_a_difference_has_what_changed_and_nothing_else(
        self, job: KeyedJob, read: Read, held_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passes: list[Pass] = []

        def noted(*arguments: Any) -> Iterator[tuple[Pass, Any]]:
            for chosen, held in held_in_passes(*arguments):
                passes.append(chosen)
                yield chosen, held

        monkeypatch.setattr(difference_module, "held_in_passes", noted)
        start, end = (Position(version, job.run_key) for version in (1, 2))
        difference = Difference(start, end, read(job, 1), read(job, 2), held_bytes=held_bytes)
        changed = {
            name: {(row.key, row.operation.value, row.user_key) for row in difference.rows(name)}
            for name in HELD
        }
        halves = KEYS[::2]
        assert changed == {
            "v": {(key, "put", None) for key in halves},
            "l": {(key, "appended", None) for key in halves},
            "m": {(key, *row) for key in halves for row in (("put", "b"), ("removed", "a"))},
            "r": {(key, "removed", None) for key in halves},
            "a": set(),
            "s": {(key, "put", 3) for key in halves},
        }
        once = len(HELD) * job.parallelism
        assert len(passes) == once if held_bytes == HELD_BYTES else len(passes) > once

    def test_a_reader_writes_nothing_but_its_pin(self, job: KeyedJob, read: Read) -> None:
        before = {info.name for info in job.storage.list()}
        snapshot = read(job, 1)
        snapshot.get_many("v", KEYS)
        written = {info.name for info in job.storage.list()} - before
        assert [name.split("/")[0] for name in written] == ["pins"]
        snapshot.close()
        assert {info.name for info in job.storage.list()} == before
