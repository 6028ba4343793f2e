"""Keys, user keys, namespaces and names of states that a store could confuse, in one key group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_testing.backends.table_contents import (
    exported,
    in_one_group,
    read_contents,
    write_contents,
    write_map,
    write_points,
)
from forebay_testing.backends.table_versions import OverVersions, Versions, spec_for

TEXTS: Final = [
    *["", "a", "A", "aa", "aaa", "ab", "b"],
    *["a ", "a  ", " a", "a\t", "a\n", " "],
    *["\0", "a\0", "a\0b", "a\0c"],
    *["\u00e9", "e\u0301", "\u00e8", "e"],
    *["\u212b", "\u00c5", "A\u030a", "\ufb01", "fi", "\uff11"],
    *["\u00df", "ss", "SS", "\u0131", "i", "I", "\u0130"],
    *["1", "01", "1.0", "+1", "1e0", "0", "None", "null", "true", "True"],
    *["%", "a%", "_", "a_", "*", "?", "[ab]", "a*"],
    *["'", '"', "a'b", "`", ";", "--", "\\", "a\\b", "a/b", "a/", "..", "."],
    *["a|b", "a,b", "a:b", "a-b", "a\x1fb", "a\x01", "a\x7f"],
    *["\ufeffa", "a\u200b", "\u00ad", "\u0430"],
    *["\U0001f600", "\uffff", "\U0010ffff", "\u4e00"],
    *["x" * 31 + "a", "x" * 32 + "a", "x" * 32 + "b", "x" * 33],
    *["x" * 63 + "a", "x" * 64 + "a", "x" * 64 + "b"],
    *["x" * 255 + "a", "x" * 255 + "b", "y" * 299 + "a", "y" * 299 + "b"],
    # Pairs with one CRC-32, one FNV-32 and one hash of Java.
    *["plumless", "buckeroo", "costarring", "liquid", "Aa", "BB"],
]
"""Case, blanks, NUL, normal forms, signs of patterns and paths, lengths, and equal checksums."""
_BYTES: Final = [
    *[b"", b"\0", b"\0\0", b"a", b"A", b"a\0", b"a\0b", b"a\0c", b"a ", b" a", b"aa"],
    *[b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"a\xff", b"\xc3\xa9", b"e\xcc\x81", b"\n"],
]
_INTS: Final = [
    *[0, 1, -1, 10, 127, 128, -128, -129, 255, 256, -256, 65_535, 65_536],
    *[2**31 - 1, 2**31, -(2**31), 2**32, 2**32 + 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)],
]
_FLOATS: Final = [
    *[0.0, 1.0, -1.0, 0.1, 0.3, 0.30000000000000004, 16777216.0, 16777217.0, 1e-300, 5e-324],
    *[1e300, 2.0**53, 2.0**53 + 2, float("inf"), float("-inf")],
]
_PAIRS: Final = [
    *[("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a", "b"), ("A", "b"), ("a", "B")],
    *[("a\0", "b"), ("a", "\0b"), ("a|b", "c"), ("a", "b|c"), ("a,b", "c"), ("a", "b,c")],
    *[("a-b", "c"), ("a", "b-c"), ("a:b", "c"), ("a", "b:c"), ("a ", "b"), ("a", " b"), ("", "")],
]
ALIKE: Final[Mapping[str, tuple[Any, list[Any]]]] = {
    "text": (str, TEXTS),
    "bytes": (bytes, _BYTES),
    "int": (int, _INTS),
    "float": (float, _FLOATS),
    "pair": (tuple[str, str], _PAIRS),
}
"""Name of a type → the type, and values of it that a store could confuse."""
NAMESPACES: Final = [None, *TEXTS, 1, 1.5, b"1", ("a", 1), ("a", "1"), ("a",), -1, 2**63 - 1, b"a"]
_STATES: Final[Mapping[str, StateDescriptor]] = {
    "point": ValueStateDescriptor("v", int),
    "list": ListStateDescriptor("l", int),
    "map": MapStateDescriptor("m", str, int),
}


def _content(spec: TableSpec, number: int) -> Any:
    if spec.shape is Shape.POINT:
        return number
    return [number, -number] if spec.shape is Shape.LIST else {"e": number, "f": -number}


def _changes(spec: TableSpec, count: int, turn: int) -> dict[int, Any]:
    """Return number → content: all at first, then some again, then some deleted."""
    if turn == 0:
        return {n: _content(spec, n) for n in range(count)}
    content = _content(spec, 1000) if turn == 1 else ABSENT
    return dict.fromkeys(range(turn, count, 3), content)


def _seen(spec: TableSpec, content: Any) -> Any:
    """Return what a read shows of a content: lists and maps that do not exist are empty."""
    if content is not ABSENT or spec.shape is Shape.POINT:
        return content
    return [] if spec.shape is Shape.LIST else {}


class AlikeNameTests(OverVersions):
    """Names that are alike, all in one key group, over three commits with deletes."""

    @pytest.mark.parametrize("shape", _STATES)
    @pytest.mark.parametrize("kind", ALIKE)
    def test_keys_that_are_alike_are_apart(self, versions: Versions, kind: str, shape: str) -> None:
        key_type, keys = ALIKE[kind]
        spec = spec_for(_STATES[shape], key_type)
        held: dict[int, Any] = {}
        for turn in range(3):
            changed = _changes(spec, len(keys), turn)
            with versions.writing(spec) as (table,):
                write_contents(table, spec, {keys[n]: one for n, one in changed.items()})
            held |= changed
            with versions.reading(spec) as (table,):
                found = read_contents(table, spec, keys)
            expected = {key: _seen(spec, held[n]) for n, key in enumerate(keys)}
            assert dict(zip(keys, found, strict=True)) == expected
        backend = versions.open()
        everything = exported(backend, spec)
        backend.close()
        stored = {keys[n]: one for n, one in held.items() if one is not ABSENT}
        assert everything == {(None, key): (1, one) for key, one in stored.items()}

    @pytest.mark.parametrize("ordered", [False, True], ids=["map", "sorted map"])
    @pytest.mark.parametrize("kind", ALIKE)
    def test_user_keys_that_are_alike_are_apart(
        self, versions: Versions, kind: str, *, ordered: bool
    ) -> None:
        key_type, entries = ALIKE[kind]
        descriptor = SortedMapStateDescriptor if ordered else MapStateDescriptor
        spec = spec_for(descriptor("m", key_type, int))
        held: dict[Any, Any] = {}
        for turn in range(3):
            changed = {
                entry: ABSENT if turn == 2 else n + 1000 * turn
                for n, entry in enumerate(entries)
                if turn == 0 or n % 3 == turn
            }
            with versions.writing(spec) as (table,):
                write_map(table, "k", changed)
            held |= changed
            with versions.reading(spec) as (table,):
                found = table.get_entries(None, [(1, "k", entry) for entry in entries])
                scanned = read_contents(table, spec, ["k"])
            assert dict(zip(entries, found, strict=True)) == held
            assert scanned == [{e: v for e, v in held.items() if v is not ABSENT}]

    @pytest.mark.parametrize("shape", _STATES)
    def test_namespaces_that_are_alike_are_apart(self, versions: Versions, shape: str) -> None:
        spec = spec_for(_STATES[shape])
        held: dict[int, Any] = {}
        for turn in range(3):
            changed = _changes(spec, len(NAMESPACES), turn)
            with versions.writing(spec) as (table,):
                for number, content in changed.items():
                    both = {"k": content, f"own {number}": content}
                    write_contents(table, spec, both, NAMESPACES[number])
            held |= changed
            with versions.reading(spec) as (table,):
                found = [read_contents(table, spec, ["k"], name)[0] for name in NAMESPACES]
                listed = [
                    sorted(key for page in table.keys(name, 10) for key in page)
                    for name in NAMESPACES
                ]
            assert found == [_seen(spec, held[n]) for n in range(len(NAMESPACES))]
            there = [n for n in range(len(NAMESPACES)) if held[n] is not ABSENT]
            assert [listed[n] for n in there] == [["k", f"own {n}"] for n in there]

    def test_states_with_names_that_are_alike_are_apart(self, versions: Versions) -> None:
        specs = [spec_for(ValueStateDescriptor(name, int)) for name in TEXTS if name]
        with versions.writing(*specs) as tables:
            for number, table in enumerate(tables):
                write_points(table, {"k": number}, group_of=in_one_group)
        with versions.writing(*specs[::3]) as tables:
            for table in tables:
                write_points(table, {"k": ABSENT, "other": 1})
        with versions.reading(*specs[::-1]) as tables:
            found = [table.get_many(None, [(1, "k"), (1, "other")]) for table in tables[::-1]]
        expected = [[ABSENT, 1] if n % 3 == 0 else [n, ABSENT] for n in range(len(specs))]
        names = [spec.name for spec in specs]
        assert dict(zip(names, found, strict=True)) == dict(zip(names, expected, strict=True))
