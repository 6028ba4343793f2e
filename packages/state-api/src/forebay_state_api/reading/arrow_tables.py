"""State as Arrow: a table per state, and one per operator.

The table of a state has the columns ``key`` (``key_1``, ``key_2`` … for several key columns),
``namespace`` (JSON; null is the default namespace), ``key_group`` and ``value``; with a TTL also
``written`` and ``expires``. Lists and maps are nested; flattened, each element has a row with its
``position``, each entry a row with its ``user_key``.

The table of an operator has a row per key and namespace, and a column per state, named like it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.changes import Changes, Shape
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.reading.arrow_types import ArrowType, arrow, arrow_type_of, to_json
from forebay_state_api.reading.columns import (
    ROWS,
    Column,
    column_of,
    key_columns,
    nested_types,
    pages,
    types_of,
)
from forebay_state_api.reading.rows import StateRow

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.reading.stored_states import StateInfo
    from forebay_state_api.reading.version_content import VersionContent

JOIN_BYTES: Final = 256 << 20
"""The stored bytes of key groups that are joined in memory at a time, by default."""


def state_reader(
    content: VersionContent,
    state: str,
    *,
    flat: bool = False,
    key_groups: KeyGroupRange | None = None,
) -> pa.RecordBatchReader:
    """Return the table of one state; ``flat`` gives lists and maps a row per element or entry."""
    pa = arrow()
    info = content.state(state)
    flat = flat and info.shape is not Shape.POINT
    columns = [*key_columns(content.key_codec), *_value_columns(info, flat=flat)]
    maker = content.row_maker(info)
    schema = pa.schema([column.field for column in columns])
    batches = _fast_points(content, info, schema, key_groups)
    if batches is None:
        exported = content.exported(info, key_groups)
        rows: Iterator[Any] = (row for changes in exported for row in maker.rows(changes))
        if flat:
            rows = (one for row in rows for one in _flattened(row))
        batches = (
            pa.RecordBatch.from_arrays([column.array(page) for column in columns], schema=schema)
            for page in pages(rows)
        )
    return pa.RecordBatchReader.from_batches(schema, batches)


def operator_reader(
    content: VersionContent,
    *,
    states: Sequence[str] | None = None,
    key_groups: KeyGroupRange | None = None,
    join_bytes: int = JOIN_BYTES,
) -> pa.RecordBatchReader:
    """Return the table of the operator: a row per key and namespace, a column per state.

    ``states`` are the columns, by default all; a state with TTL has a second column, ``<state>
    written``. Key groups are joined in memory, as many at a time as have ``join_bytes`` stored.
    """
    lib = arrow()
    infos = [content.state(name) for name in (content.states if states is None else states)]
    columns = [*key_columns(content.key_codec)]
    columns += [column for info in infos for column in _state_columns(info)]
    schema = lib.schema([column.field for column in columns])

    def batches() -> Iterator[pa.RecordBatch]:
        for part in joined_parts(content, key_groups, join_bytes):
            for page in pages(_joined(content, infos, part)):
                arrays = [column.array(page) for column in columns]
                yield lib.RecordBatch.from_arrays(arrays, schema=schema)

    return lib.RecordBatchReader.from_batches(schema, batches())


def _value_columns(info: StateInfo, *, flat: bool) -> Iterator[Column]:
    pa = arrow()
    nested, times = nested_types(info)
    value, user_key = types_of(info)
    if flat:
        nested, times = value, ArrowType(pa.timestamp("us", "UTC"), None)
        if user_key is None:
            yield column_of("position", ArrowType(pa.int64(), None), lambda row: row.position)
        else:
            yield column_of("user_key", user_key, lambda row: row.user_key)
    yield column_of("value", nested, lambda row: row.value)
    if info.has_ttl:
        yield column_of("written", times, lambda row: row.written)
        if info.ttl is not None and (flat or info.shape is Shape.POINT):
            yield column_of("expires", times, lambda row: row.written + info.ttl)


def _state_columns(info: StateInfo) -> Iterator[Column]:
    nested, times = nested_types(info)
    name = info.name
    yield column_of(name, nested, lambda row: _part(row, name, "value"))
    if info.has_ttl:
        yield column_of(f"{name} written", times, lambda row: _part(row, name, "written"))


def _part(row: _JoinedRow, name: str, part: str) -> Any:
    found = row.states.get(name)
    return None if found is None else getattr(found, part)


@attrs.frozen
class _FlatRow:
    key: Any
    namespace: Any
    key_group: int
    position: int
    user_key: Any
    value: Any
    written: Any


def _flattened(row: StateRow) -> Iterator[_FlatRow]:
    """Yield a row for each element or entry."""
    where = (row.key, row.namespace, row.key_group)
    is_map = isinstance(row.value, dict)
    entries = row.value.items() if is_map else enumerate(row.value)
    for position, (name, value) in enumerate(entries):
        written = None if row.written is None else row.written[name]
        yield _FlatRow(*where, position, name if is_map else None, value, written)


@attrs.frozen
class _JoinedRow:
    key: Any
    namespace: Any
    key_group: int
    states: dict[str, StateRow]


def _joined(
    content: VersionContent, infos: Sequence[StateInfo], part: KeyGroupRange
) -> Iterator[_JoinedRow]:
    """Join all states of some key groups, in memory."""
    address = None if content.key_codec is None else content.key_codec.address
    found: dict[Any, _JoinedRow] = {}
    with content.opened.scanning(part) as backend:
        for info in infos:
            maker = content.row_maker(info)
            for changes in backend.table(info.spec).export(ROWS):
                for row in maker.rows(changes):
                    at = (row.key if address is None else address(row.key), row.namespace)
                    if at not in found:
                        found[at] = _JoinedRow(row.key, row.namespace, row.key_group, {})
                    found[at].states[info.name] = row
    yield from found.values()


def joined_parts(
    content: VersionContent, key_groups: KeyGroupRange | None, join_bytes: int
) -> Iterator[KeyGroupRange]:
    """Split key groups so that each part has about ``join_bytes`` stored."""
    every = key_groups or KeyGroupRange(0, content.max_parallelism - 1)
    per_group = content.bytes / content.max_parallelism
    size = max(1, int(join_bytes / max(per_group, 1)))
    for part in content.opened.parts(every):
        for start in range(part.start, part.end + 1, size):
            yield KeyGroupRange(start, min(part.end, start + size - 1))


def _fast_points(
    content: VersionContent, info: StateInfo, schema: pa.Schema, key_groups: KeyGroupRange | None
) -> Iterator[pa.RecordBatch] | None:
    """Return the batches of a point state without TTL and with one key column, by columns.

    ``None`` for other states. There is no object per row, since many states have millions.
    """
    codec = content.key_codec
    if info.shape is not Shape.POINT or info.has_ttl or codec is None or "key" not in schema.names:
        return None
    lib = arrow()
    of_key, of_value = arrow_type_of(codec.description), nested_types(info)[0]
    of_namespace = ArrowType(lib.string(), to_json)

    def batch(changes: Changes) -> Iterator[pa.RecordBatch]:
        for namespace, points in changes.points.items():
            count = len(points.keys)
            arrays = [
                of_key.array(points.keys, "column 'key'"),
                of_namespace.array([namespace] * count, "column 'namespace'")
                if namespace is not None
                else lib.nulls(count, lib.string()),
                lib.array(points.groups, lib.int32()),
                of_value.array(points.values, "column 'value'"),
            ]
            yield lib.RecordBatch.from_arrays(arrays, schema=schema)

    return (one for changes in content.exported(info, key_groups) for one in batch(changes))
