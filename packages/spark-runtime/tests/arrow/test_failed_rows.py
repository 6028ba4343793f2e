"""Rows are checked before their record ends: what passes can be written, and little is written."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, date, datetime, time
from typing import Any

import attrs
import pyarrow as pa
import pytest

from forebay_spark_runtime.arrow.error_column import FAILED_RECORD
from forebay_spark_runtime.arrow.failed_rows import FailedRowWriter, row_check
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_state_api.engine.failed_record import FailedRecord
from forebay_state_api.errors import OutputSchemaError

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("count", pa.int16()),
        ("share", pa.float64()),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("wall", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
    ]
)
SCHEMA_OF_ONE = pa.schema([("count", pa.int64())])
FITTING = ("a", 1, 0.5, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1), None)  # noqa: DTZ001 - wall-clock time


Named = namedtuple("Named", SCHEMA.names)  # noqa: PYI024 - the types do not matter


class CountingWriter(RowWriter):
    """Counts the rows that had to be written to see whether they fit."""

    written = 0

    def batch(self, rows: list[Any]) -> Any:
        self.written += len(rows)
        return super().batch(rows)


@pytest.fixture
def writer() -> CountingWriter:
    return CountingWriter(SCHEMA, function="f", time_zone="UTC")


def with_value(column: str, value: Any) -> tuple[Any, ...]:
    row = list(FITTING)
    row[SCHEMA.names.index(column)] = value
    return tuple(row)


def test_rows_of_usual_values_pass_without_being_written(writer: CountingWriter) -> None:
    nothing = (None,) * len(SCHEMA)
    check = row_check(writer, SCHEMA)
    check([FITTING, nothing, with_value("count", -(2**15) + 1), with_value("share", None)], 0)
    assert (writer.written, check.all_passed) == (0, True)


@pytest.mark.parametrize("row", [Named(*FITTING), Named(*FITTING)._asdict()])
def test_rows_with_names_are_not_written_either(writer: CountingWriter, row: Any) -> None:
    check = row_check(writer, SCHEMA)
    check([row], 0)
    assert (writer.written, check.all_passed) == (0, False)


def test_the_least_number_is_written_and_fits(writer: CountingWriter) -> None:
    check = row_check(writer, SCHEMA)
    check([with_value("count", -(2**15))], 0)
    assert (writer.written, check.all_passed) == (1, False)


@pytest.mark.parametrize("row", ["abcdef", dict.fromkeys(SCHEMA.names), Named(*FITTING), None])
def test_only_tuples_of_the_width_pass(writer: CountingWriter, row: Any) -> None:
    passes = row_check(writer, SCHEMA).passes
    assert not passes(row)
    assert not passes(FITTING[:-1])
    assert not passes((*FITTING, None))


@pytest.mark.parametrize("emitted", [0, 1, 3])
def test_only_rows_from_the_position_on_are_looked_at(writer: CountingWriter, emitted: int) -> None:
    bad = with_value("name", b"a")
    row_check(writer, SCHEMA)([bad, *[FITTING] * emitted], 1)
    assert writer.written == 0


def test_rows_of_one_column_are_checked() -> None:
    check = row_check(RowWriter(SCHEMA_OF_ONE, function="f", time_zone="UTC"), SCHEMA_OF_ONE)
    check([(1,), (None,)], 0)
    for emitted in ([("a",)], [(1,), (1, 2)], [(1, 2)]):
        with pytest.raises(OutputSchemaError):
            check(emitted, 0)


def test_a_null_needs_a_column_that_takes_it_whatever_its_type() -> None:
    kind = pa.time64("us")
    schema = pa.schema([pa.field("at", kind, nullable=False), pa.field("until", kind)])
    check = row_check(RowWriter(schema, function="f", time_zone="UTC"), schema)
    check([(time(1), None), (time(1), time(2))], 0)
    with pytest.raises(OutputSchemaError, match="'at'"):
        check([(None, None)], 0)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tags", ("x",)),
        ("name", "\ud83d"),
        ("tags", ["\ud83d"]),
        ("share", 1),
        ("seen", datetime(2026, 1, 1)),  # noqa: DTZ001 - wall-clock time
    ],
)
def test_what_passes_can_be_written(writer: CountingWriter, column: str, value: Any) -> None:
    row = with_value(column, value)
    row_check(writer, SCHEMA)([row], 0)
    assert writer.batch([row]).num_rows == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("count", 2**15),
        ("count", True),
        ("name", b"a"),
        ("wall", datetime(2026, 1, 1, tzinfo=UTC)),
        ("tags", "x"),
    ],
)
def test_a_misfit_after_fitting_rows_is_found(
    writer: CountingWriter, column: str, value: Any
) -> None:
    check = row_check(writer, SCHEMA)
    check([FITTING], 0)
    bad = with_value(column, value)
    try:
        writer.batch([bad])
    except OutputSchemaError:
        for emitted in ([bad], [FITTING, bad], [bad, FITTING]):
            with pytest.raises(OutputSchemaError, match=column):
                check([FITTING, *emitted], 1)
    else:
        pytest.fail(f"{value!r} is no misfit")


# -- batches with the column for errors -------------------------------------------------------

CLASSES = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("small", pa.int8()),
        ("share", pa.float64()),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
    ]
)
PLAIN = ("a", 2**63 - 1, -127, float("inf"), True, b"\x00", date(9999, 12, 31))
ERROR = arrow_schema(FAILED_RECORD)
FAILURE = FailedRecord(
    type="ValueError", message="bad", method="map", key="k", row=None, timer=None, line=None
)


class ClassesSeen(RowWriter):
    """Counts the batches for which the classes of rows were looked at."""

    looked = 0

    def columns(self, rows: list[Any], classes: set[type]) -> list[Any]:
        self.looked += 1
        return super().columns(rows, classes)


@pytest.fixture
def classes_seen() -> ClassesSeen:
    return ClassesSeen(CLASSES, function="f", time_zone="UTC")


def batch_of(writer: RowWriter, schema: Any, rows: list[Any]) -> Any:
    """Check each row as its record ends, and return the one batch of all."""
    check = row_check(writer, schema)
    for row in rows:
        if isinstance(row, FailedRecord):
            check.all_passed = False  # as the scheduler does
        elif not check.passes(row):
            check([row], 0)
    errors = pa.schema([*schema, ("error", pa.struct(list(ERROR)))])
    (batch,) = FailedRowWriter(writer, errors, check).batches(rows, 100)
    batch.validate(full=True)
    return batch


def test_rows_that_passed_are_written_without_a_look_at_their_classes(
    classes_seen: ClassesSeen,
) -> None:
    rows = [PLAIN, (None,) * len(PLAIN), *[(*PLAIN[:1], number, *PLAIN[2:]) for number in range(9)]]
    batch = batch_of(classes_seen, CLASSES, rows)
    assert classes_seen.looked == 0
    assert [tuple(row.values())[:-1] for row in batch.to_pylist()] == rows
    assert batch.column("error").null_count == len(rows)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_whole_numbers_of_all_widths_are_written(width: int) -> None:
    most = 2 ** (width - 1) - 1
    schema = pa.schema([("n", getattr(pa, f"int{width}")()), ("name", pa.string())])
    rows = [(most, "a"), (-most, "b"), (0, None)]
    for some in (rows, [*rows, (None, "b")]):
        batch = batch_of(ClassesSeen(schema, function="f", time_zone="UTC"), schema, some)
        assert [tuple(row.values())[:-1] for row in batch.to_pylist()] == some


@pytest.mark.parametrize(
    "other", [FAILURE, ("a", 1, 1, 2**60, True, b"", None), {**dict.fromkeys(CLASSES.names)}]
)
def test_other_rows_among_them_are_written_as_they_are_elsewhere(
    classes_seen: ClassesSeen, other: Any
) -> None:
    batch = batch_of(classes_seen, CLASSES, [PLAIN, other, PLAIN])
    assert classes_seen.looked > 0
    first, row, last = (tuple(row.values()) for row in batch.to_pylist())
    assert first == last == (*PLAIN, None)
    if other is FAILURE:
        assert (row[:-1], row[-1]["message"]) == ((None,) * len(PLAIN), "bad")
    else:
        values = other.values() if isinstance(other, dict) else other
        assert row == (*values, None)


def test_a_failed_timer_is_written_with_its_time(classes_seen: ClassesSeen) -> None:
    at = datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=UTC)
    failed = attrs.evolve(FAILURE, method="on_timer", timer=at)
    _, error = batch_of(classes_seen, CLASSES, [PLAIN, failed]).column("error").to_pylist()
    assert error == attrs.asdict(failed)


def test_half_a_character_is_escaped_in_rows_that_passed_too(classes_seen: ClassesSeen) -> None:
    batch = batch_of(classes_seen, CLASSES, [("\ud83d", *PLAIN[1:]), PLAIN])
    assert batch.column("text").to_pylist() == ["\\ud83d", "a"]


def test_naive_times_of_rows_that_passed_are_wall_clock_time_of_the_session() -> None:
    schema = pa.schema([("seen", pa.timestamp("us", tz="UTC"))])
    writer = RowWriter(schema, function="f", time_zone="Europe/Berlin")
    batch = batch_of(writer, schema, [(datetime(2026, 1, 1, 12),)])  # noqa: DTZ001 - see above
    assert batch.column("seen").to_pylist() == [datetime(2026, 1, 1, 11, tzinfo=UTC)]
