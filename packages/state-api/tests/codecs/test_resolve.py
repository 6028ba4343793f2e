"""Stored types that a declared type can read, and those that it cannot."""

from __future__ import annotations

import dataclasses
import enum
import pickle
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import pytest

from forebay_state_api.codecs import codec_for, raw_codec, resolve
from forebay_state_api.errors import IncompatibleTypeError, StateMigrationError


@attrs.frozen
class Old:
    id: int
    name: str


@attrs.frozen
class Same:
    id: int
    name: str


@attrs.frozen
class Added:
    id: int
    name: str
    tags: list[str] = attrs.field(factory=list)
    label: str = attrs.field(default="a", converter=str.upper)
    twice: int = attrs.field(default=attrs.Factory(lambda self: self.id * 2, takes_self=True))


@attrs.frozen
class Removed:
    name: str


@attrs.frozen
class Reordered:
    name: str | None
    id: float


@attrs.frozen
class AddedWithoutDefault:
    id: int
    name: str
    must: int


@attrs.frozen
class Retyped:
    id: int
    name: int


@attrs.frozen
class BadDefault:
    id: int
    name: str
    bad: int = "x"


@dataclasses.dataclass
class AsDataclass:
    name: str
    id: int
    notes: dict[str, int] = dataclasses.field(default_factory=dict)


class AsNamedTuple(NamedTuple):
    id: int
    extra: tuple[int, ...] = (1,)
    name: str = ""


class Outer(NamedTuple):
    inner: Old
    n: int


class NewOuter(NamedTuple):
    n: float
    inner: Added | None = None


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class MoreColours(enum.Enum):
    BLUE = 0
    RED = 1
    GREEN = 2


class OneColour(enum.Enum):
    GREEN = 2


def read(stored_type: Any, value: Any, declared_type: Any) -> Any:
    stored, declared = codec_for(stored_type, what="x"), codec_for(declared_type, what="x")
    codec = resolve(stored.description, declared)
    data = stored.pack([stored.admit(value)])
    (found,) = codec.unpack(data)
    assert codec.unpack_one(stored.pack_one(stored.admit(value))) == found
    assert codec.description == declared.description
    assert codec.pack([found]) == declared.pack([found])
    assert declared.admit(found) == found
    return found


OLD = Old(1, "a")


@pytest.mark.parametrize(
    ("stored", "value", "declared", "expected"),
    [
        (int, 3, float, 3.0),
        (int, 3, int | None, 3),
        (int, 3, float | None, 3.0),
        (int | None, None, float | None, None),
        (list[int], [1], list[float], [1.0]),
        (tuple[int, str], (1, "a"), tuple[float, str | None], (1.0, "a")),
        (tuple[int, int], (1, 2), tuple[int, ...], (1, 2)),
        (tuple[int, int], (1, 2), tuple[float, ...], (1.0, 2.0)),
        (tuple[int, ...], (1, 2), tuple[float, ...], (1.0, 2.0)),
        (dict[str, int], {"a": 1}, dict[str, float | None], {"a": 1.0}),
        (dict[int, str], {1: "a"}, dict[float, str], {1.0: "a"}),
        (Old, OLD, Same, Same(1, "a")),
        (Old, OLD, Added, Added(1, "a")),
        (Added, Added(1, "a"), Old, OLD),
        (Old, OLD, Removed, Removed("a")),
        (Old, OLD, Reordered, Reordered("a", 1.0)),
        (Old, OLD, AsDataclass, AsDataclass("a", 1, {})),
        (Old, OLD, AsNamedTuple, AsNamedTuple(1, (1,), "a")),
        (AsNamedTuple, AsNamedTuple(1, (2,), "b"), AsDataclass, AsDataclass("b", 1)),
        (Outer, Outer(OLD, 2), NewOuter, NewOuter(2.0, Added(1, "a"))),
        (list[Old], [OLD], list[Added], [Added(1, "a")]),
        ("id long, name string", (1, "a"), "name string, id double, x date", ("a", 1.0, None)),
        ("struct<a: int not null>", (1,), "struct<a: int>", (1,)),
        (Colour, Colour.RED, MoreColours, MoreColours.RED),
        (Colour, Colour.GREEN, OneColour, OneColour.GREEN),
        ("long", 3, int, 3),
    ],
    ids=str,
)
def test_compatible_changes_read_old_values(stored, value, declared, expected):
    found = read(stored, value, declared)
    assert found == expected
    assert repr(found) == repr(expected) or isinstance(stored, str)


