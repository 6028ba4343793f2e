"""Keys of a slice in columns: their one form, and their distinct values.

A key has one form whatever the width of its columns, as `forebay_state_api.keys.canonical_key`
says: equal keys are one key here and in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import canonical_decimal

INSTANTS: Final = pa.timestamp("us", "UTC")
_WALL_CLOCK: Final = pa.timestamp("us")
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = (1 - _EPOCH) * _DAY_US
_LAST_US: Final = (date.max.toordinal() - _EPOCH + 1) * _DAY_US - 1


@attrs.frozen
class DistinctKeys:
    """The distinct keys of some rows, in the order of their first rows."""

    index: Any
    """For each row the position of its key among the distinct ones; a NumPy array."""
    count: int
    first: Any
    """The position of each key's first row; a NumPy array."""


def canonical(column: pa.Array, name: str) -> pa.Array:
    """Return a key column in its one form; ``name`` is named in errors.

    Raises `ConfigurationError` for nulls, NaN, text that is not UTF-8 and times that Python cannot
    represent.
    """
    if column.null_count:
        raise _refused(name, "null", column.is_null())
    made = column.cast(key_type(column.type))
    if pa.types.is_floating(made.type):
        if pc.any(pc.is_nan(made)).as_py():
            raise _refused(name, "NaN", pc.is_nan(made))
        return pc.add(made, 0.0)  # turns -0.0 into 0.0
    is_time = pa.types.is_timestamp(made.type) or pa.types.is_date(made.type)
    return _times(made, name) if is_time else made


def key_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the canonical form of key columns of a type."""
    if pa.types.is_dictionary(kind):
        return key_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return _WALL_CLOCK if kind.tz is None else INSTANTS
    name = str(kind)
    return next((wide for is_such, wide in _WIDE if is_such(kind) or name in _VIEWS[wide]), kind)


_WIDE: Final = (
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
)
_VIEWS: Final = {wide: {f"{wide}_view"} for _, wide in _WIDE}
"""For each type, the name of its type in views, which older versions of pyarrow do not know."""


def _times(column: pa.Array, name: str) -> pa.Array:
    """Return dates or instants, all of them within the years that Python knows."""
    if pa.types.is_date32(column.type):
        numbers, first, last = column.view(pa.int32()), 1 - _EPOCH, date.max.toordinal() - _EPOCH
    else:
        numbers, first, last = column.view(pa.int64()), _FIRST_US, _LAST_US
    seen = pc.min_max(numbers)
    if len(column) and not first <= seen["min"].as_py() <= seen["max"].as_py() <= last:
        beyond = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
        raise _refused(name, "outside the years 1 to 9999", beyond)
    return column


def _refused(name: str, what: str, where: pa.Array) -> ConfigurationError:
    row = pc.index(where, True).as_py()
    return ConfigurationError(
        f"key column {name!r} is {what} in row {row} of the slice; filter such rows, or give them "
        "a key"
    )


def check_text(column: pa.Array, name: str) -> None:
    """Refuse text that is not UTF-8, which the record face could not read."""
    if not pa.types.is_string(column.type):
        return
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"key column {name!r} has text that is not UTF-8 ({error}); filter such rows, or cast "
            "the column to binary"
        ) from error


def distinct(columns: Sequence[pa.Array]) -> DistinctKeys:
    """Return the distinct keys of rows, of canonical key columns of one length."""
    first, *others = columns
    index, count = _encoded(first)
    for column in others:
        more, width = _encoded(column)
        index, count = _encoded(pa.array(index.astype(np.int64) * width + more))
    rows = len(index)
    positions = np.empty(count, np.int64)
    # The last write of a position counts, so the first row of each key comes last.
    positions[index[::-1]] = np.arange(rows - 1, -1, -1)
    return DistinctKeys(index, count, positions)


def _encoded(column: pa.Array) -> tuple[Any, int]:
    encoded = column.dictionary_encode()
    return encoded.indices.to_numpy(), len(encoded.dictionary)


def python_keys(columns: Sequence[pa.Array]) -> list[Any]:
    """Return canonical key columns as keys of the record face: bare values, or tuples."""
    read = [_python_values(column) for column in columns]
    return read[0] if len(read) == 1 else list(zip(*read, strict=True))


def _python_values(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_integer(kind):
        numbers: list[Any] = column.to_numpy().tolist()
        return numbers
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        found: list[datetime] = column.cast(_WALL_CLOCK).to_pylist()
        return [at.replace(tzinfo=UTC) for at in found]
    if pa.types.is_decimal(kind):
        return [*map(canonical_decimal, column.to_pylist())]
    values: list[Any] = column.to_pylist()
    return values
