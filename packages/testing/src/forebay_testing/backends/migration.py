"""Migration: state that is restored under another declaration (docs/reference/state.md)."""

from __future__ import annotations

import logging
from typing import Annotated, Any, NamedTuple

import attrs
import pytest

from forebay_state_api.codecs import Alias, Codec, MigratedFrom
from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.backends.versions import COUNT, READ, three_states


class Point(NamedTuple):
    """A version of a record."""

    x: int
    y: int


class Text(Codec[str]):
    """A user codec."""

    id = "text"
    version = 1

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()

    def describe(self) -> str:
        return "text"

    def compatible_with(self, stored_description: str) -> bool:
        return stored_description == "text"


class Flat:
    """Holds the older of two classes of one name."""

    @attrs.define
    class Position:
        """A record with one field."""

        x: int


class Tall:
    """Holds the newer of two classes of one name."""

    @attrs.define
    class Position:
        """A record with one more field."""

        x: int
        height: float = 1.5


class Swapped:
    """Holds a class with the fields of `Tall` in reverse order."""

    @attrs.define
    class Position:
        """A record."""

        height: float
        x: int


class Turned:
    """Holds a class whose field had another name."""

    @attrs.define
    class Position:
        """A record with one field."""

        east: Annotated[int, Alias("x")]


def _positions(one: Any) -> list[StateDescriptor]:
    """A value, a list and a map of ``one``."""
    return [
        ValueStateDescriptor("s", one),
        ListStateDescriptor("l", one),
        MapStateDescriptor("m", str, one),
    ]


def _written(value: Any) -> list[Any]:
    return [("s.update", value), ("l.add", value), ("m.put", "a", value)]


class MigrationTests(BackendSubject):
    """Restoring under another declaration."""

    @pytest.mark.parametrize(
        ("stored", "declared", "value", "read"),
        [
            (Flat.Position, Tall.Position, Flat.Position(3), "Tall.Position(x=3, height=1.5)"),
            (Tall.Position, Flat.Position, Tall.Position(3, 2.0), "Flat.Position(x=3)"),
            (
                Tall.Position,
                Swapped.Position,
                Tall.Position(3, 2.0),
                "Swapped.Position(height=2.0, x=3)",
            ),
            (int, float, 3, "3.0"),
            (int, int | None, 3, "3"),
            (tuple[int, int], tuple[int, ...], (1, 2), "(1, 2)"),
        ],
        ids=[
            "field added",
            "field removed",
            "fields reordered",
            "int to float",
            "optional",
            "longer tuples",
        ],
    )
    def test_compatible_changes_read_old_values(
        self, new_job: NewJob, stored: Any, declared: Any, value: Any, read: str
    ) -> None:
        job = new_job(ValueStateDescriptor("s", stored), ListStateDescriptor("l", stored))
        job.do("k", ("s.update", value), ("l.add", value))
        job.descriptors = [ValueStateDescriptor("s", declared), ListStateDescriptor("l", declared)]
        for _ in range(2):
            job.restart()
            got, elements = job.do("k", ("s.value",), ("l.get",))
            assert (repr(got), repr(elements)) == (read, f"[{read}]")
            job.do("other", ("s.update", got))
        assert repr(job.do("other", ("s.value",))[0]) == read

    def test_a_field_that_was_renamed_is_found_under_its_alias(self, new_job: NewJob) -> None:
        job = new_job(*_positions(Flat.Position))
        job.do("k", *_written(Flat.Position(3)))
        job.descriptors = _positions(Turned.Position)
        job.restart()
        got, elements, entry = job.do("k", ("s.value",), ("l.get",), ("m.get", "a"))
        assert [got, *elements, entry] == [Turned.Position(east=3)] * 3

    def test_a_function_migrates_what_was_stored(self, new_job: NewJob) -> None:
        job = new_job(*_positions(int))
        job.do("old", *_written(3))
        job.do("newer", *_written(4))
        migrated = Annotated[Flat.Position, MigratedFrom(int, Flat.Position)]
        job.descriptors = _positions(migrated)
        for _ in range(3):  # values that were not rewritten are migrated again
            job.restart()
            reads = [("s.value",), ("l.get",), ("m.get", "a")]
            assert job.do("old", *reads) == [Flat.Position(3), [Flat.Position(3)], Flat.Position(3)]
            job.do("newer", ("s.update", Flat.Position(5)), ("l.add", Flat.Position(6)))
        assert job.do("newer", ("s.value",)) == [Flat.Position(5)]
        four = job.do("newer", ("l.get",))[0]
        assert four == [Flat.Position(4), *[Flat.Position(6)] * 3]

    def test_a_migration_that_fails_names_itself_and_both_types(self, new_job: NewJob) -> None:
        job = new_job(*_positions(int))
        job.do("k", *_written(3))
        job.descriptors = _positions(Annotated[Flat.Position, MigratedFrom(int, str)])
        job.restart()
        with pytest.raises(StateMigrationError, match=r"migration str from int.*Position"):
            job.do("k", ("s.value",), ("l.get",), ("m.get", "a"))
        job.descriptors = _positions(int)
        job.restart()
        assert job.do("k", ("s.value",)) == [3], "the stored state is untouched"

    def test_types_of_all_kinds_survive(self, new_job: NewJob) -> None:
        job = new_job(
            ValueStateDescriptor("p", Point),
            ValueStateDescriptor("t", Text()),
            MapStateDescriptor("m", Text(), list[Point]),
            ValueStateDescriptor("u"),
        )
        untyped = {"a": [1, (2, "x")], 3: None, (1, True): b"\x00"}
        writes = [
            ("p.update", Point(1, 2)),
            ("t.update", "ä"),
            ("m.put", "a", [Point(3, 4)]),
            ("u.update", untyped),
        ]
        job.do("k", *writes)
        job.restart()
        reads = [("p.value",), ("t.value",), ("m.items",), ("u.value",)]
        assert job.do("k", *reads) == [Point(1, 2), "ä", [("a", [Point(3, 4)])], untyped]

    def test_state_that_is_no_longer_declared_is_kept(self, new_job: NewJob) -> None:
        job = new_job(*three_states(), parallelism=2)
        keys = "abcdefghijkl"
        job.scripts([(key, [*COUNT, ("namespace", "w"), *COUNT]) for key in keys])
        everything, job.descriptors = job.descriptors, [ValueStateDescriptor("v", int)]
        for number in range(3):
            job.restart(parallelism=number + 1)
            job.scripts([(key, [("v.update", number)]) for key in "abc"])
        for number in range(24):  # until every backend has merged files
            job.scripts([(key, [("v.update", number)]) for key in keys])
        job.descriptors = everything
        job.restart(parallelism=2)
        got = job.scripts([(key, [*READ, ("namespace", "w"), *READ]) for key in keys])
        assert got == [[1, [1], 23, None, 1, [1], None]] * len(keys)

    def test_state_that_is_no_longer_declared_is_logged(
        self, new_job: NewJob, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = new_job(*three_states())
        job.scripts([(key, COUNT) for key in "abc"])
        job.descriptors = [ValueStateDescriptor("v", int)]
        with caplog.at_level(logging.INFO, "forebay_engine"):
            job.do("a", ("v.value",))
        kept = [one.getMessage() for one in caplog.records if "kept" in one.getMessage()]
        assert kept == [f"operator {job.uid}, subtask 0: not declared any more, and kept: l, r"]
