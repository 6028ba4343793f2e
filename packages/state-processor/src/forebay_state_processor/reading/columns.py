"""Columns of Arrow tables of state: keys, values and times, made from rows of any kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.changes import Shape
from forebay_state_processor.reading.arrow_types import (
    ArrowType,
    arrow,
    arrow_type_of,
    map_type,
    to_json,
)
from forebay_state_processor.reading.rows import us_of

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.expiry import Expiry
    from forebay_state_processor.reading.stored_states import StateInfo

ROWS: Final = 65_536
"""Rows in a record batch."""
_LAST_US: Final = us_of(datetime.max.replace(tzinfo=UTC))
"""The last moment that a `datetime` can be."""
_TAKEN: Final = re.compile(
    r"key(_\d+)?|namespace|key_group|.* (value|written|expires)", re.IGNORECASE | re.DOTALL
)
"""The names of states that an operator's table has, or could have, for other columns."""


@attrs.frozen
class Column:
    """One column: its field, and the function that makes it from rows."""

    field: pa.Field
    array: Callable[[Sequence[Any]], pa.Array]


def key_names(codec: ValueCodec | None) -> list[str]:
    """Return the names of the columns of keys: ``key``, or ``key_1`` … for several parts."""
    if codec is None or codec.description["type"] != "tuple":
        return ["key"]
    return [f"key_{at}" for at in range(1, len(codec.description["elements"]) + 1)]


@attrs.frozen
class StateColumns:
    """The columns of one state in the table of its operator."""

    value: str
    written: str
    expires: str


def state_columns(state: str) -> StateColumns:
    """Return the names of a state's columns, which no other state and no key has.

    The column of values is named like the state, but ``<state> value`` where the name is taken.
    """
    value = f"{state} value" if _TAKEN.fullmatch(state) else state
    return StateColumns(value, f"{state} written", f"{state} expires")


class KeyColumns:
    """The Arrow columns of keys, namespaces and key groups, made from lists of them."""

    def __init__(self, codec: ValueCodec | None) -> None:
        """``codec`` is the codec of keys."""
        pa = arrow()
        description: Mapping[str, Any] = {"type": "none"} if codec is None else codec.description
        self._several: Final = description["type"] == "tuple"
        parts = description["elements"] if self._several else [description]
        self._keys: Final = [
            (name, arrow_type_of(part)) for name, part in zip(key_names(codec), parts, strict=True)
        ]
        self._namespace: Final = ArrowType(pa.string(), to_json)
        self.fields: Final = [
            *(pa.field(name, kind.type) for name, kind in self._keys),
            pa.field("namespace", pa.string()),
            pa.field("key_group", pa.int32()),
        ]

    def arrays(
        self, keys: Sequence[Any], namespaces: Sequence[Any], groups: Sequence[int]
    ) -> list[pa.Array]:
        """Return the arrays of some rows."""
        pa = arrow()
        return [*self._of_keys(keys), self._namespaces(namespaces), pa.array(groups, pa.int32())]

    def arrays_in(
        self, namespace: Any, keys: Sequence[Any], groups: Sequence[int]
    ) -> list[pa.Array]:
        """Return the arrays of some rows in one namespace."""
        pa = arrow()
        text = None if namespace is None else to_json(namespace)
        namespaces = pa.repeat(pa.scalar(text, pa.string()), len(keys))
        return [*self._of_keys(keys), namespaces, pa.array(groups, pa.int32())]

    def _of_keys(self, keys: Sequence[Any]) -> Iterator[pa.Array]:
        for at, (name, kind) in enumerate(self._keys):
            part = [key[at] for key in keys] if self._several else [*keys]
            yield kind.array(part, f"column {name!r}")

    def _namespaces(self, namespaces: Sequence[Any]) -> pa.Array:
        """Return the column of namespaces; most states have the default one alone."""
        if all(one is None for one in namespaces):
            return arrow().nulls(len(namespaces), arrow().string())
        return self._namespace.array(list(namespaces), "column 'namespace'")


class RowTable:
    """Makes record batches of rows of any kind with a key, a namespace and a key group."""

    def __init__(self, codec: ValueCodec | None, columns: Sequence[Column]) -> None:
        """``columns`` follow the columns of the key, whose codec is ``codec``."""
        self._keys: Final = KeyColumns(codec)
        self._columns: Final = columns
        fields = [*self._keys.fields, *(column.field for column in columns)]
        self.schema: Final[pa.Schema] = arrow().schema(fields)

    def reader(self, rows: Iterator[Any]) -> pa.RecordBatchReader:
        """Return rows as record batches, made as they are read."""
        batches = map(self._batch, pages(rows))
        return arrow().RecordBatchReader.from_batches(self.schema, batches)

    def _batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        arrays = self._keys.arrays(
            [row.key for row in rows],
            [row.namespace for row in rows],
            [row.key_group for row in rows],
        )
        arrays += [column.array(rows) for column in self._columns]
        return arrow().RecordBatch.from_arrays(arrays, schema=self.schema)


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


def expiry_times(written: pa.Array, expiry: Expiry) -> pa.Array:
    """Return when data expire that were last accessed at ``written``, nested in the same way.

    Null: later than any `datetime`.
    """
    lib = arrow()
    if not lib.types.is_nested(written.type):
        return _expires(written, expiry)
    if lib.types.is_map(written.type):
        times = expiry_times(written.items, expiry)
        entries = [written.type.key_field, written.type.item_field]
        inner = lib.StructArray.from_arrays([written.keys, times], fields=entries)
    else:
        inner = expiry_times(written.values, expiry)
    own = written.buffers()[:2]
    return lib.Array.from_buffers(written.type, len(written), own, children=[inner])


def _expires(times: pa.Array, expiry: Expiry) -> pa.Array:
    """Return when data with these times expire; all data of one micro-batch share one time."""
    lib = arrow()
    distinct = times.cast(lib.int64()).dictionary_encode()
    ends = map(expiry.expires_us, distinct.dictionary.to_pylist())
    shown = lib.array([end if end <= _LAST_US else None for end in ends], lib.int64())
    return shown.take(distinct.indices).cast(times.type)


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
