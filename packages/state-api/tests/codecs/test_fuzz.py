"""Bytes that a codec did not write: no codec raises a bare error, however they are read."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import attrs
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_state_api.codecs import Codec, MigratedFrom, codec_for, raw_codec, resolve
from forebay_state_api.codecs.codec import UndecodedError, decoding
from forebay_state_api.codecs.plain import EXT_DATETIME, EXT_UUID, dump_typed
from forebay_state_api.codecs.wrapping_codecs import optional_codec, stamped_codec
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    StateMigrationError,
)

from .kinds import plain


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@attrs.frozen
class Point:
    x: int
    tags: list[str] = attrs.field(factory=list)


@dataclasses.dataclass
class Checked:
    x: int = 0

    def __post_init__(self) -> None:
        if self.x < 0:
            message = "x is negative"
            raise ValueError(message)


class Pair(NamedTuple):
    name: str
    point: Point | None = None


class Text(Codec[str]):
    id = "text"
    version = 1

    def encode(self, value: str) -> bytes:
        return value.encode("ascii")

    def decode(self, data: bytes) -> str:
        return data.decode("ascii")

    def describe(self) -> str:
        return "text"

    def compatible_with(self, stored_description: str) -> bool:
        return stored_description == "text"


NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
KINDS: list[tuple[Any, Any]] = [
    (None, [1, (2, "x"), {"a": NOON}]),
    (bool, True),
    (int, 2**70),
    (float, 1.5),
    (str, "ä\ud800"),
    (bytes, b"\x00"),
    (date, NOON.date()),
    (datetime, NOON),
    (time, NOON.time()),
    (timedelta, timedelta(days=-1)),
    (Decimal, Decimal("1.50")),
    (UUID, UUID(int=1)),
    (Colour, Colour.BLUE),
    (Access, Access.READ | Access.WRITE),
    (int | None, 3),
    (list[int], [1, 2]),
    (list[Point], [Point(1)]),
    (dict[str, int], {"a": 1}),
    (dict[Colour, list[date]], {Colour.RED: [NOON.date()]}),
    (tuple[int, str], (1, "a")),
    (tuple[int, Point], (1, Point(2))),
    (tuple[Point, ...], (Point(1), Point(2))),
    (Point, Point(1, ["a"])),
    (Checked, Checked(1)),
    (Pair, Pair("a", Point(1))),
    ("struct<a: int, b: array<string>>", (1, ["a"])),
    (Text(), "abc"),
    (Annotated[Point, MigratedFrom(int, Point)], Point(1)),
    (dict[str, Any], {"a": [1, (2,)]}),
]
IDS = [str(declared)[:40] for declared, _ in KINDS]


def codecs_of(declared: Any) -> list[Any]:
    codec = codec_for(declared, what="state 's'")
    described = raw_codec(codec.description)
    found = [codec, optional_codec(codec), stamped_codec(codec), described]
    if declared is int:
        found.append(resolve(codec.description, codec_for(float, what="state 's'")))
        migrated = codec_for(Annotated[Point, MigratedFrom(int, Point)], what="state 's'")
        found.append(resolve(codec.description, migrated))
    if declared is Point:
        found.append(resolve(codec.description, codec_for(Checked, what="state 's'")))
    return found


@functools.cache
def all_codecs() -> list[Any]:
    return [codec for declared, _ in KINDS for codec in codecs_of(declared)]


def decoded(codec: Any, data: bytes) -> None:
    """Every way to decode gives a value or a documented error."""
    lengths = [len(data) // 2, len(data) - len(data) // 2]
    ways = (
        lambda: codec.unpack(data),
        lambda: codec.unpack(memoryview(data)),
        lambda: codec.unpack_one(data),
        lambda: codec.unpack_each(data, lengths),
        lambda: codec.unpack_each(data, [len(data)]),
    )
    for way in ways:
        # A removed member and a zone that this machine lacks have their own errors.
        with contextlib.suppress(UndecodedError, StateMigrationError, ConfigurationError):
            way()


@pytest.mark.long
@pytest.mark.parametrize(("declared", "value"), KINDS, ids=IDS)
@given(data=st.binary(max_size=40), values=st.lists(plain, max_size=3))
@settings(max_examples=max(1, settings().max_examples // 10))
def test_bytes_and_values_of_any_kind(declared, value, data, values):
    for codec in codecs_of(declared):
        decoded(codec, data)
        with contextlib.suppress(TypeError):  # not every value can be written as plain data
            decoded(codec, dump_typed(values))
            decoded(codec, b"".join(map(dump_typed, values)))
        decoded(codec, codec_for(None, what="x").pack(values))


@pytest.mark.parametrize(("declared", "value"), KINDS, ids=IDS)
def test_every_kind_under_every_other_one(declared, value):
    codec = codec_for(declared, what="state 's'")
    stored = codec.admit(value)
    for data in (codec.pack([stored, stored]), codec.pack_one(stored)):
        for reader in all_codecs():
            decoded(reader, data)


@pytest.mark.parametrize(("declared", "value"), KINDS, ids=IDS)
def test_every_byte_cut_and_flipped(declared, value):
    codec = codec_for(declared, what="state 's'")
    stored = codec.admit(value)
    random.seed(7)
    for data in (codec.pack([stored, stored]), codec.pack_one(stored)):
        for position in range(len(data)):
            decoded(codec, data[:position])
            for flip in (1, random.randrange(1, 256)):
                changed = bytearray(data)
                changed[position] ^= flip
                decoded(codec, bytes(changed))


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb([msgpack.ExtType(EXT_DATETIME, b"")]),
        msgpack.packb([msgpack.ExtType(EXT_DATETIME, b"\x7f" * 9)]),
        msgpack.packb([msgpack.ExtType(EXT_DATETIME, bytes(8) + b"\x06../etc")]),
        msgpack.packb([msgpack.ExtType(EXT_DATETIME, bytes(8) + b"\x06America")]),
        msgpack.packb([msgpack.ExtType(EXT_UUID, b"")]),
        msgpack.packb([msgpack.ExtType(99, b"")]),
        msgpack.packb([{1: 2}]),
        msgpack.packb({"a": 1}),
        msgpack.packb(7),
        b"\xc1",
        b"",
        b"\x91" * 2_000,
    ],
    ids=repr,
)
def test_what_has_been_met(data):
    for codec in all_codecs():
        decoded(codec, data)


def test_the_position_of_what_cannot_be_read_is_known():
    codec = codec_for(Colour, what="state 's'")
    packed = codec_for(Any, what="x").pack(["RED", "BLUE", "RED", 5])
    with pytest.raises(UndecodedError, match="state 's': what is stored is not Colour") as found:
        codec.unpack(packed)
    assert found.value.position == 3
    points = codec_for(Point, what="state 's'")
    parts = [points.pack_one(Point(1)), b"\xc1", points.pack_one(Point(2))]
    with pytest.raises(UndecodedError) as found:
        points.unpack_each(b"".join(parts), [len(part) for part in parts])
    assert found.value.position == 1


def test_who_reads_says_where_it_was():
    codec = codec_for(Point, what="state 's'")
    with (
        pytest.raises(CorruptStateError, match=r"data/f, key 1: state 's': what is stored is not"),
        decoding(lambda at: f"data/f, key {at}"),
    ):
        codec.unpack(codec_for(Any, what="x").pack([(1, ["a"]), 7]))
    with (
        pytest.raises(CorruptStateError, match=r"data/f: .*KeyError"),
        decoding(lambda _: "data/f"),
    ):
        {}["x"]
    with pytest.raises(StateMigrationError), decoding(lambda _: "data/f"):
        raise StateMigrationError


def test_a_default_that_cannot_be_made_is_no_damage():
    @attrs.frozen
    class Added:
        x: int
        more: int = attrs.field(factory=lambda: 1 // 0)

    stored = codec_for(Point, what="state 's'")
    with pytest.raises(StateMigrationError, match="'more' cannot be made: ZeroDivisionError"):
        resolve(stored.description, codec_for(Added, what="state 's'")).unpack(
            stored.pack([Point(1)])
        )
