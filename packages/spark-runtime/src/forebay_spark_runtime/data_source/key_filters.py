"""The keys that pass filters of the form ``key = …`` and ``key in (…)`` on each key column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

MOST_KEYS: Final = 10_000
"""More keys than these narrow nothing: they are in all key groups."""
_EXACT: Final = frozenset({"bool", "int", "str", "bytes", "date"})
"""The types of keys whose values in Spark are equal exactly if the keys are."""


def keys_in(filters: Sequence[Filter], key: Mapping[str, Any]) -> list[Any] | None:
    """Return the only keys that pass ``filters``; ``None`` if they cannot be derived.

    ``key`` is the description of keys. All filters must hold for a row.
    """
    if key["type"] != "tuple":
        values = _values(filters, "key", key)
        return None if values is None else sorted(values, key=repr)
    columns = [_values(filters, f"key_{at}", part) for at, part in enumerate(key["elements"], 1)]
    known = [column for column in columns if column is not None]
    if len(known) < len(columns):
        return None
    count = 1
    for column in known:
        count *= len(column)
    return None if count > MOST_KEYS else list(product(*known))


def _values(filters: Sequence[Filter], column: str, key: Mapping[str, Any]) -> set[Any] | None:
    if key["type"] not in _EXACT:
        return None
    found: set[Any] | None = None
    for one in filters:
        values = _equal_to(one, column)
        if values is not None:
            found = values if found is None else found & values
    return None if found is None or len(found) > MOST_KEYS else found


def _equal_to(one: Filter, column: str) -> set[Any] | None:
    """Return the values that a filter leaves of a column; ``None`` if it is another filter."""
    from pyspark.sql.datasource import EqualNullSafe, EqualTo, In

    if isinstance(one, EqualTo | EqualNullSafe) and one.attribute == (column,):
        return {one.value}
    if isinstance(one, In) and one.attribute == (column,):
        return set(one.value)
    return None
