"""Checks the rows of one record before it ends, and writes rows among failed records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class RowCheck:
    """Raises `OutputSchemaError` for rows that `RowWriter` could not write.

    One expression, compiled for the schema, lets most rows pass. All others are written to see
    whether they fit.
    """

    def __init__(self, writer: RowWriter, schema: Any) -> None:
        self._writer = writer
        self._fits = _test_of(schema)

    def __call__(self, rows: Sequence[Any], start: int) -> None:
        """Check the rows from ``start`` on; failed records are passed over."""
        fits = self._fits
        for position in range(start, len(rows)):
            row = rows[position]
            if not fits(row) and row.__class__ is not FailedRecord:
                self._writer.batch([row])


def _test_of(schema: Any) -> Callable[[Any], bool]:
    """Compile a test that is true only for tuples that fit; only numbers are put into its text."""
    columns = [
        f" and ({_value_test(field.type).format(f'row[{position}]')} or row[{position}] is None)"
        for position, field in enumerate(schema)
    ]
    text = f"row.__class__ is tuple and len(row) == {len(schema)}{''.join(columns)}"
    test: Callable[[Any], bool] = eval(f"lambda row: {text}", {"datetime": datetime})  # noqa: S307 - see above
    return test


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
        errors: list[Any] = [None] * len(rows)
        if FailedRecord in set(map(type, rows)):
            rows = list(rows)
            for position, row in enumerate(rows):
                if row.__class__ is FailedRecord:
                    errors[position] = attrs.asdict(row)
                    rows[position] = self._nothing
        error = pa.array(errors, type=self._schema.field(len(self._nothing)).type)
        columns = [*self._writer.batch(rows).columns, error]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def batches(self, rows: list[Any], size: int) -> list[Any]:
        """Return record batches of ``rows``, at most ``size`` rows each."""
        return [self.batch(rows[start : start + size]) for start in range(0, len(rows), size)]
