"""attrs classes, dataclasses, NamedTuples and enumerations in state."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from decimal import Decimal
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import attrs
import pytest

from forebay_state_api.codecs import codec_for, describe_type
from forebay_state_api.errors import ConfigurationError, StateMigrationError

T = TypeVar("T")


@attrs.define
class Account:
    id: int
    name: str = "nobody"
    _tags: list[str] = attrs.field(factory=list)


@attrs.frozen(cache_hash=True)
class Frozen:
    id: int
    weight: float = 0.0


@attrs.define(slots=False)
class Loose(Account):
    extra: Decimal | None = None


@attrs.define
class Converting:
    words: list[str] = attrs.field(converter=lambda text: text.split(), default="a b")
    count: int = attrs.field(init=False, default=0)


@attrs.define
class Derived:
    parts: list[int]
    calls: int = 0
    total: int = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.calls += 1
        self.total = sum(self.parts)


@dataclasses.dataclass
class Point:
    kind: ClassVar[str] = "point"
    x: int
    y: int = 0

    def __post_init__(self):
        self.norm = self.x * self.x + self.y * self.y


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenPoint:
    x: int
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True)
class KeywordOnly:
    __secret: int = 3
    a: int


class Pair(NamedTuple):
    left: int
    right: list[int] | None = None


Untyped = namedtuple("Untyped", "a b")  # noqa: PYI024 - it is what is tested


class Colour(enum.Enum):
    RED = (255,)
    GREEN = "g"
    CRIMSON = RED


class Level(enum.IntEnum):
    LOW = 1


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    ALL = 3


class Loosely(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1


@pytest.mark.parametrize(
    "annotation", [Account, Point, Pair, Colour, Permission, "n int, s string"]
)
def test_a_stored_description_names_no_module(annotation):
    stored = repr(codec_for(annotation, what="state").declaration)
    assert __name__ not in stored
    assert "forebay" not in stored


def test_a_class_that_moved_to_another_module_is_described_as_before(monkeypatch):
    described = {cls: codec_for(cls, what="state").description for cls in (Account, Colour)}
    for cls, before in described.items():
        monkeypatch.setattr(cls, "__module__", "elsewhere")
        assert codec_for(cls, what="state").description == before


@pytest.mark.parametrize(
    "value",
    [
        Account(1, "x", ["t"]),
        Frozen(2, 3.5),
        Loose(1, extra=Decimal("1.0")),
        Converting("x y z"),
        Derived([1, 2]),
        Point(3, 4),
        FrozenPoint(1, ["a"]),
        KeywordOnly(a=1),
        Pair(1, [2]),
        Untyped(1, "x"),
        Colour.RED,
        Colour.GREEN,
        Level.LOW,
        Permission.READ,
        Permission.READ | Permission.WRITE,
        Permission(0),
    ],
    ids=repr,
)
def test_instances_come_back_as_themselves(value):
    codec = codec_for(type(value), what="x")
    stored = codec.admit(value)
    (back,) = codec.unpack(codec.pack([stored]))
    for found in (stored, back, codec.unpack_one(codec.pack_one(stored))):
        assert type(found) is type(value)
        assert found == value
    nested = codec_for(dict[str, list[type(value)]], what="x")
    assert nested.unpack(nested.pack([nested.admit({"a": [value]})])) == [{"a": [value]}]
    assert nested.classes == codec.classes == {type(value)}


def test_frozen_instances_are_stored_as_they_are():
    codec = codec_for(Frozen, what="x")
    value = Frozen(1, 2.0)
    assert codec.admit(value) is value
    assert codec.hand_out is None


def test_ints_in_float_fields_are_converted():
    codec = codec_for(Frozen, what="x")
    stored = codec.admit(Frozen(1, 2))
    assert type(stored.weight) is float
    assert hash(stored) == hash(Frozen(1, 2.0))


def test_a_cached_hash_is_not_stored():
    codec = codec_for(Frozen, what="x")
    value = Frozen(1, 2.0)
    hash(value)
    (back,) = codec.unpack(codec.pack([value]))
    assert {value: 1}[back] == 1


def test_converters_do_not_run_on_what_was_stored():
    codec = codec_for(Converting, what="x")
    value = Converting("a b")
    value.count = 7
    (back,) = codec.unpack(codec.pack([codec.admit(value)]))
    assert (back.words, back.count) == (["a", "b"], 7)


def test_a_hook_runs_for_attributes_that_are_no_fields_but_does_not_change_fields():
    codec = codec_for(Point, what="x")
    (back,) = codec.unpack(codec.pack([codec.admit(Point(3, 4))]))
    assert back.norm == 25
    derived = codec_for(Derived, what="x")
    value = Derived([1, 2])
    (back,) = derived.unpack(derived.pack([derived.admit(value)]))
    assert (back.calls, back.total) == (1, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Account("1"), r"expected Account\(id: int, .*\.id is a str, not int"),
        (Account(1, tags=[1]), r"\._tags\[0\] is an int, not str"),
        (Loose(1, extra=1.0), r"\.extra is a float, not Decimal"),
        (Frozen("x"), r"\.id is a str, not int"),
        (Pair(1, (2,)), r"\.right is a tuple, not list\[int\]"),
        (Point(1, 2.5), r"\.y is a float, not int"),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused_by_name(value, message):
    with pytest.raises(TypeError, match=message):
        codec_for(type(value), what="x").admit(value)


@pytest.mark.parametrize(
    ("type_info", "value"),
    [
        (Account, Loose(1)),
        (Pair, (1, None)),
        (Frozen, None),
        (Colour, "RED"),
        (Colour, Level.LOW),
        (Level, 1),
        (Permission, 1),
    ],
    ids=str,
)
def test_instances_of_other_classes_are_refused(type_info, value):
    with pytest.raises(TypeError, match=f"not {type_info.__qualname__}"):
        codec_for(type_info, what="x").admit(value)


def test_a_field_that_is_not_set_is_refused():
    value = Derived([1])
    del value.total
    with pytest.raises(TypeError, match=r"\.total is not set"):
        codec_for(Derived, what="x").admit(value)


def test_flags_with_nameless_bits_are_refused():
    with pytest.raises(TypeError, match="bits that have no name"):
        codec_for(Loosely, what="x").admit(Loosely(9))


def test_an_alias_reads_as_its_member():
    codec = codec_for(Colour, what="x")
    data = codec.pack([Colour.RED]).replace(b"\xa3RED", b"\xa7CRIMSON")
    assert codec.unpack(data) == [Colour.RED]


def test_a_member_that_is_gone_is_named_when_it_is_read():
    codec = codec_for(Colour, what="x")
    data = codec.pack([Colour.RED]).replace(b"RED", b"ROT")
    with pytest.raises(StateMigrationError, match=r"Colour\.ROT, which is no longer a member"):
        codec.unpack(data)
    flags = codec_for(Permission, what="x")
    data = flags.pack([Permission.READ | Permission.WRITE]).replace(b"READ", b"REED")
    with pytest.raises(StateMigrationError, match=r"Permission\.REED"):
        flags.unpack(data)


@attrs.define
class Recursive:
    child: Recursive | None = None


@attrs.define
class HoldsASet:
    names: set[str]


@attrs.define
class Generics(Generic[T]):
    value: T


@dataclasses.dataclass
class WithInitVar:
    a: int
    scale: dataclasses.InitVar[int]

    def __post_init__(self, scale):
        self.a *= scale


class NoMembers(enum.Enum):
    pass


def local_class_with_unknown_names():
    @attrs.define
    class Local:
        other: Nowhere  # noqa: F821 - it is what is tested

    return Local


@pytest.mark.parametrize(
    ("type_info", "message"),
    [
        (Recursive, "Recursive contains itself"),
        (HoldsASet, r"field 'names' of HoldsASet: .*set\[str\].* not a type that state can hold"),
        (Generics, "field 'value' of Generics: ~T"),
        (Generics[int], "not a type that state can hold"),
        (WithInitVar, "takes InitVars"),
        (NoMembers, "NoMembers has no members"),
        (local_class_with_unknown_names(), "annotations of .*Local cannot be resolved here"),
    ],
    ids=str,
)
def test_classes_that_state_cannot_hold(type_info, message):
    with pytest.raises(ConfigurationError, match=f"state 'x': .*{message}"):
        codec_for(type_info, what="state 'x'")


def test_descriptions_are_plain_data_and_render_as_one_would_write_them():
    codec = codec_for(dict[str, Account], what="x")
    assert codec.description["value"]["fields"][0] == {
        "name": "id",
        "type": {"type": "int"},
        "default": False,
    }
    rendered = "dict[str, Account(id: int, name: str = ..., _tags: list[str] = ...)]"
    assert describe_type(codec.description) == rendered
    assert describe_type(codec_for(Colour, what="x").description) == "Colour(RED | GREEN)"


def test_a_dataclass_whose_sentinels_were_pickled_by_value_keeps_its_meaning():
    cls = dataclasses.make_dataclass("Made", [("a", int), ("b", int, 3)], namespace={})
    cls.__module__ = __name__
    copied = type(dataclasses.MISSING)()
    for field in dataclasses.fields(cls):
        field.default_factory = copied
    fields = codec_for(cls, what="x").description["fields"]
    assert [field["default"] for field in fields] == [False, True]


def test_fields_without_a_type_hold_anything():
    codec = codec_for(Untyped, what="x")
    value: Any = Untyped([1], {"a": (2,)})
    assert codec.unpack(codec.pack([codec.admit(value)])) == [value]
    assert codec.admit(value).a is not value.a


@attrs.define
class FarFromHome:
    when: date | None  # noqa: F821 - nor this one
    amounts: dict[str, Decimal]
    other: Optional[Frozen] = None  # noqa: F821 - a name that this module does not have

    def renewed(self):
        return Frozen(1)


def test_a_class_whose_module_is_not_here_finds_the_names_of_plain_kinds_and_of_its_methods():
    assert "Optional" not in globals()
    assert "date" not in globals()
    codec = codec_for(FarFromHome, what="x")
    value = FarFromHome(None, {"a": Decimal(1)}, Frozen(1, 2.0))
    assert codec.unpack(codec.pack([codec.admit(value)])) == [value]


def test_two_classes_of_one_name_are_named_as_such():
    """As those of a notebook's cell that ran twice."""
    for code in (
        "class P(NamedTuple):\n    x: int\nvalue = P(1)",
        "@dataclasses.dataclass\nclass P:\n    x: int\nvalue = P(1)",
        "class P(enum.Enum):\n    A = 1\nvalue = P.A",
    ):
        first, second = dict(globals()), dict(globals())
        exec(code, first)
        exec(code, second)
        codec = codec_for(first["P"], what="x")
        codec.admit(first["value"])
        with pytest.raises(TypeError, match="There are two classes of this name: the code that"):
            codec.admit(second["value"])
        with pytest.raises(TypeError) as other:
            codec.admit(Account(1))
        assert "two classes" not in str(other.value)
