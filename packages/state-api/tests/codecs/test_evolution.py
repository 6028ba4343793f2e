"""Renamed fields, and functions that migrate what the declared type cannot read."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import attrs
import pytest

from forebay_state_api.codecs import Alias, MigratedFrom, codec_for, resolve
from forebay_state_api.codecs.wrapping_codecs import optional_codec, stamped_codec
from forebay_state_api.errors import IncompatibleTypeError, StateMigrationError


@attrs.frozen
class Old:
    total: int
    name: str = ""


@attrs.frozen
class Renamed:
    label: Annotated[str, Alias("title", "name")]
    balance: Annotated[float, Alias("total")]


@dataclasses.dataclass
class RenamedDataclass:
    balance: Annotated[int, Alias("total")] = 0


class RenamedTuple(NamedTuple):
    balance: Annotated[int, Alias("total")]
    name: str


@attrs.frozen
class NameReused:
    """``total`` came back as another field."""

    balance: Annotated[int, Alias("total")]
    total: int = -1


def from_cents(cents: int) -> Old:
    return Old(cents * 100, "migrated")


def failing(value: Any) -> Any:
    message = f"no word for {value}"
    raise ValueError(message)


def read(stored_type: Any, value: Any, declared_type: Any, make: Any = lambda codec: codec) -> Any:
    stored = make(codec_for(stored_type, what="x"))
    declared = make(codec_for(declared_type, what="x"))
    codec = resolve(stored.description, declared)
    packed = stored.pack_each([stored.admit(value)] * 2)
    found = codec.unpack(stored.pack([stored.admit(value)]))
    assert [codec.unpack_one(packed[0])] == found
    assert codec.unpack_each(b"".join(packed), [*map(len, packed)]) == found * 2
    assert declared.unpack(codec.pack(found)) == found
    return found[0]


@pytest.mark.parametrize(
    ("stored", "value", "declared", "expected"),
    [
        (Old, Old(3, "a"), Renamed, Renamed("a", 3.0)),
        (Renamed, Renamed("a", 3.0), Renamed, Renamed("a", 3.0)),
        (Old, Old(3), RenamedDataclass, RenamedDataclass(3)),
        (Old, Old(3, "b"), RenamedTuple, RenamedTuple(3, "b")),
        (Old, Old(3), NameReused, NameReused(3, -1)),
        (NameReused, NameReused(3, 4), NameReused, NameReused(3, 4)),
        (list[Old], [Old(3, "a")], list[Renamed], [Renamed("a", 3.0)]),
    ],
    ids=str,
)
def test_a_renamed_field_is_found_under_its_alias(stored, value, declared, expected):
    assert read(stored, value, declared) == expected


def test_a_renamed_field_of_a_struct_type_is_found_under_its_alias():
    types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not required here")
    fields = [
        types.StructField(name, kind, nullable=True, metadata={"forebay.alias": alias})
        for name, kind, alias in [
            ("title", types.StringType(), ["label", "name"]),
            ("balance", types.LongType(), "total"),
        ]
    ]
    assert read("total long, name string", (3, "a"), types.StructType(fields)) == ("a", 3)


@pytest.mark.parametrize(
    ("stored", "value", "declared", "expected"),
    [
        (int, 3, Annotated[Old, MigratedFrom(int, from_cents)], Old(300, "migrated")),
        (None, (1, 2), Annotated[list[int], MigratedFrom(None, list)], [1, 2]),
        (None, [1, (2,)], Annotated[str, MigratedFrom(None, str)], "[1, (2,)]"),
        ("a long", (5,), Annotated[int, MigratedFrom("a long", lambda s: s.a)], 5),
        (
            list[int],
            [3],
            list[Annotated[Old, MigratedFrom(int, from_cents)]],
            [Old(300, "migrated")],
        ),
        # The declared type could read it too, but the function was declared for it.
        (int, 3, Annotated[float, MigratedFrom(int, lambda cents: cents / 100)], 0.03),
        # A stored type between the two is read as the named one.
        (int, 3, Annotated[str, MigratedFrom(float, str)], "3.0"),
        (
            Decimal,
            Decimal(2),
            Annotated[int, MigratedFrom(str, int), MigratedFrom(Decimal, int)],
            2,
        ),
    ],
)
@pytest.mark.parametrize("make", [lambda codec: codec, optional_codec, stamped_codec])
def test_a_function_migrates_what_is_stored(stored, value, declared, expected, make):
    value = (7, value) if make is stamped_codec else value
    expected = (7, expected) if make is stamped_codec else expected
    assert read(stored, value, declared, make) == expected


def test_a_migration_leaves_no_trace_in_the_description():
    plain = codec_for(Old, what="x")
    migrating = codec_for(Annotated[Old, MigratedFrom(int, from_cents)], what="x")
    assert migrating.description == plain.description
    assert resolve(plain.description, migrating) is migrating
    assert optional_codec(codec_for(Annotated[int | None, MigratedFrom(str, int)], what="x"))


def test_what_neither_can_read_is_refused_with_the_declared_type():
    declared = codec_for(Annotated[Old, MigratedFrom(int, from_cents)], what="x")
    with pytest.raises(IncompatibleTypeError, match="stored as str, declared as Old"):
        resolve({"type": "str"}, declared)


@pytest.mark.parametrize(
    ("migrate", "message"),
    [
        (failing, "the migration failing from int to str raised ValueError: no word for 3"),
        (abs, "the migration abs from int to str gave an int, not str"),
    ],
)
def test_a_migration_that_fails_is_named_with_both_types(migrate, message):
    with pytest.raises(StateMigrationError, match=message):
        read(int, 3, Annotated[str, MigratedFrom(int, migrate)])


def test_a_type_with_a_migration_travels_to_the_workers():
    cloudpickle = pytest.importorskip("pyspark.cloudpickle", reason="pyspark is not required here")
    declared = cloudpickle.loads(
        cloudpickle.dumps(Annotated[str, MigratedFrom(int, lambda n: f"{n}!")])
    )
    assert read(int, 3, declared) == "3!"


@pytest.mark.parametrize("names", [(), ("",), (3,)])
def test_an_alias_is_a_name(names):
    with pytest.raises(TypeError, match="former names of a field"):
        Alias(*names)
