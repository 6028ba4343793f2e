"""Data that are older than several declarations."""

from __future__ import annotations

import enum
import itertools
from typing import Annotated, Any

import attrs
import pytest

from forebay_state_api.codecs import Alias, Codec, MigratedFrom, codec_for
from forebay_state_api.codecs.generations import shape_of
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Shape
from forebay_state_api.contract.migration import Lineage, continued, reader_of, says_more
from forebay_state_api.errors import StateMigrationError

KEY = codec_for(str, what="the key")


def spec_of(declared: Any) -> TableSpec:
    value = codec_for(declared, what="x")
    return TableSpec(name="s", shape=Shape.POINT, kind="value", key=KEY, value=value)


def through(*types: Any) -> tuple[TableSpec, list[TableSpec]]:
    """The spec of the last type, and those of all, declared in this order."""
    specs: list[TableSpec] = []
    lineage = None
    for declared in types:
        specs.append(continued(spec_of(declared), lineage))
        lineage = Lineage(specs[-1].description(), specs[-1].generations)
    return specs[-1], specs


def read(value: Any, *types: Any) -> Any:
    """Read, as the last type, a value that was written as the first one."""
    last, (first, *_) = through(*types)
    reader = reader_of(first.description(), last)
    stored = first.value.admit(value)
    one = reader.value.unpack_one(first.value.pack_one(stored))
    assert reader.value.unpack(first.value.pack([stored])) == [one]
    return one


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Versioned(Codec[str]):
    id = "versioned"
    immutable = True

    def __init__(self, version: int, reads: str = "") -> None:
        self.version = version  # type: ignore[misc]
        self._reads = reads

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return f"{data.decode()} by {self.version}"

    def describe(self) -> str:
        return f"text {self.version}"

    def compatible_with(self, stored_description: str) -> bool:
        return stored_description in self._reads


@attrs.frozen
class Full:
    id: int
    more: list[str] = attrs.field(factory=list)
    colour: Colour = Colour.RED


@attrs.frozen
class Bare:
    id: int


numbers = itertools.count()


@attrs.frozen
class Counted:
    id: int
    number: int = attrs.field(factory=lambda: next(numbers))


@attrs.frozen
class Twice:
    id: int
    double: int = attrs.field(default=attrs.Factory(lambda self: 2 * self.id, takes_self=True))


@attrs.frozen
class Moved:
    ident: Annotated[int, Alias("id")]
    double: int = 0


def test_one_type_is_one_generation() -> None:
    last, _ = through(Full, Full, Full)
    assert len(last.generations) == 1
    assert "generation" not in last.description()


def test_what_the_description_says_is_not_stored_twice() -> None:
    for declared in (int, list[str], Bare, Versioned(1), None):
        assert not says_more(through(declared)[0])
    assert says_more(through(Full)[0]), "the defaults"
    assert says_more(through(int, float)[0])


def test_every_change_is_numbered() -> None:
    _, specs = through(Full, Bare, Bare, Full)
    assert [one.description().get("generation", 0) for one in specs] == [0, 1, 1, 2]
    assert specs[3].description() != specs[0].description()


def test_a_class_of_another_name_is_no_generation() -> None:
    other = attrs.make_class("Other", {"id": attrs.field(type=int)}, frozen=True)
    last, (_, second, _) = through(Bare, other, Bare)
    assert len(last.generations) == 1
    assert second.description() != last.description()
    assert read(Bare(1), Bare, other) == other(1)
    assert read(Bare(1), Bare, other, Bare) == Bare(1)
    assert read(other(1), other, Bare, Full) == Full(1)


def test_declarations_describe_what_they_declare() -> None:
    for declared in (Full, list[Full | None], dict[str, tuple[Full, int]], Versioned(1), None):
        codec = codec_for(declared, what="x")
        assert shape_of(codec.declaration).description == codec.description


def test_defaults_are_objects_of_their_own() -> None:
    one, other = (
        read(Full(1, ["a"], Colour.BLUE), Full, Bare, Full),
        read(Full(1), Full, Bare, Full),
    )
    assert one == other == Full(1)
    assert one.more is not other.more


def test_a_default_that_differs_each_time_is_made_by_who_reads() -> None:
    last, specs = through(Bare, Counted)
    assert "constant" not in str(last.generations[-1])
    reader = reader_of(specs[0].description(), last)
    one, other = reader.value.unpack(specs[0].value.pack([Bare(1), Bare(1)]))
    assert one.number != other.number
    assert read(Bare(4), Bare, Twice) == Twice(4, 8)
    assert read(Bare(4), Bare, Twice, Moved) == Moved(4, 0)


def test_members_are_kept_by_name() -> None:
    assert read((Colour.BLUE, 1), tuple[Colour, int], tuple[Colour, float]) == (Colour.BLUE, 1.0)


def test_a_codec_is_asked_about_the_version_before() -> None:
    one, two, three = Versioned(1), Versioned(2, "text 1"), Versioned(3, "text 2")
    assert read("a", one, two, three) == "a by 3"
    with pytest.raises(StateMigrationError, match="codec versioned reports that it cannot read"):
        through(one, three)


def test_a_migration_in_the_middle_needs_its_function() -> None:
    cents = Annotated[float, MigratedFrom(int, lambda value: value / 100)]
    assert read(250, int, cents) == 2.5
    assert read(250, int, cents, Annotated[float | None, MigratedFrom(int, float)]) == 250.0
    with pytest.raises(StateMigrationError, match="a MigratedFrom was declared from int to float"):
        through(int, cents, float)


def test_a_type_of_a_newer_release_is_refused_by_name() -> None:
    newer = {"value": {"type": "set", "of": {"type": "int"}}, "user_key": None}
    stored = spec_of(int).description()
    lineage = Lineage({**stored, "generation": 1}, [{"value": {"type": "int"}, "user_key": None}])
    lineage = attrs.evolve(
        lineage,
        description={**lineage.description, "value": newer["value"]},
        generations=[*lineage.generations, newer],
    )
    with pytest.raises(StateMigrationError, match="'s', value: stored as set, declared as int"):
        continued(spec_of(int), lineage)


def test_what_an_older_release_wrote_has_no_number() -> None:
    old = spec_of(Full)
    lineage = Lineage(spec_of(Bare).description(), [{"value": spec_of(Bare).value.description}])
    lineage = attrs.evolve(lineage, generations=[{**lineage.generations[0], "user_key": None}])
    spec = continued(spec_of(Full), lineage)
    reader = reader_of(old.description(), spec)
    assert reader.value.unpack_one(old.value.pack_one(Full(1, ["a"]))) == Full(1)
