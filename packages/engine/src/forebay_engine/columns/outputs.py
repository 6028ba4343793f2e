"""The output of a batch function as batches of Arrow in the declared schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.columns.arrays import as_array
from forebay_engine.columns.rows import Rows
from forebay_state_api.errors import OutputSchemaError

TAKEN: Final = (
    "a dict of arrays, rows, a RecordBatch or Table of Arrow, a DataFrame of pandas or Polars, or "
    "None"
)
"""The results that a batch function may return, for errors."""


class Output:
    """Makes batches of one schema of what a batch function returns."""

    def __init__(
        self,
        schema: pa.Schema | None,
        function: str,
        *,
        types: Sequence[str] | None = None,
        assume_zone: Callable[[pa.Array], pa.Array] | None = None,
    ) -> None:
        """Prepare the output.

        :param schema: the declared columns; ``None`` takes any.
        :param function: the function's name, for errors.
        :param types: the names of the columns' types in errors; Arrow's names by default.
        :param assume_zone: makes instants of timestamps without a zone; by default they are in UTC.
        """
        self._schema = schema
        self._function = function
        self._types = types or ([] if schema is None else list(map(str, schema.types)))
        self._assume_zone = assume_zone or (lambda column: pc.assume_timezone(column, "UTC"))

    def batches(self, returned: Any, method: str) -> list[pa.RecordBatch]:
        """Return the batches of what ``method`` returned; none without rows.

        Raises `OutputSchemaError` that names the column and the first row that do not fit, and
        `TypeError` for what has no columns.
        """
        made = self._batches(returned, method)
        return [self._fitted(batch) for batch in made if batch.num_rows]

    def _batches(self, returned: Any, method: str) -> Iterator[pa.RecordBatch]:
        if returned is None:
            return
        if isinstance(returned, Rows):
            yield returned.to_arrow()
        elif isinstance(returned, pa.RecordBatch):
            yield returned
        elif isinstance(returned, Mapping):
            yield self._of_arrays(returned)
        elif inspect.isgenerator(returned) or inspect.isawaitable(returned):
            _close(returned)
            raise TypeError(
                f"{self._function}.{method} is a plain method: it neither awaits nor yields. "
                f"Return {TAKEN}"
            )
        else:
            yield from _table(returned, f"{self._function}.{method}").to_batches()

    def _of_arrays(self, returned: Mapping[str, Any]) -> pa.RecordBatch:
        arrays = {
            name: as_array(values, f"column {name!r} of the output")
            for name, values in returned.items()
        }
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise OutputSchemaError(
                f"{self._function} returned columns of several lengths: {shown}"
            )
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the declared schema."""
        if self._schema is None:
            return batch
        if batch.schema.equals(self._schema):
            return self._without_nulls(batch)
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._check_names(batch.schema.names)
        columns = [
            self._cast(given[field.name], field, kind)
            for field, kind in zip(self._schema, self._types, strict=True)
        ]
        return self._without_nulls(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _check_names(self, names: Sequence[str]) -> None:
        assert self._schema is not None
        declared = self._schema.names
        if len(names) == len(declared) and set(names) == set(declared):
            return
        missing = [name for name in declared if name not in names]
        unknown = [name for name in names if name not in declared]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise OutputSchemaError(
            f"{self._function} returned the columns {', '.join(names)}; the schema's columns are "
            f"{', '.join(declared)}: missing {missing or 'none'}, unknown {unknown or 'none'}"
            + (f", twice {twice}" if twice else "")
        )

    def _cast(self, column: pa.Array, field: pa.Field, declared: str) -> pa.Array:
        if column.type == field.type:
            return column
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        reason = _refusal(column.type, field.type)
        if reason is not None:
            self._misfit(column, field, declared, 0, reason)
        try:
            return self._cast_safely(column, field.type)
        except (pa.ArrowException, OverflowError) as error:
            row = _first_wrong(column, lambda part: self._cast_safely(part, field.type))
            self._misfit(column, field, declared, row, str(error))

    def _cast_safely(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        if _is_naive(column.type) and pa.types.is_timestamp(kind) and kind.tz is not None:
            column = self._assume_zone(column.cast(pa.timestamp("us")))
        if pa.types.is_float32(kind) and pa.types.is_float64(column.type):
            narrow = column.cast(kind)
            if (pc.sum(pc.is_inf(narrow)).as_py() or 0) > (pc.sum(pc.is_inf(column)).as_py() or 0):
                raise OverflowError("too large a number for a float")
            return narrow
        if pa.types.is_decimal(column.type) and pa.types.is_integer(kind):
            return _whole(column).cast(kind)
        return column.cast(kind)

    def _misfit(
        self, column: pa.Array, field: pa.Field, declared: str, row: int, reason: str
    ) -> NoReturn:
        value = _shown(column, row)
        raise OutputSchemaError(
            f"column {field.name!r} is declared {declared}; {self._function} gave {column.type} "
            f"{value} in row {row} of its output: {reason.splitlines()[0]}"
        )

    def _without_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch after a look at its columns that are NOT NULL."""
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                row = pc.index(column.is_null(), True).as_py()
                raise OutputSchemaError(
                    f"column {field.name!r} is declared NOT NULL; {self._function} gave null in "
                    f"row {row} of its output"
                )
        return batch


def _table(returned: Any, who: str) -> pa.Table:
    """Return a table of Arrow of a frame of any library."""
    if isinstance(returned, pa.Table):
        return returned
    if hasattr(returned, "iloc") and hasattr(returned, "columns"):  # a DataFrame of pandas
        return pa.Table.from_pandas(returned, preserve_index=False)
    if hasattr(returned, "__arrow_c_stream__"):
        return pa.table(returned)
    if hasattr(returned, "__arrow_c_array__"):
        return pa.table(pa.record_batch(returned))
    raise TypeError(f"{who} returned {type(returned).__name__} {returned!r:.100}; it takes {TAKEN}")


def _close(returned: Any) -> None:
    close = getattr(returned, "close", None)
    if close is not None:
        close()


def _is_naive(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind)) or str(kind) == (
        "string_view"
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or str(kind) == (
        "binary_view"
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


_FAMILIES: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    _is_number,
    _is_text,
    _is_bytes,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_time,
)
"""Types of one family are cast to each other, as far as no value is lost."""


def _refusal(given: pa.DataType, wanted: pa.DataType) -> str | None:
    """Return the reason why no value of a type is cast to another one; ``None`` if it may be."""
    if pa.types.is_null(given) or given == wanted:
        return None
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        if given.tz is not None and wanted.tz is None:
            return "a timestamp without time zone takes timestamps without a zone"
        return None
    if any(family(given) and family(wanted) for family in _FAMILIES):
        return None
    for is_such, refused in _NESTED:
        if is_such(given) and is_such(wanted):
            return refused(given, wanted)
    return f"{given} is not cast to {wanted}; cast it in the function"


def _refused_element(given: pa.DataType, wanted: pa.DataType) -> str | None:
    return _refusal(given.value_type, wanted.value_type)


def _refused_entry(given: pa.DataType, wanted: pa.DataType) -> str | None:
    of_keys = _refusal(given.key_type, wanted.key_type)
    return of_keys or _refusal(given.item_type, wanted.item_type)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _refused_field(given: pa.DataType, wanted: pa.DataType) -> str | None:
    ours, theirs = [field.name for field in wanted], [field.name for field in given]
    if ours != theirs:
        return f"a struct of {', '.join(ours)} is declared, and one of {', '.join(theirs)} given"
    pairs = zip(given, wanted, strict=True)
    return next((why for one, other in pairs if (why := _refusal(one.type, other.type))), None)


_NESTED: Final = (
    (_is_list, _refused_element),
    (pa.types.is_map, _refused_entry),
    (pa.types.is_struct, _refused_field),
)


def _whole(column: pa.Array) -> pa.Array:
    """Return decimals without digits after the point; raises for others."""
    return column.cast(pa.decimal128(38, 0))


def _first_wrong(column: pa.Array, cast: Callable[[pa.Array], Any]) -> int:
    """Return the position of the first value that ``cast`` refuses; one of them is refused."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            cast(column.slice(low, middle - low))
        except (pa.ArrowException, OverflowError):
            high = middle
        else:
            low = middle
    return low


def _shown(column: pa.Array, row: int) -> str:
    return " ".join(str(column.slice(row, 1)).split())[:100]
