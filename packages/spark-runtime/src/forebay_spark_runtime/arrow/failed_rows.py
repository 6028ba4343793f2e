"""Checks the rows of one record before it ends, and writes rows among failed records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_state_api.engine.failed_record import FailedRecord

_MIDDLE: Final = range(2, 9_999)
"""Years in which a time fits a timestamp in every time zone."""

_FITS: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (pa.types.is_string, "str"),
    (pa.types.is_large_string, "str"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_float64, "float"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_timestamp, "datetime"),
)
"""Arrow types, and the name of the Python class whose values fit; of times most do."""


class RowCheck:
    """Raises `OutputSchemaError` for rows that `RowWriter` could not write.

    A row is written once for each combination of its values' classes. Where that says enough, later
    rows of the same classes are only looked at; all others are written to see whether they fit.
    """

    def __init__(self, writer: RowWriter, schema: Any) -> None:
        self._writer = writer
        self._kinds = [field.type for field in schema]
        self._known: dict[tuple[type, ...], _Limits] = {}

    def __call__(self, rows: Sequence[Any], start: int) -> None:
        """Check the rows from ``start`` on; failed records are passed over."""
        known = self._known
        for position in range(start, len(rows)):
            row = rows[position]
            if row.__class__ is tuple:
                limits = known.get(tuple(map(type, row)))
                if limits is not None:
                    for place, smallest, largest in limits.numbers:
                        if not smallest <= row[place] <= largest:
                            break
                    else:
                        if not limits.times or limits.hold(row):
                            continue
            elif row.__class__ is FailedRecord:
                continue
            self._writer.batch([row])
            if row.__class__ is tuple:
                self._learn(row)

    def _learn(self, row: tuple[Any, ...]) -> None:
        numbers, times = [], []
        for position, (kind, value) in enumerate(zip(self._kinds, row, strict=True)):
            if type(value) is int and pa.types.is_signed_integer(kind):
                largest = (1 << kind.bit_width - 1) - 1
                numbers.append((position, -largest - 1, largest))
            elif value is not None:
                name = type(value).__name__
                if not any(is_such(kind) and name == fits for is_such, fits in _FITS):
                    return
                if name == "datetime":
                    times.append(position)
        self._known[tuple(map(type, row))] = _Limits(tuple(numbers), tuple(times))


@attrs.frozen(slots=True)
class _Limits:
    numbers: tuple[tuple[int, int, int], ...]
    """(position, smallest, largest) of whole numbers."""
    times: tuple[int, ...]
    """Positions of times."""

    def hold(self, row: tuple[Any, ...]) -> bool:
        """Return whether the row's times fit."""
        return all(row[position].year in _MIDDLE for position in self.times)


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
        if any(row.__class__ is FailedRecord for row in rows):
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
