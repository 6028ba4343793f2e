"""Columns of Arrow tables of state: keys, values and times, made from rows of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.changes import Shape
from forebay_state_api.reading.arrow_types import (
    ArrowType,
    arrow,
    arrow_type_of,
    map_type,
    to_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.reading.stored_states import StateInfo

ROWS: Final = 65_536
"""Rows in a record batch."""


@attrs.frozen
class Column:
    """One column: its field, and the function that makes it from rows."""

    field: pa.Field
    array: Callable[[Sequence[Any]], pa.Array]


def key_columns(codec: ValueCodec | None) -> Iterator[Column]:
    """Yield the columns of keys, namespaces and key groups; ``codec`` is that of keys."""
    pa = arrow()
    description: Mapping[str, Any] = {"type": "none"} if codec is None else codec.description
    if description["type"] == "tuple":
        for at, part in enumerate(description["elements"]):
            yield column_of(f"key_{at + 1}", arrow_type_of(part), partial(_key_part, at))
    else:
        yield column_of("key", arrow_type_of(description), lambda row: row.key)
    text = ArrowType(pa.string(), to_json)
    yield column_of("namespace", text, lambda row: row.namespace)
    yield column_of("key_group", ArrowType(pa.int32(), None), lambda row: row.key_group)


def _key_part(at: int, row: Any) -> Any:
    return row.key[at]


def column_of(name: str, kind: ArrowType, value: Callable[[Any], Any]) -> Column:
    """Return a column whose values ``value`` takes from rows."""
    field = arrow().field(name, kind.type)
    return Column(field, lambda rows: kind.array([value(row) for row in rows], f"column {name!r}"))


def types_of(info: StateInfo) -> tuple[ArrowType, ArrowType | None]:
    """Return the types of a value, element or map value, and of user keys."""
    user_key = info.spec.user_key
    of_user_key = None if user_key is None else arrow_type_of(user_key.description)
    return arrow_type_of(info.spec.value.description), of_user_key


def nested_types(info: StateInfo) -> tuple[ArrowType, ArrowType]:
    """Return the types of a state's nested content, and of its times of last access."""
    pa = arrow()
    value, user_key = types_of(info)
    times = ArrowType(pa.timestamp("us", "UTC"), None)
    if user_key is not None:
        return map_type(user_key, value), map_type(user_key, times)
    if info.shape is Shape.POINT:
        return value, times
    convert = value.convert
    each = None
    if convert is not None:
        each = lambda values: [None if one is None else convert(one) for one in values]  # noqa: E731
    return ArrowType(pa.list_(value.type), each), ArrowType(pa.list_(times.type), None)


def pages(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Split rows into lists of at most `ROWS`."""
    page: list[Any] = []
    for row in rows:
        page.append(row)
        if len(page) == ROWS:
            yield page
            page = []
    if page:
        yield page
