"""The columns that describe failed records and late rows: their types, and where they fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from pyspark.sql.types import (
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from forebay_engine.execution.late_rows import COLUMN, LATE_COLUMN, LateRow
from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api.errors import ConfigurationError

FAILED_RECORD: Final = StructType(
    [
        StructField("type", StringType()),
        StructField("message", StringType()),
        StructField("method", StringType()),
        StructField("key", StringType()),
        StructField("row", StringType()),
        StructField("timer", TimestampType()),
        StructField("line", StringType()),
    ]
)
"""The type of a keyed operator's error column; the fields of `FailedRecord`."""


LATE_ROW: Final = StructType(
    [
        StructField("row", StringType()),
        StructField("input", IntegerType()),
        StructField("watermark", TimestampType()),
    ]
)
"""The type of the column for late rows; the fields of `LateRow`."""

Describing: TypeAlias = tuple[StructType, tuple[type, ...]]
"""An output schema, and the class that each of its last columns describes."""


def with_describing_columns(
    columns: StructType, error_column: str | None, late: str, who: str
) -> Describing:
    """Return ``columns`` and those for errors and for late rows.

    ``error_column`` is ``None`` without errors, and ``late`` one of `late_rows.LATE`. Raises
    `ConfigurationError` for columns that cannot be null, and for a name that is taken.
    """
    classes: tuple[type, ...] = ()
    made = columns
    if error_column is not None:
        refuse_not_null(columns, who)
        made, classes = with_error_column(made, error_column, FAILED_RECORD, who), (FailedRecord,)
    if late == COLUMN:
        refuse_not_null(columns, who, 'late="column"', "late")
        cure = "the column for late rows has that name: rename the other one"
        made = _with_column(made, LATE_COLUMN, LATE_ROW, cure, who)
        classes = (*classes, LateRow)
    return made, classes


def refuse_not_null(
    columns: Iterable[StructField],
    who: str,
    option: str = 'on_error="column"',
    what: str = "failed",
) -> None:
    """Refuse output columns that cannot be null in the row of a failure, or of a late row."""
    strict = [field.name for field in columns if not field.nullable]
    if strict:
        raise ConfigurationError(
            f"{who}: with {option} the columns of a {what} row are null; declare "
            f"{', '.join(strict)} without NOT NULL"
        )


def with_error_column(columns: StructType, name: str, kind: DataType, who: str) -> StructType:
    """Return ``columns`` and the column for errors; refuse a name that is taken."""
    return _with_column(columns, name, kind, "choose another error_column=", who)


def _with_column(columns: StructType, name: str, kind: DataType, cure: str, who: str) -> StructType:
    if name.lower() in (field.name.lower() for field in columns):
        raise ConfigurationError(f"{who}: the output column {name!r} is there already; {cure}")
    return StructType([*columns, StructField(name, kind, nullable=True)])
