"""Numbers and sizes beyond the usual limits of stores, read after a commit by another process.

They run on tables, without the engine: hundreds of commits take a second.
"""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.keys import key_group_range_of
from forebay_testing.backends.table_contents import (
    difference,
    exported,
    paged,
    read_contents,
    spread,
    write_contents,
    write_list,
    write_map,
    write_points,
)
from forebay_testing.backends.table_versions import NewVersions, OverVersions, Versions, spec_for

MANY: Final = 5_000
ROWS: Final = 1_500
COMMITS: Final = 300
"""More than a byte counts, and enough for every backend to fold and to write snapshots."""
_CHECKED: Final = (12, 130, 258)
"""The numbers of commits after which a list is also read on the way."""
_LONG: Final = 3_000
"""The characters of long keys, which differ in the last one only."""


class StoredLimitTests(OverVersions):
    """Numbers and sizes beyond the limits of stores, in what another process has committed."""

    def test_many_stored_values_are_read_in_one_batch(self, versions: Versions) -> None:
        """In any order, with keys that do not exist and keys that are asked for twice."""
        spec = spec_for(ValueStateDescriptor("v", int))
        values = {f"key {n}": n for n in range(MANY)}
        with versions.writing(spec) as (table,):
            write_points(table, values, group_of=spread)
        asked = [*values, *(f"none {n}" for n in range(100)), "key 7", "key 7"]
        random.Random(1).shuffle(asked)
        with versions.reading(spec) as (table,):
            found = read_contents(table, spec, asked, group_of=spread)
        assert not difference(found, [values.get(key, ABSENT) for key in asked])

    def test_many_stored_entries_are_read_in_one_batch(self, versions: Versions) -> None:
        spec = spec_for(MapStateDescriptor("m", str, int))
        entries = {f"entry {n}": n for n in range(MANY)}
        with versions.writing(spec) as (table,):
            write_map(table, "k", entries)
        asked = [*entries, *(f"none {n}" for n in range(100))]
        random.Random(1).shuffle(asked)
        with versions.reading(spec) as (table,):
            found = table.get_entries(None, [(1, "k", entry) for entry in asked])
        assert not difference(found, [entries.get(entry, ABSENT) for entry in asked])

    @pytest.mark.parametrize("page_size", [128, 10_000])
    def test_a_scan_has_every_stored_row(self, versions: Versions, page_size: int) -> None:
        lists = spec_for(ListStateDescriptor("l", int))
        maps = spec_for(MapStateDescriptor("m", int, int))
        rows = list(range(ROWS))
        with versions.writing(lists, maps) as (table, entries):
            write_list(table, "k", rows[:1000])
            write_list(table, "k", rows[1000:])
            write_map(entries, "k", {n: -n for n in rows})
        with versions.reading(lists, maps) as (table, entries):
            assert not difference(paged(table.scan(None, 1, "k"), page_size), rows)
            found = sorted(paged(entries.scan(None, 1, "k"), page_size))
        assert not difference(found, [(n, -n) for n in rows])

    @pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
    def test_a_range_has_every_stored_row(self, versions: Versions, *, descending: bool) -> None:
        spec = spec_for(SortedMapStateDescriptor("s", int, int))
        with versions.writing(spec) as (table,):
            write_map(table, "k", {n: -n for n in range(ROWS)})
        part = KeyRange(10, ROWS - 10, descending=descending)
        with versions.reading(spec) as (table,):
            found = paged(table.scan_range(None, 1, "k", part), 128)
        within = [(n, -n) for n in range(10, ROWS - 10)]
        assert not difference(found, within[::-1] if descending else within)

    @pytest.mark.parametrize("size", [70_000, (1 << 20) + 1])
    def test_large_values_come_back(self, versions: Versions, size: int) -> None:
        large: dict[str, Any] = {
            "str": "ä" * (size - 1) + "z",
            "bytes": b"\x07" * (size - 1) + b"z",
        }
        specs = [
            spec_for(ValueStateDescriptor("v", str)),
            spec_for(ListStateDescriptor("l", bytes)),
            spec_for(MapStateDescriptor("m", str, str)),
        ]
        contents = [
            {"k": large["str"], "small": "s"},
            {"k": [b"1", large["bytes"], b"3"]},
            {"k": {"a": "1", "b": large["str"], "c": "3"}},
        ]
        with versions.writing(*specs) as tables:
            for table, spec, content in zip(tables, specs, contents, strict=True):
                write_contents(table, spec, content)
        with versions.reading(*specs) as tables:
            for table, spec, content in zip(tables, specs, contents, strict=True):
                found = read_contents(table, spec, [*content])
                assert found == [*content.values()], f"{spec.shape.value}: other content"

    @pytest.mark.parametrize("length", [300, _LONG])
    def test_long_keys_and_user_keys_are_apart(self, versions: Versions, length: int) -> None:
        names = ["x" * length + last for last in "abc"]
        points = spec_for(ValueStateDescriptor("v", int))
        maps = spec_for(MapStateDescriptor("m", str, int))
        numbered = {name: n for n, name in enumerate(names)}
        with versions.writing(points, maps) as (table, entries):
            write_points(table, numbered)
            write_map(entries, names[0], numbered)
        with versions.reading(points, maps) as (table, entries):
            assert read_contents(table, points, names) == [0, 1, 2]
            assert read_contents(entries, maps, names) == [numbered, {}, {}]
            asked = [(1, names[0], name) for name in names]
            assert entries.get_entries(None, asked) == [0, 1, 2]

    def test_many_namespaces(self, versions: Versions) -> None:
        """As windows make them: each with a key or two."""
        spec = spec_for(ListStateDescriptor("l", int))
        names = [f"window {n}" for n in range(400)]
        with versions.writing(spec) as (table,):
            for number, name in enumerate(names):
                write_list(table, "k", [number], namespace=name)
        with versions.reading(spec) as (table,):
            found = [read_contents(table, spec, ["k"], name) for name in names]
            assert not difference(found, [[[n]] for n in range(len(names))])
        backend = versions.open()
        everything = exported(backend, spec)
        backend.close()
        assert everything == {(name, "k"): (1, [n]) for n, name in enumerate(names)}

    def test_many_states(self, versions: Versions) -> None:
        specs = [spec_for(ValueStateDescriptor(f"state {n}", int)) for n in range(150)]
        with versions.writing(*specs) as tables:
            for number, table in enumerate(tables):
                write_points(table, {"k": number})
        with versions.writing(*specs[::2]) as tables:
            for number, table in enumerate(tables):
                write_points(table, {"k": -number})
        with versions.reading(*specs) as tables:
            found = [table.get_many(None, [(1, "k")])[0] for table in tables]
        assert found == [n if n % 2 else -(n // 2) for n in range(150)]

    def test_many_cells_are_deleted_in_one_batch(self, versions: Versions) -> None:
        points = spec_for(ValueStateDescriptor("v", int))
        maps = spec_for(MapStateDescriptor("m", int, int))
        with versions.writing(points, maps) as (table, entries):
            write_points(table, {f"key {n}": n for n in range(MANY)}, group_of=spread)
            write_map(entries, "k", {n: n for n in range(MANY)})
        with versions.writing(points, maps) as (table, entries):
            gone = {f"key {n}": ABSENT for n in range(MANY) if n != 7}
            write_points(table, gone, group_of=spread)
            write_map(entries, "k", {n: ABSENT for n in range(MANY) if n != 7})
        backend = versions.open()
        left = exported(backend, points), exported(backend, maps)
        backend.close()
        assert left == ({(None, "key 7"): (spread("key 7"), 7)}, {(None, "k"): (1, {7: 7})})

    def test_an_export_and_the_keys_have_every_stored_cell(self, versions: Versions) -> None:
        spec = spec_for(ValueStateDescriptor("v", int))
        values = {f"key {n}": n for n in range(MANY)}
        with versions.writing(spec) as (table,):
            write_points(table, values, group_of=spread)
            write_points(table, {"elsewhere": 1}, "w")
        backend = versions.open()
        found = exported(backend, spec, 1_000)
        pages = [*backend.table(spec).keys(None, 64)]
        backend.close()
        assert len(found) == MANY + 1
        assert all(found[None, key] == (spread(key), n) for key, n in values.items())
        assert max(map(len, pages)) <= 64, "a page of keys is larger than was asked for"
        assert sorted(key for page in pages for key in page) == sorted(values)

    def test_a_list_keeps_its_order_over_hundreds_of_commits(self, versions: Versions) -> None:
        """Each commit appends one element; a neighbour is replaced now and then."""
        spec = spec_for(ListStateDescriptor("l", int))
        for number in range(COMMITS):
            with versions.writing(spec) as (table,):
                write_list(table, "k", [number])
                if number % 20 == 0:
                    write_list(table, "neighbour", [number], replaced=number % 40 == 0)
            if number + 1 in _CHECKED:
                _check_list(versions, spec, number + 1)
        _check_list(versions, spec, COMMITS)

    @pytest.mark.parametrize("groups", [300, 1 << 15])
    def test_key_groups_beyond_a_byte(self, new_versions: NewVersions, groups: int) -> None:
        """One range, then three, then one again; each part rewrites and deletes of its own."""
        versions = new_versions(groups)
        spec = spec_for(ValueStateDescriptor("v", int), int)
        keys = list(range(0, groups, groups // 100))
        held = dict.fromkeys(keys, 0)
        with versions.writing(spec) as (table,):
            write_points(table, held, group_of=int)
        ranges = [key_group_range_of(subtask, 3, groups) for subtask in range(3)]
        parts = [(one, versions.open(one), [spec]) for one in ranges]
        for number, (own, backend, _) in enumerate(parts, 1):
            mine = [key for key in keys if key in own]
            found = exported(backend, spec)
            assert sorted(key for _, key in found) == mine, f"cells of {own}"
            assert all(group == key for (_, key), (group, _) in found.items())
            changed: dict[int, Any] = {
                key: ABSENT if n % 3 == 0 else number for n, key in enumerate(mine)
            }
            write_points(backend.table(spec), changed, group_of=int)
            held |= changed
        versions.commit(*parts)
        with versions.reading(spec) as (table,):
            assert read_contents(table, spec, keys, group_of=int) == [held[key] for key in keys]


def _check_list(versions: Versions, spec: TableSpec, count: int) -> None:
    with versions.reading(spec) as (table,):
        (found,) = read_contents(table, spec, ["k"])
    assert not difference(found, list(range(count))), f"after {count} commits"
