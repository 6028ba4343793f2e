"""Writes output rows among which are rows for failed records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pyarrow as pa

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_spark_runtime.arrow.row_checks import PassedRows
from forebay_spark_runtime.arrow.rows_out import RowWriter


class FailedRowWriter:
    """Builds record batches whose last column is null, or the error of a failed record."""

    def __init__(self, writer: RowWriter, schema: Any) -> None:
        """``schema`` is the ``pa.Schema`` of the batches, with the column for errors."""
        self._writer = writer
        self._schema = schema
        self._nothing = (None,) * (len(schema) - 1)

    def batch(self, rows: Sequence[Any]) -> Any:
        """Return a ``pa.RecordBatch`` of `PassedRows`, or of rows and `FailedRecord`s."""
        kind = self._schema.field(len(self._nothing)).type
        error = pa.nulls(len(rows), kind)
        if isinstance(rows, PassedRows):
            columns = self._writer.columns_of_passed(rows.columns())
            return pa.RecordBatch.from_arrays([*columns, error], schema=self._schema)
        classes = set(map(type, rows))
        if FailedRecord in classes:
            failed = [row.__class__ is FailedRecord for row in rows]
            pairs = list(zip(rows, failed, strict=True))
            error = pa.array(
                [attrs.asdict(row) if is_failed else None for row, is_failed in pairs], kind
            )
            rows = [self._nothing if is_failed else row for row, is_failed in pairs]
            classes = classes - {FailedRecord} | {tuple}
        columns = self._writer.columns(rows, classes)
        return pa.RecordBatch.from_arrays([*columns, error], schema=self._schema)

    def of_columns(self, made: Any) -> Any:
        """Return a batch in the user's columns, or of `FailedRecord`s, with the other column."""
        if isinstance(made, list):
            return self.batch(made)
        error = pa.nulls(made.num_rows, self._schema.field(len(self._nothing)).type)
        return pa.RecordBatch.from_arrays([*made.columns, error], schema=self._schema)

    def batches(self, rows: Sequence[Any], size: int) -> list[Any]:
        """Return record batches of ``rows``, at most ``size`` rows each."""
        return [self.batch(rows[start : start + size]) for start in range(0, len(rows), size)]
