"""Keys of Arrow columns, in the form under which state is stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay_state_api.keys import canonical_decimal


def keys_of_columns(columns: list[list[Any]]) -> list[Any]:
    """Return the keys: bare values for one key column, tuples for several."""
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def canonical_column(column: Any, read: list[Any]) -> list[Any]:
    """Return a key column's values in the form of `canonical_key`; ``read`` are its values."""
    kind = column.type
    if pa.types.is_floating(kind):
        canonical: list[Any] = pc.add(column, pa.scalar(0.0, kind)).to_pylist()
        return canonical
    if pa.types.is_decimal(kind) and kind.scale:
        return [*map(canonical_decimal, read)]
    return read
