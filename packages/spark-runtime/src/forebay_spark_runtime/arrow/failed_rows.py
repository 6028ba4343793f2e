"""Checks the rows of one record before it ends, and writes rows among failed records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import pyarrow as pa

from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.value_tests import CLASSES, or_null, usual_tests
from forebay_state_api.engine.failed_record import FailedRecord
from forebay_state_api.engine.row_check import RowCheck


def row_check(writer: RowWriter, schema: Any) -> RowCheck:
    """Return a check that raises for rows that ``writer`` could not write.

    It runs for each record. So the test that most rows pass is compiled for the schema. All other
    rows are written to see whether they fit.
    """
    values = [f"value{position}" for position in range(len(schema))]
    columns = list(zip((field.type for field in schema), values, strict=True))
    text = _PASSES.format(
        values=", ".join(values),
        usual=" and ".join(usual_tests(columns)),
        each=" and ".join(
            or_null(kind, value, null=field.nullable)
            for field, (kind, value) in zip(schema, columns, strict=True)
        ),
    )
    names: dict[str, Any] = {**CLASSES}
    exec(text, names)  # noqa: S102 - see `value_tests`
    passes: Callable[[Any], bool] = names["passes"]

    def admit(row: Any) -> None:
        if not passes(tuple(writer.as_tuple(row))):  # it may be a dict or a NamedTuple
            writer.batch([row])

    return RowCheck(passes, admit)


_PASSES: Final = """
def passes(row):
    if row.__class__ is not tuple:
        return False
    try:
        {values}, = row
    except ValueError:
        return False
    return {usual} or {each}
"""


class FailedRowWriter:
    """Builds record batches whose last column is null, or the error of a failed record."""

    def __init__(self, writer: RowWriter, schema: Any, check: RowCheck | None = None) -> None:
        """``schema`` is the ``pa.Schema`` of the batches, with the column for errors.

        ``check`` is that of the scheduler that emits the rows: as long as all of them pass its
        test, their classes are not looked at again.
        """
        self._writer = writer
        self._schema = schema
        self._check = check
        self._nothing = (None,) * (len(schema) - 1)

    def batch(self, rows: list[Any]) -> Any:
        """Return a ``pa.RecordBatch`` of rows and `FailedRecord`s."""
        kind = self._schema.field(len(self._nothing)).type
        error = pa.nulls(len(rows), kind)
        if self._check is not None and self._check.all_passed:
            columns = [*self._writer.tested_columns(rows), error]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        classes = set(map(type, rows))
        if FailedRecord in classes:
            failed = [row.__class__ is FailedRecord for row in rows]
            pairs = list(zip(rows, failed, strict=True))
            error = pa.array(
                [attrs.asdict(row) if is_failed else None for row, is_failed in pairs], kind
            )
            rows = [self._nothing if is_failed else row for row, is_failed in pairs]
            classes = classes - {FailedRecord} | {tuple}
        columns = [*self._writer.columns(rows, classes), error]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def batches(self, rows: list[Any], size: int) -> list[Any]:
        """Return record batches of ``rows``, at most ``size`` rows each."""
        return [self.batch(rows[start : start + size]) for start in range(0, len(rows), size)]
