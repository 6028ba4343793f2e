"""Reads and writes by columns, compared with those of single cells, and over restarts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.execution.declared_state import spec_of
from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.columns import Column
from forebay_state_api.contract.backend import Opening, StateBackend, Table, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, PointChanges
from forebay_state_api.contract.columns import CellColumns, EncodedKeys
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ColumnValueError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.backends.search import Search
from forebay_testing.backends.table_versions import GROUPS, NewVersions, OverVersions, Versions

VALUES: Final[Sequence[tuple[Any, list[Any]]]] = [
    (int, [0, -1, 127, 128, -33, 1 << 40, (1 << 63) - 1, -(1 << 63)]),
    (float, [0.0, -0.0, 1.5, float("inf"), 1e300, 5e-324]),
    (bool, [True, False, True]),
    (str, ["", "a", "ä" * 40, "b" * 300, "c" * 70_000, "\x00"]),
    (bytes, [b"", b"\xff" * 40, b"b" * 300]),
    (date, [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    (int | None, [1, None, 300]),
    (str | None, ["a", None, ""]),
    (tuple[int, str], [(1, "a"), (-1, "")]),
    (tuple[int | None, float, bool], [(None, 1.0, True), (1 << 60, -1.0, False)]),
    (tuple[int], [(1,), (2,)]),
    (list[int], [[1, 2], []]),
    (Decimal, [Decimal("1.50"), Decimal(-3)]),
    (datetime, [datetime(2024, 1, 1, tzinfo=UTC)]),
    (tuple[int, list[str]], [(1, ["a"]), (2, [])]),
    (None, [1, "a", (1, 2), [3]]),
]
"""Declared types, with values of them."""
_MORE: Final[Mapping[Any, list[Any]]] = {float: [float("nan"), float("-inf")]}
TTL: Final = StateTtlConfig(timedelta(days=1))


def group_of(key: str) -> int:
    """Return the key group of a key, by a rule that is easy to follow."""
    return sum(key.encode()) % GROUPS


class UnheldValueTests(OverVersions):
    """Columns refuse to read what they cannot hold, and lose nothing."""

    @pytest.mark.parametrize(("declared", "value"), [(int, 1 << 80), (str, "\ud800")])
    def test_a_value_that_columns_cannot_hold_is_named(
        self, versions: Versions, declared: Any, value: Any
    ) -> None:
        """Its key is in the message, other keys are read, and nothing is lost."""
        spec = _spec(declared)
        plain = declared(1)
        with_it = attrs.evolve(spec, columns=False)
        backend = versions.open()
        _write_cells(backend.table(with_it), {"key": value, "other": plain})
        versions.commit((KeyGroupRange(0, GROUPS - 1), backend, [spec]))
        backend = versions.open()
        table = backend.table(spec)
        with pytest.raises(ColumnValueError, match="'key'"):
            table.get_columns(spec, None, _keys(spec, ["other", "key"]))
        assert _read(table, spec, ["other"]) == [plain]
        _write(table, spec, {"other": ABSENT})
        versions.commit((KeyGroupRange(0, GROUPS - 1), backend, [spec]))
        backend = versions.open()
        assert _read_cells(backend.table(with_it), ["key", "other"]) == [value, ABSENT]
        backend.close()


class ColumnTests(OverVersions):
    """Columns of a point table hold what its single cells hold."""

    @pytest.fixture
    def empty(
        self,
        backend_class: type[StateBackend],
        all_options: Mapping[str, Any],
        storage: ObjectStorage,
    ) -> Any:
        """An opened version 0."""
        groups = KeyGroupRange(0, GROUPS - 1)
        backend = backend_class.open(Opening.outside_job(storage, "operator", groups, all_options))
        yield backend
        backend.close()

    @pytest.mark.parametrize("number", range(len(VALUES)))
    def test_values_of_each_type_come_back(self, empty: StateBackend, number: int) -> None:
        declared, values = VALUES[number]
        spec = _spec(declared)
        table = empty.table(spec)
        cells = {f"key {at}": value for at, value in enumerate(values)}
        _write(table, spec, cells)
        assert repr(_read(table, spec, [*cells])) == repr([*cells.values()])
        assert repr(_read_cells(table, [*cells])) == repr([*cells.values()])

    def test_columns_answer_in_the_order_of_the_keys(self, empty: StateBackend) -> None:
        spec = _spec(int)
        table = empty.table(spec)
        _write(table, spec, {"a": 1, "b": 2, "c": 3})
        assert _read(table, spec, ["c", "none", "a", "b"]) == [3, ABSENT, 1, 2]
        assert _read(table, spec, []) == []

    def test_a_cell_that_is_not_there_is_not_present(self, empty: StateBackend) -> None:
        spec = _spec(str)
        table = empty.table(spec)
        _write(table, spec, {"empty": ""})
        found = table.get_columns(spec, None, _keys(spec, ["no", "empty", "nor this"]))
        assert found.present is not None, "all cells are said to exist"
        assert found.present.tolist() == [False, True, False]
        assert [len(column) for column in found.columns] == [3]

    def test_columns_show_what_single_cells_wrote(self, empty: StateBackend) -> None:
        spec = _spec(tuple[int, str])
        table = empty.table(spec)
        _write_cells(table, {"a": (1, "x"), "b": (2, "y")})
        _write_cells(table, {"b": ABSENT, "c": (3, "z")})
        assert _read(table, spec, ["a", "b", "c"]) == [(1, "x"), ABSENT, (3, "z")]

    def test_single_cells_show_what_columns_wrote(self, empty: StateBackend) -> None:
        spec = _spec(tuple[int, str])
        table = empty.table(spec)
        _write(table, spec, {"a": (1, "x"), "b": (2, "y")})
        _write(table, spec, {"a": (5, "v"), "b": ABSENT})
        assert _read_cells(table, ["a", "b", "c"]) == [(5, "v"), ABSENT, ABSENT]

    def test_deleted_cells_are_gone_and_come_back(self, empty: StateBackend) -> None:
        spec = _spec(int)
        table = empty.table(spec)
        _write(table, spec, {"a": 1, "b": 2})
        _write(table, spec, {"a": ABSENT, "never": ABSENT, "b": 3})
        assert _read(table, spec, ["a", "never", "b"]) == [ABSENT, ABSENT, 3]
        _write(table, spec, {"a": 4})
        assert _read(table, spec, ["a"]) == [4]

    def test_keys_that_were_read_are_written(self, empty: StateBackend) -> None:
        """One object with the keys serves a read, a write of a part and another read."""
        spec, other = _spec(int), _spec(int, name="other")
        table, second = empty.table(spec), empty.table(other)
        keys = _keys(spec, ["a", "b", "c"])
        assert not table.get_columns(spec, None, keys).cells(spec.value).count(1)
        assert second.get_columns(other, None, keys).cells(spec.value) == [ABSENT] * 3
        part = keys.take(np.array([2, 0]))
        table.apply_columns(spec, None, part, _cells(spec, [3, 1]))
        second.apply_columns(other, None, keys, _cells(spec, [7, 8, 9]))
        assert table.get_columns(spec, None, keys).cells(spec.value) == [1, ABSENT, 3]
        assert second.get_columns(other, None, part).cells(spec.value) == [9, 7]

    def test_arrays_belong_to_the_reader(self, empty: StateBackend) -> None:
        spec = _spec(int)
        table = empty.table(spec)
        _write(table, spec, {"a": 1, "b": 2})
        values = table.get_columns(spec, None, _keys(spec, ["a", "b"])).columns[0].values
        assert isinstance(values, np.ndarray)
        if values.flags.writeable:
            values[:] = 99
        assert _read(table, spec, ["a", "b"]) == [1, 2]

    def test_namespaces_are_apart(self, empty: StateBackend) -> None:
        spec = _spec(int)
        table = empty.table(spec)
        _write(table, spec, {"a": 1})
        _write(table, spec, {"a": 2, "b": 3}, namespace="w")
        assert _read(table, spec, ["a", "b"]) == [1, ABSENT]
        assert _read(table, spec, ["a", "b"], namespace="w") == [2, 3]
        assert _read(table, spec, ["a"], namespace="elsewhere") == [ABSENT]
        assert _exported(table, spec) == {
            (None, "a"): 1,
            ("w", "a"): 2,
            ("w", "b"): 3,
        }

    def test_cells_with_a_time_to_live_have_their_times(self, empty: StateBackend) -> None:
        spec = _spec(tuple[int, str], ttl=TTL)
        table = empty.table(spec)
        cells = {"a": (10, (1, "x")), "b": (1 << 50, (2, "y"))}
        _write(table, spec, cells)
        assert _read(table, spec, ["b", "c", "a"]) == [cells["b"], ABSENT, cells["a"]]
        assert _read_cells(table, ["a", "b"]) == [*cells.values()]
        _write(table, spec, {"a": (11, (1, "x"))})
        assert _read(table, spec, ["a"]) == [(11, (1, "x"))]
        assert _exported(table, spec) == {
            (None, "a"): (11, (1, "x")),
            (None, "b"): cells["b"],
        }

    @pytest.mark.parametrize("page", [1, 3, 1000])
    def test_an_export_has_each_key_once_in_its_group(self, empty: StateBackend, page: int) -> None:
        spec = _spec(int)
        table = empty.table(spec)
        cells = {f"key {n}": n for n in range(20)}
        _write(table, spec, cells)
        _write(table, spec, {"key 7": ABSENT, "key 8": 80})
        left = {(None, k): 80 if k == "key 8" else n for k, n in cells.items() if k != "key 7"}
        assert _exported(table, spec, page) == left

    def test_a_batch_may_be_large(self, empty: StateBackend) -> None:
        spec = _spec(int)
        table = empty.table(spec)
        many = {f"key {n}": n * 1000 for n in range(70_000)}
        _write(table, spec, many)
        assert _read(table, spec, [*many]) == [*many.values()]

    def test_values_of_each_type_survive_a_commit(self, versions: Versions) -> None:
        """By columns, by single cells and in an export; with NaN, which equals nothing."""
        kinds = [(declared, [*values, *_MORE.get(declared, [])]) for declared, values in VALUES]
        specs = [_spec(declared, name=f"v{n}") for n, (declared, _) in enumerate(kinds)]
        cells = [{f"key {at}": one for at, one in enumerate(values)} for _, values in kinds]
        with versions.writing(*specs) as tables:
            for table, spec, written in zip(tables, specs, cells, strict=True):
                _write(table, spec, written)
        with versions.reading(*specs) as tables:
            for table, spec, written in zip(tables, specs, cells, strict=True):
                expected = repr([*written.values()])
                assert repr(_read(table, spec, [*written])) == expected
                assert repr(_read_cells(table, [*written])) == expected
                found = _exported(table, spec)
                assert repr([found[None, key] for key in written]) == expected

    def test_what_was_not_committed_is_not_there(self, versions: Versions) -> None:
        spec = _spec(int)
        backend = versions.open()
        _write(backend.table(spec), spec, {"a": 1})
        versions.commit((KeyGroupRange(0, GROUPS - 1), backend, [spec]))
        failed = versions.open()
        _write(failed.table(spec), spec, {"a": 2, "b": 2})
        failed.close()
        backend = versions.open()
        assert _read(backend.table(spec), spec, ["a", "b"]) == [1, ABSENT]
        backend.close()

    def test_programs_that_change_sides_keep_one_state(
        self, search: Search, new_versions: NewVersions
    ) -> None:
        """Columns or single cells in each version, one task or two, with deletes in between."""

        @search.seeded
        @search.limits(12)
        @given(st.integers(0, 1 << 30))
        def check(seed: int) -> None:
            drawn = random.Random(seed)
            ttl = drawn.choice([None, TTL])
            spec = _spec(tuple[int, str | None], ttl=ttl)
            versions = new_versions()
            model: dict[Any, Any] = {}
            for number in range(drawn.randint(2, 7)):
                by_columns = drawn.random() < 0.5
                own = attrs.evolve(spec, columns=by_columns)
                cut = drawn.choice([None, 1, 4])
                whole = KeyGroupRange(0, GROUPS - 1)
                ranges = (
                    [whole]
                    if cut is None
                    else [KeyGroupRange(0, cut - 1), KeyGroupRange(cut, GROUPS - 1)]
                )
                parts = [(groups, versions.open(groups), [own]) for groups in ranges]
                for groups, backend, _ in parts:
                    table = backend.table(own)
                    for namespace in (None, "w"):
                        cells = _drawn(drawn, groups, number, ttl is not None)
                        write = _write if by_columns else _write_by_cells
                        write(table, own, cells, namespace)
                        model |= {(namespace, key): cell for key, cell in cells.items()}
                versions.commit(*parts)
                model = {key: cell for key, cell in model.items() if cell is not ABSENT}
                reader = versions.open()
                found: dict[Any, Any] = {}
                for changes in reader.export(spec, 100):
                    for namespace, points in changes.points.items():
                        assert points.groups == [*map(group_of, points.keys)]
                        pairs = zip(points.keys, points.values, strict=True)
                        found |= {(namespace, key): value for key, value in pairs}
                reader.close()
                assert found == model

        check()


def _drawn(
    drawn: random.Random,
    groups: KeyGroupRange,
    number: int,
    ttl: bool,  # noqa: FBT001
) -> dict[str, Any]:
    keys = [f"key {n}" for n in range(40) if group_of(f"key {n}") in groups]
    cells: dict[str, Any] = {}
    for key in drawn.sample(keys, min(len(keys), drawn.randint(0, 9))):
        value = (drawn.choice([1, -5, 1 << 40]), drawn.choice([None, "", "text " * number]))
        cells[key] = (number, value) if ttl else value
        if drawn.random() < 0.3:
            cells[key] = ABSENT
    return cells


def _spec(declared: Any, *, ttl: StateTtlConfig | None = None, name: str = "v") -> TableSpec:
    descriptor = ValueStateDescriptor(name, declared, ttl=ttl)
    spec, _ = spec_of(descriptor, codec_for(str, what="the key"), "operator")
    return attrs.evolve(spec, columns=True)


def _keys(spec: TableSpec, keys: Sequence[str]) -> EncodedKeys:
    return EncodedKeys.of(spec.key, keys, [*map(group_of, keys)])


def _cells(spec: TableSpec, cells: Sequence[Any]) -> CellColumns:
    return CellColumns.of(spec.value, cells, [*cells], ttl=spec.ttl)


def _write(table: Table, spec: TableSpec, cells: Mapping[str, Any], namespace: Any = None) -> None:
    """Write by columns."""
    keys = [*cells]
    columns = _cells(spec, [*cells.values()])
    table.apply_columns(spec, namespace, _keys(spec, keys), columns)


def _read(table: Table, spec: TableSpec, keys: Sequence[str], namespace: Any = None) -> list[Any]:
    """Read by columns."""
    found = table.get_columns(spec, namespace, _keys(spec, keys))
    assert all(isinstance(column, Column) for column in found.columns)
    return found.cells(spec.value)


def _exported(table: Table, spec: TableSpec, page: int = 1000) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for namespace, keys, cells in table.export_columns(spec, page):
        decoded = keys.decoded(spec.key)
        assert keys.groups.tolist() == [*map(group_of, decoded)]
        for key, cell in zip(decoded, cells.cells(spec.value), strict=True):
            assert (namespace, key) not in found, "a key occurs twice"
            found[namespace, key] = cell
    return found


def _write_by_cells(
    table: Table, spec: TableSpec, cells: Mapping[str, Any], namespace: Any = None
) -> None:
    del spec  # as `_write`
    _write_cells(table, cells, namespace)


def _write_cells(table: Table, cells: Mapping[str, Any], namespace: Any = None) -> None:
    """Write as the engine does: into the space where it is complete, and by `Table.apply`."""
    space = table.space(namespace)
    for key, cell in cells.items():
        if space.complete and cell is not ABSENT:
            space.cells[key] = cell
        else:
            space.cells.pop(key, None)
    points = PointChanges([*cells], [*map(group_of, cells)], [*cells.values()])
    table.apply(Changes(points={namespace: points}))


def _read_cells(table: Table, keys: Sequence[str], namespace: Any = None) -> list[Any]:
    return table.get_many(namespace, [(group_of(key), key) for key in keys])
