"""Rows are checked before their record ends: what passes can be written, and little is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from forebay_spark_runtime.arrow.failed_rows import row_check
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


def test_rows_of_plain_values_pass_without_being_written(writer: CountingWriter) -> None:
    nothing = (None,) * len(SCHEMA)
    row_check(writer, SCHEMA)([FITTING, nothing, with_value("count", -(2**15))], 0)
    assert writer.written == 0


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


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tags", ["x"]),
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
