"""A state accepts the declared type and nothing else, and never shares a mutable value."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, tzinfo
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, NewType, Optional, Union

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_state_api.codecs import Codec, MigratedFrom, codec_for
from forebay_state_api.codecs.wrapping_codecs import optional_codec
from forebay_state_api.errors import ConfigurationError

from .kinds import ZONES, plain, same


class MyInt(int):
    pass


class MyStr(str):
    __slots__ = ()


class Level(IntEnum):
    LOW = 1


class Digits(Codec[int]):
    id = "digits"
    version = 1

    def encode(self, value: int) -> bytes:
        if type(value) is not int:
            raise TypeError(f"digits of a {type(value).__name__}")
        return str(value).encode()

    def decode(self, data: bytes) -> int:
        return int(data)

    def describe(self) -> str:
        return "digits"

    def compatible_with(self, stored_description: str) -> bool:
        return True


UserId = NewType("UserId", int)


def admit(type_info: Any, value: Any) -> Any:
    return codec_for(type_info, what="state 'x'").admit(value)


@pytest.mark.parametrize(
    ("type_info", "value", "message"),
    [
        (int, True, "expected int, got True: a bool, not int"),
        (int, 1.0, "expected int, got 1.0: a float, not int"),
        (int, MyInt(1), "MyInt, not int"),
        (int, Level.LOW, "Level, not int"),
        (int, None, "expected int, got None: None, not int"),
        (str, MyStr("a"), "MyStr, not str"),
        (str, b"a", "a bytes, not str"),
        (bytes, bytearray(b"a"), "a bytearray, not bytes"),
        (float, True, "a bool, not float"),
        (float, 10**400, "an int too large for a float"),
        (bool, 1, "an int, not bool"),
        (datetime, "2024", "a str, not datetime"),
        (int | None, "x", r"expected int \| None, got 'x': a str, not int"),
        (
            tuple[int, int],
            (1, "x"),
            r"expected tuple\[int, int\], got \(1, 'x'\): \[1\] is a str, not int",
        ),
        (tuple[int, int], (1,), "a tuple of length 1, not 2"),
        (tuple[int, int], [1, 2], r"a list, not tuple\[int, int\]"),
        (tuple[int, ...], (1, 2, None), r"\[2\] is None, not int"),
        (tuple[int, tuple[int, str]], (1, (2, 3)), r"\[1\]\[1\] is an int, not str"),
        (list[int], (1, 2), r"a tuple, not list\[int\]"),
        (list[int], [1, "x"], r"\[1\] is a str, not int"),
        (dict[str, list[int]], {"a": [1, 2, "x"]}, r"\['a'\]\[2\] is a str, not int"),
        (dict[str, int], {1: 1}, "key 1 is an int, not str"),
        (dict[str, int], [("a", 1)], r"a list, not dict\[str, int\]"),
        (None, {"a": [1, {2}]}, r"expected Any, got .*: \['a'\]\[1\] is a set, not None, bool"),
        (None, MyInt(1), "MyInt, not None, bool"),
        (dict[str, Any], {"a": Ellipsis}, r"\['a'\] is an ellipsis, not None"),
    ],
    ids=repr,
)
def test_other_types_are_refused_with_the_place_where_they_are(type_info, value, message):
    with pytest.raises(TypeError, match=message):
        admit(type_info, value)


@pytest.mark.parametrize("type_info", [int, None, Digits()], ids=["int", "untyped", "Codec"])
def test_the_error_says_what_the_type_was_declared_for(type_info):
    codec = codec_for(type_info, what="state 'x'")
    for derived in (codec, optional_codec(codec)):
        with pytest.raises(TypeError, match=r"^state 'x': .*Basket"):
            derived.admit(Basket("me", []))


def test_a_value_of_no_declared_type_is_told_of_codecs():
    with pytest.raises(
        TypeError, match=r"a set, not None.*declare it as the state's type, or a Codec"
    ):
        admit(None, {1})


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(TypeError) as caught:
        admit(list[int], ["x" * 1000] * 1000)
    assert len(str(caught.value)) < 300


def test_ints_become_floats_where_floats_are_declared():
    assert same(admit(float, 2), 2.0)
    assert same(admit(tuple[float, int], (1, 1)), (1.0, 1))
    assert same(admit(list[float | None], [1, None]), [1.0, None])
    assert same(admit(dict[str, float], {"a": 1}), {"a": 1.0})


@pytest.mark.parametrize(
    "type_info", [UserId, Annotated[int, "unit"], Annotated[UserId, "unit"]], ids=str
)
def test_names_for_a_type_are_that_type(type_info):
    codec = codec_for(type_info, what="x")
    assert codec.description == {"type": "int"}
    assert codec.admit(3) == 3


@pytest.mark.parametrize("type_info", [Optional[int], Union[int, None], int | None], ids=str)  # noqa: UP007, UP045 - they are what is tested
def test_all_ways_to_write_optional(type_info):
    assert codec_for(type_info, what="x").description == {
        "type": "optional",
        "of": {"type": "int"},
    }


@pytest.mark.parametrize("type_info", [Any, object, Optional[Any]], ids=str)  # noqa: UP045 - it is what is tested
def test_any_is_no_declared_type(type_info):
    assert codec_for(type_info, what="x").description == {"type": "any"}


@pytest.mark.parametrize(
    ("type_info", "value"),
    [
        (tuple[int, str], (1, "a")),
        (tuple[float, ...], (1.0, 2.0)),
        (tuple[int | None, tuple[str, bytes]], (None, ("a", b""))),
        (str, "a" * 100),
        (None, "text"),
    ],
    ids=str,
)
def test_immutable_values_are_taken_and_handed_out_as_they_are(type_info, value):
    codec = codec_for(type_info, what="x")
    assert codec.admit(value) is value
    if codec.hand_out is not None:
        assert codec.hand_out(value) is value


@attrs.define
class Basket:
    owner: str
    items: list[str]


def change(value: Any) -> None:
    """Change everything in ``value`` that can be changed."""
    if isinstance(value, Basket):
        change(value.items)
        value.owner = "changed"
    elif isinstance(value, list | tuple):
        for part in value:
            change(part)
    elif isinstance(value, dict):
        change(list(value.values()))
        value["changed"] = "changed"
    if isinstance(value, list):
        value.append("changed")


@pytest.mark.parametrize(
    ("type_info", "value"),
    [
        (list[int], [1, 2]),
        (dict[str, list[str]], {"a": ["b"]}),
        (tuple[int, list[int]], (1, [2])),
        (tuple[dict[str, int], ...], ({"a": 1},)),
        (list[list[int] | None], [[1], None]),
        (Basket, Basket("me", ["apple"])),
        (dict[str, Basket], {"a": Basket("me", [])}),
        (tuple[int, Basket | None], (1, Basket("me", []))),
        (None, [1, {"a": ([2],)}]),
        (list, [[1], ([2],)]),
        (dict, {"a": [1]}),
        (tuple, ([1], 2)),
        (dict[str, Any], {"a": {"b": []}}),
    ],
    ids=str,
)
def test_nothing_mutable_is_shared(type_info, value):
    codec = codec_for(type_info, what="x")
    original = copy.deepcopy(value)
    stored = codec.admit(value)
    change(value)
    assert stored == original
    assert codec.hand_out is not None
    given_out = codec.hand_out(stored)
    assert given_out == original
    change(given_out)
    assert stored == original


@pytest.mark.long
@given(plain)
def test_what_is_admitted_and_handed_out_is_the_same(value):
    codec = codec_for(None, what="x")
    stored = codec.admit(value)
    assert same(stored, value)
    assert same(codec.hand_out(stored), value)


def test_untyped_values_nest_no_deeper_than_a_hundred_levels():
    value: list[Any] = []
    for _ in range(99):
        value = [value]
    codec = codec_for(None, what="x")
    assert codec.unpack_one(codec.pack_one(codec.admit(value))) == value
    value.append(value)
    with pytest.raises(TypeError, match="nested deeper than 100 levels"):
        codec.admit(value)


@given(st.lists(st.integers() | st.text()))
def test_a_list_is_admitted_iff_all_elements_are_of_the_type(values):
    if all(isinstance(value, int) for value in values):
        assert admit(list[int], values) == values
    else:
        with pytest.raises(TypeError):
            admit(list[int], values)


@pytest.mark.parametrize(
    "type_info",
    [set, frozenset[int], complex, int | str, Ellipsis, 3, list["Nowhere"], Exception, type],  # noqa: F821 - it is what is tested
    ids=str,
)
def test_other_types_are_an_error_that_names_codec_and_state(type_info):
    with pytest.raises(ConfigurationError, match=r"state 'x': .*Codec of your own"):
        codec_for(type_info, what="state 'x'")


def test_bare_containers_hold_anything():
    assert codec_for(list, what="x").description == codec_for(list[Any], what="x").description
    assert codec_for(dict, what="x").description == codec_for(dict[Any, Any], what="x").description
    assert admit(dict, {(1, 2): [None]}) == {(1, 2): [None]}


class Meeting(NamedTuple):
    at: datetime
    where: str


@attrs.frozen
class Frozen:
    at: datetime | None


@pytest.mark.parametrize(
    ("type_info", "wrap"),
    [
        (datetime, lambda at: at),
        (None, lambda at: at),
        (datetime | None, lambda at: at),
        ("timestamp", lambda at: at),
        (list[datetime], lambda at: [at]),
        (tuple[str, datetime], lambda at: ("x", at)),
        (dict[datetime, list[datetime]], lambda at: {at: [at]}),
        (None, lambda at: ("x", at)),
        (None, lambda at: {at: [(at,), {"deep": at}]}),
        (list, lambda at: [at, [at]]),
        (Meeting, lambda at: Meeting(at, "here")),
        (Frozen, Frozen),
        (Annotated[datetime, MigratedFrom(int, str)], lambda at: at),
    ],
)
@settings(max_examples=settings().max_examples // 2)
@given(at=st.datetimes(timezones=st.sampled_from(ZONES)))
def test_instants_are_kept_in_utc(type_info, wrap, at):
    try:
        in_utc = at.astimezone(UTC)
    except OverflowError:
        with pytest.raises(TypeError, match="outside the years 1 to 9999"):
            admit(type_info, wrap(at))
        return
    assert repr(admit(type_info, wrap(at))) == repr(wrap(in_utc))


class NoOffset(tzinfo):
    def utcoffset(self, moment):
        return None


@pytest.mark.parametrize("type_info", [datetime, None])
def test_a_zone_without_an_offset_is_refused(type_info):
    with pytest.raises(TypeError, match="a zone without an offset"):
        admit(type_info, datetime(2024, 1, 1, tzinfo=NoOffset()))
