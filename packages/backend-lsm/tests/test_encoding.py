"""The changes of a micro-batch become sorted cells, and list values become elements again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_lsm.addressing import Addressing
from forebay_backend_lsm.encoding import cells_of, pack_elements, unpack_elements
from forebay_backend_lsm.files import CellKind, FewCells
from forebay_backend_lsm.memtable import Memtable, Memtables
from forebay_state_api.contract.changes import ABSENT, Shape


def cells(spec, changes):
    found = cells_of(spec, Addressing(spec), changes)
    if found is None:
        return None
    if isinstance(found, FewCells):
        found = found.columns
    assert found.addresses.tolist() == sorted(found.addresses.tolist())
    times = [None] * len(found) if found.times is None else found.times.tolist()
    columns = (found.keys.to_pylist(), found.kinds.tolist(), found.values.to_pylist(), times)
    return {key: rest for key, *rest in zip(*columns, strict=True)}


def test_points_are_put_and_deleted(kit):
    spec = kit.spec()
    found = cells(spec, kit.points({"a": 5, "b": ABSENT, "c": 7}))
    a, b, c = Addressing(spec).prefixes(None, ["a", "b", "c"])
    assert found == {a: [0, b"\5", None], b: [CellKind.DELETE, b"", None], c: [0, b"\7", None]}


def test_the_time_of_a_value_is_a_column_of_its_own(kit):
    spec = kit.spec(ttl=True)
    found = cells(spec, kit.points({"a": (1000, 5), "b": ABSENT}, "w"))
    a, b = Addressing(spec).prefixes("w", ["a", "b"])
    assert found == {a: [0, b"\5", 1000], b: [CellKind.DELETE, b"", 0]}


def test_lists_are_appended_to_replaced_and_deleted(kit):
    spec = kit.spec(shape=Shape.LIST)
    a, b, c = Addressing(spec).prefixes(None, ["a", "b", "c"])
    assert cells(spec, kit.appended({"a": [1, 2], "b": []})) == {
        a: [CellKind.APPEND, pack_elements(spec, [1, 2]), None]
    }
    assert cells(spec, kit.appended({"b": [3], "c": []}, replaced=True)) == {
        b: [CellKind.PUT, pack_elements(spec, [3]), None],
        c: [CellKind.DELETE, b"", None],
    }
    assert cells(spec, kit.appended({"a": []})) is None


def test_a_clear_comes_before_the_entries_of_its_map(kit):
    spec = kit.spec(shape=Shape.MAP)
    (prefix,) = Addressing(spec).prefixes(None, ["k"])
    found = cells(spec, kit.entered({"k": {"a": 1, "b": ABSENT}}, cleared=True))
    assert found == {
        prefix: [CellKind.CLEAR, b"", None],
        prefix + b"\xa1a": [CellKind.PUT, b"\1", None],
    }
    assert next(iter(found)) == prefix
    found = cells(spec, kit.entered({"k": {"b": ABSENT}}))
    assert found == {prefix + b"\xa1b": [CellKind.DELETE, b"", None]}


@pytest.mark.parametrize("ttl", [False, True])
def test_joined_lists_come_back_in_pages(kit, ttl):
    spec = kit.spec(shape=Shape.LIST, ttl=ttl)

    @given(
        st.lists(st.lists(st.integers(), min_size=1, max_size=20), max_size=5), st.integers(1, 9)
    )
    def check(parts, page_size):
        stored = [[(n, v) for n, v in enumerate(part)] if ttl else part for part in parts]
        value = b"".join(pack_elements(spec, part) for part in stored)
        pages = [*unpack_elements(spec, value, page_size)]
        assert [one for page in pages for one in page] == [one for part in stored for one in part]
        assert all(0 < len(page) <= page_size for page in pages)

    check()


def test_memtables_know_their_size_and_their_parts_do_not_move(kit):
    spec, both = kit.spec(), Memtables()
    memtable, addressing = Memtable(spec, both), Addressing(spec)
    other = Memtable(kit.spec("other"), both)
    assert (both.bytes, both.filled) == (0, {})
    memtable.add(addressing, kit.points({str(n): n for n in range(100)}))
    view, size = memtable.runs, both.bytes
    memtable.add(addressing, kit.points({"a": 1}))
    assert (len(view), len(memtable.runs)) == (1, 2)
    assert both.bytes > size > 100 * 20
    small = both.bytes - size
    other.add(addressing, kit.points({"a": 1}))
    assert both.filled == {"s": memtable, "other": other}
    taken = memtable.take()
    assert [len(run.cells) for run in taken] == [100, 1], "oldest first"
    assert (memtable.runs, both.bytes, both.filled) == ((), small, {"other": other})
    assert memtable.take() == (), "an empty one"
    assert both.bytes == small
