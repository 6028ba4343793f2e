"""Checks the rows of one record before it ends, and writes rows among failed records."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import attrs
import pyarrow as pa

from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_state_api.engine.failed_record import FailedRecord

_MIDDLE: Final = "2 <= {0}.year < 9_999"
"""True for times that fit a timestamp in every time zone."""

_FITS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], str]], ...]] = (
    (pa.types.is_string, lambda _: "{0}.__class__ is str"),
    (pa.types.is_large_string, lambda _: "{0}.__class__ is str"),
    (pa.types.is_boolean, lambda _: "{0}.__class__ is bool"),
    (pa.types.is_float64, lambda _: "{0}.__class__ is float"),
    (pa.types.is_binary, lambda _: "{0}.__class__ is bytes"),
    (
        pa.types.is_signed_integer,
        lambda kind: (
            f"{{0}}.__class__ is int and {-1 << kind.bit_width - 1} <= {{0}} "
            f"< {1 << kind.bit_width - 1}"
        ),
    ),
    (
        pa.types.is_timestamp,
        lambda kind: (
            f"{{0}}.__class__ is datetime and {_MIDDLE}"
            + ("" if kind.tz else " and {0}.tzinfo is None")
        ),
    ),
)
"""Arrow types, and for each the text of a test: true only for values that fit a column of it."""


RowCheck = Callable[[list[Any], int], object]
"""Raises `OutputSchemaError` if one of the rows from a position on does not fit."""


def row_check(writer: RowWriter, schema: Any) -> RowCheck:
    """Return a check that raises for rows that ``writer`` could not write.

    It runs for each record. So it is a function compiled for the schema, in which one expression
    lets most rows pass; only numbers are put into its text. All other rows are written to see
    whether they fit.
    """
    values = [f"value{position}" for position in range(len(schema))]
    tests = [
        f"({_value_test(field.type).format(value)} or {value} is None)"
        for value, field in zip(values, schema, strict=True)
    ]
    text = _CHECK.format(width=len(values), values=", ".join(values), fit=" and ".join(tests))
    names: dict[str, Any] = {
        "datetime": datetime,
        "try_to_write": functools.partial(_try_to_write, writer),
    }
    exec(text, names)  # noqa: S102 - see above
    check: RowCheck = names["check"]
    return check


_CHECK: Final = """
def check(rows, start):
    if len(rows) == start + 1:  # most records emit one row: neither a slice nor a loop
        row = rows[start]
        if row.__class__ is tuple and len(row) == {width}:
            {values}, = row
            if {fit}:
                return
    for row in rows[start:]:
        if row.__class__ is tuple and len(row) == {width}:
            {values}, = row
            if {fit}:
                continue
        try_to_write(row)
"""


def _try_to_write(writer: RowWriter, row: Any) -> None:
    if row.__class__ is not FailedRecord:
        writer.batch([row])


def _value_test(kind: Any) -> str:
    return next((test(kind) for is_such, test in _FITS if is_such(kind)), "False")


class FailedRowWriter:
    """Builds record batches whose last column is null, or the error of a failed record."""

    def __init__(self, writer: RowWriter, schema: Any) -> None:
        """``schema`` is the ``pa.Schema`` of the batches, with the column for errors."""
        self._writer = writer
        self._schema = schema
        self._nothing = (None,) * (len(schema) - 1)

    def batch(self, rows: list[Any]) -> Any:
        """Return a ``pa.RecordBatch`` of rows and `FailedRecord`s."""
        kind = self._schema.field(len(self._nothing)).type
        error = pa.nulls(len(rows), kind)
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
