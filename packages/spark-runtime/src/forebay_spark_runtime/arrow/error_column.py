"""The column for errors, with ``on_error="column"``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import (
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

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


def refuse_not_null(columns: Iterable[StructField], who: str) -> None:
    """Refuse output columns that cannot be null in the row of a failure."""
    strict = [field.name for field in columns if not field.nullable]
    if strict:
        raise ConfigurationError(
            f'{who}: with on_error="column" the columns of a failed row are null; declare '
            f"{', '.join(strict)} without NOT NULL"
        )


def with_error_column(columns: StructType, name: str, kind: DataType, who: str) -> StructType:
    """Return ``columns`` and the column for errors; refuse a name that is taken."""
    if name.lower() in (field.name.lower() for field in columns):
        raise ConfigurationError(
            f"{who}: the output column {name!r} is there already; choose another error_column="
        )
    return StructType([*columns, StructField(name, kind, nullable=True)])
