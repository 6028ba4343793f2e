"""Rows and failed records are written as batches with a column for errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import attrs
import pyarrow as pa
import pytest

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_spark_runtime.arrow.described_rows import DescribedRowWriter
from forebay_spark_runtime.arrow.describing_columns import FAILED_RECORD
from forebay_spark_runtime.arrow.row_checks import RowTests
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.spark_types import arrow_schema

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

    def columns(self, rows: Sequence[Any], classes: set[type]) -> list[Any]:
        self.looked += 1
        return super().columns(rows, classes)


@pytest.fixture
def classes_seen() -> ClassesSeen:
    return ClassesSeen(CLASSES, function="f", time_zone="UTC")


def batch_of(writer: RowWriter, schema: Any, rows: list[Any]) -> Any:
    """Check each row as its record ends, and return the one batch of all."""
    tests = RowTests(writer, schema)
    for row in rows:
        if isinstance(row, FailedRecord):
            tests.add_unchecked([row])
        elif not tests.add_usual([row]):
            tests.add([row])
    errors = pa.schema([*schema, ("error", pa.struct(list(ERROR)))])
    (batch,) = DescribedRowWriter(writer, errors).batches(tests.take(), 100)
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
