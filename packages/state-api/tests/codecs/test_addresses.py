"""Keys: which values are the same key, with a declared type and without one."""

# Times without a zone are among the kinds that state holds.
# ruff: noqa: DTZ001

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.codecs import ValueCodec, codec_for

from .kinds import datetimes, decimals, keys, same

UNTYPED = codec_for(None, what="user key")
NAN = float("nan")


def address(codec: ValueCodec, value: Any) -> Any:
    return value if codec.address is None else codec.address(value)


def original(codec: ValueCodec, place: Any) -> Any:
    return place if codec.original is None else codec.original(place)


def holds(codec: ValueCodec, one: Any, other: Any) -> bool:
    """Equal addresses iff the originals have equal encodings; whether they are equal."""
    places = [address(codec, one), address(codec, other)]
    found = places[1] in {places[0]: None}
    packed = [codec.pack_one(original(codec, place)) for place in places]
    assert found == (packed[0] == packed[1])
    return found


@pytest.mark.parametrize(
    "values",
    [
        [1, True, 1.0, Decimal(1), "1", b"1", (1,), (True,), (1.0,), ((1,),)],
        [0, False, 0.0, None, "", b"", (), (None,), timedelta(0)],
        [b"\x01", (b"\x01",), "\x01"],
    ],
    ids=["ones", "zeros", "bytes"],
)
def test_without_a_type_each_class_has_its_own_keys(values):
    for i, one in enumerate(values):
        for j, other in enumerate(values):
            assert holds(UNTYPED, one, other) == (i == j)
        assert same(original(UNTYPED, address(UNTYPED, one)), one)


@given(keys, keys)
def test_untyped_addresses_are_equal_iff_encodings_are(one, other):
    holds(UNTYPED, one, other)
    assert holds(UNTYPED, one, one)


PARIS = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("type_info", "one", "other"),
    [
        (float, 0.0, -0.0),
        (float, NAN, float("-nan")),
        (tuple[float, int], (NAN, 1), (-float("nan"), 1)),
        (Decimal, Decimal("1.0"), Decimal("1.00")),
        (Decimal, Decimal(0), Decimal("-0E5")),
        (Decimal, Decimal("NaN"), Decimal("NaN123")),
        (Decimal, Decimal(10) ** 40, Decimal("1E40")),
        (datetime, datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 13, tzinfo=PARIS)),
        (datetime, datetime(2024, 1, 1), datetime(2024, 1, 1, fold=1)),
        (time, time(1), time(1, fold=1)),
        (float | None, -0.0, 0.0),
    ],
    ids=repr,
)
def test_equal_values_are_one_key(type_info, one, other):
    assert holds(codec_for(type_info, what="user key"), one, other)
    assert holds(UNTYPED, one, other)
    assert holds(UNTYPED, ("a", (one,)), ("a", (other,)))


class Name(NamedTuple):
    first: str
    weight: float = 0.0


@attrs.frozen
class Spot:
    x: int
    name: Name | None


@attrs.define(eq=False)
class Mutable:
    x: int


@pytest.mark.parametrize(
    ("type_info", "values"),
    [
        (float, st.floats()),
        (Decimal, decimals),
        (datetime, datetimes),
        (tuple[int, float], st.tuples(st.integers(0, 2), st.floats())),
        (tuple[str, ...], st.lists(st.text(max_size=1)).map(tuple)),
        (Name, st.builds(Name, st.text(max_size=1), st.floats())),
        (Spot, st.builds(Spot, st.integers(0, 1), st.none() | st.builds(Name, st.just("a")))),
    ],
    ids=str,
)
def test_typed_addresses_are_equal_iff_encodings_are(type_info, values):
    codec = codec_for(type_info, what="user key")

    @given(values, values)
    def check(one, other):
        holds(codec, one, other)
        assert holds(codec, one, one)
        again = original(codec, address(codec, one))
        assert type(again) is type(one)
        assert address(codec, again) == address(codec, one) or again != again

    check()


def test_objects_are_keys_by_their_fields_whatever_their_own_equality_says():
    assert holds(codec_for(Mutable, what="user key"), Mutable(1), Mutable(1))


def test_untyped_parts_of_keys_keep_their_class():
    codec = codec_for(tuple[str, Any], what="user key")
    assert not holds(codec, ("a", 1), ("a", True))
    assert same(original(codec, address(codec, ("a", (1.0, b"")))), ("a", (1.0, b"")))


@pytest.mark.parametrize(
    ("type_info", "value"),
    [
        (None, [1]),
        (None, (1, {})),
        (list[int], [1]),
        (dict[str, int], {"a": 1}),
        (tuple[int, list[int]], (1, [])),
        (time, time(1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_what_cannot_be_a_key_is_a_type_error(type_info, value):
    codec = codec_for(type_info, what="user key")
    with pytest.raises(TypeError, match="cannot be a key"):
        address(codec, value)


def test_frequent_keys_are_their_own_addresses():
    for type_info in (int, str, bytes, bool, tuple[int, str]):
        assert codec_for(type_info, what="user key").address is None
    assert UNTYPED.address is not None
    assert UNTYPED.address("a") == "a"
    assert UNTYPED.address(3) == 3
