"""Rows of functions: the classes of input rows, and checks of emitted rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import isawaitable
from types import CoroutineType
from typing import Any

from forebay_state_api.codecs.field_names import as_python, spelled_otherwise
from forebay_state_api.codecs.structs import tuple_class
from forebay_state_api.errors import OutputSchemaError
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.job.states import State


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> Any:
    """Return a NamedTuple class with a field for each column; ``_fields`` are the columns' names.

    Like Spark's it also supports ``row["name"]``, for any name, ``"name" in row`` and
    ``row.asDict()``.
    """
    made = tuple_class("Row", names)
    made.__getitem__ = _item
    made.__getattr__ = _missing
    made.__contains__ = lambda row, name: name in row._fields
    if "asDict" not in names:
        made.asDict = _as_dict
    return made


def _item(row: Any, which: Any) -> Any:
    """Return a column by its name, or a tuple's item for a position or slice."""
    if not isinstance(which, str):
        return tuple.__getitem__(row, which)
    if which not in row._fields:
        alike = spelled_otherwise(which, row._fields)
        raise KeyError(
            f"there is no column {which!r}; the columns are {', '.join(row._fields)}{alike}"
        )
    return tuple.__getitem__(row, row._fields.index(which))


def _missing(row: Any, name: str) -> Any:
    same = [one for one in row._fields if as_python(one) == name]
    if same:
        raise AttributeError(
            f"columns {', '.join(map(repr, same))} are one name to Python, {name!r}: read "
            f"row[{same[0]!r}]",
            name=name,
            obj=row,
        )
    raise AttributeError(
        f"there is no column {name!r}; the columns are {', '.join(row._fields)}", name=name, obj=row
    )


def _as_dict(row: Any, recursive: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as Spark's
    """Return the columns by name; with ``recursive`` also structs in them."""
    pairs = zip(row._fields, row, strict=True)
    return {name: _plain(value) if recursive else value for name, value in pairs}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return _as_dict(value, recursive=True)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def check_rows(rows: Iterable[Any], function: str) -> None:
    """Refuse values that are not rows, and rows that no column could hold; for lack of a schema."""
    for row in rows:
        if not isinstance(row, (tuple, Mapping)):
            check_awaited(row, function)
            raise OutputSchemaError(
                f"{function} emitted {type(row).__name__} {row!r:.200}; a row is a tuple, a "
                "NamedTuple, a Row or a dict"
            )
        check_awaited(row, function)
        for value in _flat(row):
            if isinstance(value, (State, StateIterator)):
                raise OutputSchemaError(
                    f"{function} emitted {value!r:.100} in a row; emit its content instead"
                )


def _flat(value: Any) -> Iterator[Any]:
    """Yield the values of a row, including those in its lists, tuples and dicts, each once."""
    left = [value]
    entered: set[int] = set()  # a list may contain itself
    while left:
        one = left.pop()
        if not isinstance(one, (tuple, list, Mapping)):
            yield one
        elif id(one) not in entered:
            entered.add(id(one))
            left.extend(one.values() if isinstance(one, Mapping) else one)


def check_awaited(emitted: Any, where: str) -> None:
    """Raise `OutputSchemaError` if a row, or a value of one, has something to be awaited in it."""
    for value in _flat(emitted):
        if isinstance(value, StateFuture):
            raise OutputSchemaError(
                f"{where} emitted a StateFuture that was not awaited: `await state.async_value()`, "
                "or emit the row in a callback of then_accept"
            )
        if isawaitable(value):
            kind, name = type(value).__name__, getattr(value, "__qualname__", "")
            if isinstance(value, CoroutineType):
                value.close()
            advice = f"write `await {name}(...)`" if name else "await it"
            raise OutputSchemaError(
                f"{where} emitted a {kind} that was not awaited: {advice}, and emit the result"
            )
