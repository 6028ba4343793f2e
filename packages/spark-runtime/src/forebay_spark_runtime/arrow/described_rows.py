"""Writes output rows among which are rows that describe failed records, or late rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_spark_runtime.arrow.row_checks import PassedRows
from forebay_spark_runtime.arrow.rows_out import RowWriter


class DescribedRowWriter:
    """Builds record batches whose last columns are null, but for the rows that they describe."""

    def __init__(
        self, writer: RowWriter, schema: Any, classes: Sequence[type] = (FailedRecord,)
    ) -> None:
        """``schema`` is the ``pa.Schema`` of the batches.

        Its last columns are structs with the fields of ``classes``, one for each.
        """
        self._writer = writer
        self._schema = schema
        self._classes: Final = tuple(classes)
        self._kinds = schema.types[len(schema) - len(classes) :]
        self._nothing = (None,) * (len(schema) - len(classes))

    def batch(self, rows: Sequence[Any]) -> Any:
        """Return a ``pa.RecordBatch`` of `PassedRows`, or of rows and objects of the classes."""
        if isinstance(rows, PassedRows):
            return self._with_nulls(self._writer.columns_of_passed(rows.columns()), len(rows))
        classes = set(map(type, rows))
        if classes.isdisjoint(self._classes):
            return self._with_nulls(self._writer.columns(rows, classes), len(rows))
        described = [
            pa.array([_fields(row) if row.__class__ is one else None for row in rows], kind)
            for one, kind in zip(self._classes, self._kinds, strict=True)
        ]
        rows = [self._nothing if row.__class__ in self._classes else row for row in rows]
        columns = self._writer.columns(rows, classes - {*self._classes} | {tuple})
        return pa.RecordBatch.from_arrays([*columns, *described], schema=self._schema)

    def of_columns(self, made: Any) -> Any:
        """Return a batch of one in the user's columns, or of a list that `batch` takes."""
        if isinstance(made, list):
            return self.batch(made)
        return self._with_nulls(made.columns, made.num_rows)

    def _with_nulls(self, columns: Sequence[Any], length: int) -> Any:
        nulls = [pa.nulls(length, kind) for kind in self._kinds]
        return pa.RecordBatch.from_arrays([*columns, *nulls], schema=self._schema)

    def batches(self, rows: Sequence[Any], size: int) -> list[Any]:
        """Return record batches of ``rows``, at most ``size`` rows each."""
        return [self.batch(rows[start : start + size]) for start in range(0, len(rows), size)]


def _fields(row: Any) -> dict[str, Any]:
    return attrs.asdict(row)
