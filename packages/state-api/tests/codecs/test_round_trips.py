"""Packing and unpacking return equal values of every plain kind, alone and in columns."""

from __future__ import annotations

import string
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay_state_api.codecs import codec_for, raw_codec

from .kinds import datetimes, decimals, keys, plain, same, surrogates_too

UNTYPED = codec_for(None, what="state 'x'")
EXAMPLES = settings().max_examples
"""Of each type fewer are tried."""


def comes_back(codec: Any, values: list[Any]) -> bool:
    packed = [codec.pack_one(value) for value in values]
    assert codec.pack_each(values) == packed
    each = codec.unpack_each(b"".join(packed), [len(one) for one in packed])
    one_by_one = [codec.unpack_one(one) for one in packed]
    together = codec.unpack(codec.pack(values))
    return same(together, values) and same(one_by_one, values) and same(each, values)


@given(st.lists(plain, max_size=5))
@example([(1, 2), (3, 4)])
@example([(1, 2), (3, [4])])
@example([(), (1,), ("x", None)])
@example([[(1, 2)], ((),), {(1, (2, b"")): ({},)}])
@example([True, 1, 1.0, -0.0, 2**64, -(2**63) - 1, "\ud800"])
def test_untyped_values_come_back(values):
    assert comes_back(UNTYPED, [UNTYPED.admit(value) for value in values])


@given(st.lists(plain, max_size=3))
def test_untyped_parts_of_typed_values_come_back(values):
    codec = codec_for(tuple[str, list[Any], dict[str, Any]], what="state 'x'")
    value = codec.admit(("a", values, {str(i): v for i, v in enumerate(values)}))
    assert comes_back(codec, [value, value])


@attrs.frozen
class Point:
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    name: str
    point: Point | None = None


points = st.builds(Point, st.integers(), st.floats())

TYPED = [
    (int, st.integers()),
    (bool, st.booleans()),
    (float, st.floats()),
    (str, surrogates_too),
    (bytes, st.binary()),
    (date, st.dates()),
    (datetime, datetimes),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Decimal, decimals),
    (UUID, st.uuids()),
    (int | None, st.none() | st.integers()),
    (tuple[int, str], st.tuples(st.integers(), st.text())),
    (tuple[()], st.just(())),
    (tuple[Decimal, ...], st.lists(decimals).map(tuple)),
    (list[tuple[int, ...]], st.lists(st.lists(st.integers()).map(tuple))),
    (tuple[list[int], int], st.tuples(st.lists(st.integers()), st.integers())),
    (list[list[str]], st.lists(st.lists(st.text()))),
    (dict[str, list[int]], st.dictionaries(st.text(), st.lists(st.integers()))),
    (dict[tuple[int, str], date], st.dictionaries(st.tuples(st.integers(), st.text()), st.dates())),
    (Point, points),
    (Pair, st.builds(Pair, st.text(), st.none() | points)),
    (list[Pair | None], st.lists(st.none() | st.builds(Pair, st.text(), points))),
]


@pytest.mark.long
@pytest.mark.hypothesis
@pytest.mark.parametrize(("type_info", "values"), TYPED, ids=lambda part: str(part)[:40])
def test_typed_values_come_back(type_info, values):
    codec = codec_for(type_info, what="state 'x'")

    @settings(max_examples=EXAMPLES // 3)
    @given(st.lists(values, max_size=4))
    def check(column):
        assert comes_back(codec, [codec.admit(value) for value in column])

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize(("type_info", "values"), TYPED, ids=lambda part: str(part)[:40])
def test_undeclared_state_passes_through_byte_for_byte(type_info, values):
    codec = codec_for(type_info, what="state 'x'")
    raw = raw_codec(codec.description)

    @settings(max_examples=EXAMPLES // 4)
    @given(st.lists(values, max_size=3))
    def check(column):
        packed = codec.pack(column)
        assert raw.pack(raw.unpack(packed)) == packed
        if column:
            one = codec.pack_one(column[0])
            assert raw.pack_one(raw.unpack_one(one)) == one
            assert same(raw.original(raw.address(raw.unpack_one(one))), raw.unpack_one(one))

    check()


@given(st.lists(keys, max_size=4))
def test_undeclared_untyped_state_passes_through(values):
    packed = UNTYPED.pack(values)
    raw = raw_codec(UNTYPED.description)
    assert raw.pack(raw.unpack(packed)) == packed


def test_undeclared_parts_without_a_type_pass_through():
    codec = codec_for(dict[str, Any], what="state 'x'")
    packed = codec.pack([{"a": [1, (2, [3])], "b": None}])
    raw = raw_codec(codec.description)
    assert raw.pack(raw.unpack(packed)) == packed


@pytest.mark.long
def test_a_large_column_comes_back():
    codec = codec_for(tuple[int, str], what="state 'x'")
    values = [(i, string.ascii_letters) for i in range(70_000)]
    assert codec.unpack(codec.pack(values)) == values
    assert UNTYPED.unpack(UNTYPED.pack(values)) == values


def test_columns_are_read_from_memory_views():
    assert UNTYPED.unpack(memoryview(UNTYPED.pack([(1, 2)]))) == [(1, 2)]
    codec = codec_for(list[int], what="state 'x'")
    assert codec.unpack(memoryview(codec.pack([[1]]))) == [[1]]
