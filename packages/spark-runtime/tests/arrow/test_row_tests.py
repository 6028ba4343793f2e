"""Rows are tested before their record ends: what passes can be written, and little is written."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from forebay_spark_runtime.arrow.row_checks import PassedRows, RowTests
from forebay_spark_runtime.arrow.rows_out import RowWriter
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
    rows = [FITTING, nothing, with_value("count", -(2**15) + 1), with_value("share", None)]
    tests = RowTests(writer, SCHEMA)
    tests.add(rows)
    assert tests.add_usual([FITTING])
    taken = tests.take()
    assert isinstance(taken, PassedRows)
    assert (writer.written, [*taken]) == (0, [*rows, FITTING])


@pytest.mark.parametrize("row", [Named(*FITTING), Named(*FITTING)._asdict()])
def test_rows_with_names_are_not_written_either(writer: CountingWriter, row: Any) -> None:
    tests = RowTests(writer, SCHEMA)
    tests.add([row])
    assert (writer.written, tests.take()) == (0, [row])


def test_the_least_number_is_written_and_fits(writer: CountingWriter) -> None:
    tests = RowTests(writer, SCHEMA)
    tests.add(rows := [with_value("count", -(2**15))])
    assert (writer.written, tests.take()) == (1, rows)


@pytest.mark.parametrize("row", ["abcdef", dict.fromkeys(SCHEMA.names), Named(*FITTING), None])
def test_only_tuples_of_the_width_pass(writer: CountingWriter, row: Any) -> None:
    tests = RowTests(writer, SCHEMA)
    for other in (row, FITTING[:-1], (*FITTING, None)):
        assert not tests.passes(other)
        assert not tests.add_usual([other])
    assert len(tests) == 0


def test_rows_keep_their_order_from_the_first_that_does_not_pass_on(
    writer: CountingWriter,
) -> None:
    tests = RowTests(writer, SCHEMA)
    other = Named(*FITTING)
    one, two = (with_value("name", name) for name in "12")
    assert tests.add_usual([one])
    assert not tests.add_usual([other])
    tests.add([other])
    assert tests.add_usual([two])
    tests.add([one, two])
    assert len(tests) == 5
    assert tests.take() == [one, other, two, one, two]
    assert tests.add_usual([one])  # tested rows again
    assert isinstance(tests.take(), PassedRows)


def test_a_record_without_rows_adds_none(writer: CountingWriter) -> None:
    tests = RowTests(writer, SCHEMA)
    assert tests.add_usual([FITTING])
    assert tests.add_usual([])
    tests.add([])
    tests.add_unchecked([])
    taken = tests.take()
    assert isinstance(taken, PassedRows)
    assert [*taken] == [FITTING]


def test_several_rows_are_for_add(writer: CountingWriter) -> None:
    tests = RowTests(writer, SCHEMA)
    assert not tests.add_usual([FITTING, FITTING])
    assert len(tests) == 0


def test_slices_of_tested_rows_are_those_of_their_rows() -> None:
    rows = [(number, str(number)) for number in range(5)]
    tested = PassedRows([value for row in rows for value in row], 2)
    assert [tested[place] for place in (0, 4, -1)] == [rows[0], rows[4], rows[-1]]
    for place in (slice(0, 2), slice(2, 9), slice(5, 6), slice(None)):
        assert [*tested[place]] == rows[place]
    with pytest.raises(ValueError, match="step of 1"):
        tested[::2]


def test_rows_of_one_column_are_checked() -> None:
    tests = RowTests(RowWriter(SCHEMA_OF_ONE, function="f", time_zone="UTC"), SCHEMA_OF_ONE)
    tests.add(rows := [(1,), (None,)])
    for emitted in ([("a",)], [(1,), (1, 2)], [(1, 2)]):
        with pytest.raises(OutputSchemaError):
            tests.add(emitted)
    assert [*tests.take()] == rows


def test_a_null_needs_a_column_that_takes_it_whatever_its_type() -> None:
    kind = pa.time64("us")
    schema = pa.schema([pa.field("at", kind, nullable=False), pa.field("until", kind)])
    tests = RowTests(RowWriter(schema, function="f", time_zone="UTC"), schema)
    tests.check([(time(1), None), (time(1), time(2))])
    with pytest.raises(OutputSchemaError, match="'at'"):
        tests.check([(None, None)])


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
    RowTests(writer, SCHEMA).check([row])
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
    tests = RowTests(writer, SCHEMA)
    tests.add([FITTING])
    bad = with_value(column, value)
    try:
        writer.batch([bad])
    except OutputSchemaError:
        for emitted in ([bad], [FITTING, bad], [bad, FITTING]):
            with pytest.raises(OutputSchemaError, match=column):
                tests.check(emitted)
            with pytest.raises(OutputSchemaError, match=column):
                tests.add(emitted)
        assert [*tests.take()] == [FITTING]
    else:
        pytest.fail(f"{value!r} is no misfit")