@pytest.mark.parametrize(
    ("stored", "declared", "message"),
    [
        (int, str, "stored as int, declared as str: int cannot be read as str"),
        (float, int, "stored as float, declared as int"),
        (bool, int, "bool cannot be read as int"),
        (str, bytes, "str cannot be read as bytes"),
        (int, Decimal, "int cannot be read as Decimal"),
        (int | None, int, r"int \| None cannot be read as int"),
        (list[int], list[str], "int cannot be read as str"),
        (list[int], tuple[int, ...], r"list\[int\] cannot be read as tuple\[int, ...\]"),
        (tuple[int, ...], tuple[int, int], "cannot be read as"),
        (tuple[int, int], tuple[int], "2 elements are stored, 1 declared"),
        (tuple[int, str], tuple[int, ...], "str cannot be read as int"),
        (dict[str, int], dict[int, int], "str cannot be read as int"),
        (dict[str, int], list[int], "cannot be read as list"),
        (int, None, "int is stored, and no type is declared"),
        (None, int, "Any cannot be read as int"),
        (Old, AddedWithoutDefault, "the field 'must' is not in the stored state"),
        (Old, Retyped, "field 'name': str cannot be read as int"),
        (list[Old], list[Retyped], "field 'name'"),
        (Old, tuple[int, str], "cannot be read as"),
        (tuple[int, str], Old, "cannot be read as"),
        ("a int", "a int, b int not null", "the field 'b' is not in the stored state"),
        (Colour, str, "cannot be read as str"),
        (str, Colour, "cannot be read as"),
        (date, "timestamp", "date cannot be read as datetime"),
    ],
    ids=str,
)
def test_incompatible_changes_are_refused_with_both_types(stored, declared, message):
    stored, declared = codec_for(stored, what="x"), codec_for(declared, what="x")
    with pytest.raises(IncompatibleTypeError, match=message) as caught:
        resolve(stored.description, declared)
    assert isinstance(caught.value, StateMigrationError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.stored) == (str(caught.value), caught.value.stored)


def test_the_same_type_gives_the_declared_codec_itself():
    codec = codec_for(dict[str, Old], what="x")
    assert resolve(codec_for(dict[str, Old], what="y").description, codec) is codec


def test_defaults_of_added_fields_are_not_shared():
    old, new = codec_for(Old, what="x"), codec_for(Added, what="x")
    codec = resolve(old.description, new)
    one, other = codec.unpack(old.pack([OLD, OLD]))
    one.tags.append("x")
    assert other.tags == []
    assert (one.label, one.twice) == ("A", 2)


def test_a_default_of_the_wrong_type_is_named_when_it_is_needed():
    old, new = codec_for(Old, what="x"), codec_for(BadDefault, what="x")
    codec = resolve(old.description, new)
    with pytest.raises(StateMigrationError, match="default of the added field 'bad' is a str"):
        codec.unpack(old.pack([OLD]))


def test_a_removed_member_is_an_error_only_where_it_is_stored():
    old, new = codec_for(Colour, what="x"), codec_for(OneColour, what="x")
    codec = resolve(old.description, new)
    assert codec.unpack(old.pack([Colour.GREEN])) == [OneColour.GREEN]
    told = r"^x: stored state holds OneColour\.RED, which is no longer a member"
    with pytest.raises(StateMigrationError, match=told):
        codec.unpack(old.pack([Colour.RED]))


def test_descriptions_that_come_back_with_tuples_for_lists_still_resolve():
    codec = codec_for(tuple[int, Old], what="x")
    stored = {"type": "tuple", "elements": tuple(codec.description["elements"])}
    assert resolve(stored, codec).unpack(codec.pack([(1, OLD)])) == [(1, OLD)]


def test_raw_state_is_of_its_own_type_only():
    with pytest.raises(IncompatibleTypeError):
        resolve({"type": "str"}, raw_codec({"type": "int"}))
