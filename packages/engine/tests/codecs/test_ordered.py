"""Ordered codecs: the bytes of keys are in the order that the keys have in Python."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_engine.codecs.ordered import beginnings, ordered_codec
from forebay_state_api.codecs import Codec, codec_for
from forebay_state_api.errors import ConfigurationError, CorruptStateError

surrogates_too = st.text(st.characters(codec=None, exclude_categories=()))


floats = st.floats(allow_nan=False)
decimals = st.decimals(allow_nan=False)
datetimes = st.datetimes(timezones=st.sampled_from([None, UTC]))
OF_TYPE = {
    int: st.integers() | st.integers(-300, 300) | st.integers(-(2**2000), 2**2000),
    float: floats,
    Decimal: decimals | st.decimals(-2, 2, places=2),
    str: st.text("ab\0\x01\xff") | surrogates_too,
    bytes: st.binary() | st.lists(st.sampled_from([0, 1, 255])).map(bytes),
    date: st.dates(),
    datetime: datetimes,
    time: st.times(),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    tuple[int, str]: st.tuples(st.integers(-2, 2), st.text("ab\0\x01")),
    tuple[str, ...]: st.lists(st.text("a\0\x01"), max_size=3).map(tuple),
    tuple[datetime, float]: st.tuples(datetimes, floats),
    tuple[tuple[bytes, ...], Decimal]: st.tuples(
        st.lists(st.binary(max_size=2), max_size=2).map(tuple), decimals
    ),
}


def ordered(declared):
    return ordered_codec(codec_for(declared, what="user key of state 's'"))


def addressed(codec, value):
    value = codec.admit(value)
    return value if codec.address is None else codec.address(value)


def rank(codec, value):
    return value if codec.rank is None else codec.rank(value)


@pytest.mark.parametrize("declared", OF_TYPE, ids=str)
def test_the_order_of_bytes_is_the_order_of_values(declared):
    codec = ordered(declared)

    @settings(max_examples=settings().max_examples // 2)
    @given(st.lists(OF_TYPE[declared], min_size=2, max_size=6))
    def check(values):
        keys = [addressed(codec, value) for value in values]
        packed = codec.pack_each(keys)
        for (a, one), (b, other) in product(zip(keys, packed, strict=True), repeat=2):
            assert (one < other) == (rank(codec, a) < rank(codec, b))
            assert (one == other) == (a == b)
        assert codec.unpack_each(b"".join(packed), [*map(len, packed)]) == keys
        assert codec.unpack(codec.pack(keys)) == keys
        assert [*map(codec.unpack_one, map(codec.pack_one, keys))] == keys

    check()


def test_a_beginning_is_before_what_begins_with_it():
    codec = ordered(tuple[int, str])
    empty, first = beginnings(codec)
    assert first.admit((5,)) == (5,)
    assert empty.admit(()) == ()
    bound = codec.pack_one((5,))
    assert (
        codec.pack_one((4, "\U0010ffff")) < bound <= codec.pack_one((5, "")) < codec.pack_one((6,))
    )
    assert codec.pack_one(()) <= codec.pack_one((-(10**9), ""))
    with pytest.raises(TypeError, match=r"expected tuple\[int\], got \('x',\)"):
        first.admit(("x",))
    assert beginnings(ordered(int)) == ()
    assert beginnings(ordered(tuple[int, ...])) == ()


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (float, float("nan")),
        (Decimal, Decimal("nan")),
        (Decimal, Decimal("snan")),
        (tuple[str, float], ("a", float("nan"))),
        (tuple[float, ...], (1.0, float("nan"))),
    ],
    ids=str,
)
def test_nan_is_refused(declared, value):
    with pytest.raises(
        TypeError, match=r"user key of state 's': .*NaN, which has no place in an order"
    ):
        ordered(declared).admit(value)


def test_equal_values_have_equal_bytes():
    codec = ordered(tuple[float, Decimal])
    one, other = (addressed(codec, v) for v in ((-0.0, Decimal("1.50")), (0, Decimal("1.5"))))
    assert one == other
    assert codec.pack_one(one) == codec.pack_one(other)


class Text(Codec[str]):
    id, version = "text", 1

    def encode(self, value):
        return value.encode()

    def decode(self, data):
        return data.decode()

    def describe(self):
        return "text"

    def compatible_with(self, stored_description):
        return True


@pytest.mark.parametrize(
    "declared",
    [None, bool, list[int], dict[str, int], int | None, tuple[int, bool], Text(), "struct<a int>"],
    ids=lambda declared: declared.id if isinstance(declared, Text) else str(declared),
)
def test_types_without_an_order_are_refused(declared):
    with pytest.raises(ConfigurationError, match=r"user key of state 's': .* have no order"):
        ordered(declared)


@pytest.mark.parametrize("declared", ["bigint", "timestamp", "string", "date", "decimal(10,2)"])
def test_spark_types_have_the_order_of_their_values(declared):
    assert ordered(declared).description == codec_for(declared, what="k").description


@pytest.mark.parametrize("declared", OF_TYPE, ids=str)
@pytest.mark.parametrize(
    "damaged", [lambda data: data[:-1], lambda data: data + b"\x07"], ids=["cut", "longer"]
)
def test_damaged_keys_are_reported(declared, damaged):
    codec = ordered(declared)
    value = {
        int: -70_000, float: 1.5, Decimal: Decimal("-1.5"), str: "abc", bytes: b"abc",
        date: date(2026, 1, 1), datetime: datetime(2026, 1, 1, tzinfo=UTC), time: time(1),
        timedelta: timedelta(1), UUID: UUID(int=1), tuple[int, str]: (1, "a"),
        tuple[str, ...]: ("a",), tuple[datetime, float]: (datetime(2026, 1, 1, tzinfo=UTC), 1.0),
        tuple[tuple[bytes, ...], Decimal]: ((b"a",), Decimal(1)),
    }[declared]  # fmt: skip
    with pytest.raises(CorruptStateError, match="user key of state 's'"):
        codec.unpack_each(damaged(codec.pack_one(value)), [len(codec.pack_one(value))])
    with pytest.raises(CorruptStateError, match="user key of state 's'"):
        codec.unpack_one(damaged(codec.pack_one(value)))
