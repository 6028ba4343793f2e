"""State as Arrow: a table per state, and one per operator.

The table of a state has the columns ``key`` (``key_1``, ``key_2`` … for several key columns),
``namespace`` (JSON; null is the default namespace), ``key_group`` and ``value``; with a TTL also
``written`` and, if the duration is known, ``expires``. Lists and maps are nested, and so are their
times; flattened, each element has a row with its ``position``, each entry a row with its
``user_key``.

The table of an operator has a row per key and namespace, and a column per state, named like it; a
state with a TTL also has the columns ``<state> written`` and ``<state> expires``. `state_columns`
defines the names. The table of timers has ``domain`` and ``time`` in place of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.changes import Shape
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.arrow_types import ArrowType, arrow
from forebay_state_processor.reading.columns import (
    Column,
    RowTable,
    column_of,
    expiry_times,
    nested_types,
    types_of,
)
from forebay_state_processor.reading.joined_states import StateJoin
from forebay_state_processor.reading.point_table import PointTable
from forebay_state_processor.reading.rows import StateRow, Timer
from forebay_state_processor.reading.stored_states import read_by_position

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_processor.reading.stored_states import StateInfo
    from forebay_state_processor.reading.version_content import VersionContent

LookUp = Callable[[str], Iterable[StateRow]]
"""Returns the rows of a state that are asked for."""
JOIN_BYTES: Final = 256 << 20
"""The stored bytes of key groups that are joined in memory at a time, by default."""


def state_reader(
    content: VersionContent,
    state: str,
    *,
    flat: bool = False,
    key_groups: KeyGroupRange | None = None,
    look_up: LookUp | None = None,
) -> pa.RecordBatchReader:
    """Return the table of one state; ``flat`` gives lists and maps a row per element or entry.

    ``look_up`` returns the rows of a state, in place of all rows of ``key_groups``.
    """
    info = content.state(state)
    flat = flat and info.shape is not Shape.POINT
    rows: Iterator[Any]
    if look_up is not None:
        rows = iter(look_up(state))
    elif info.shape is Shape.POINT:
        return PointTable(content, info).reader(key_groups)
    else:
        maker = content.row_maker(info)
        exported = content.exported(read_by_position(info.spec), key_groups)
        rows = (row for changes in exported for row in maker.rows(changes))
    if flat:
        rows = (one for row in rows for one in _flattened(row))
    return RowTable(content.key_codec, [*_value_columns(info, flat=flat)]).reader(rows)


def operator_reader(
    content: VersionContent,
    *,
    states: Sequence[str] | None = None,
    key_groups: KeyGroupRange | None = None,
    join_bytes: int = JOIN_BYTES,
    look_up: LookUp | None = None,
) -> pa.RecordBatchReader:
    """Return the table of the operator: a row per key and namespace, a column per state.

    ``states`` are the columns, by default all. Key groups are joined in memory, as many at a time
    as have ``join_bytes`` stored. ``look_up`` returns the rows of a state, in place of all rows of
    ``key_groups``.
    """
    lib = arrow()
    infos = [content.state(name) for name in (content.states if states is None else states)]
    join = StateJoin(content, infos)
    schema = lib.schema(join.fields)
    if look_up is not None:
        pages = join.arrays_of((info, look_up(info.name)) for info in infos)
    else:
        parts = joined_parts(content, key_groups, join_bytes)
        pages = (arrays for part in parts for arrays in join.arrays(part))
    batches = (lib.RecordBatch.from_arrays(arrays, schema=schema) for arrays in pages)
    return lib.RecordBatchReader.from_batches(schema, batches)


def timer_reader(content: VersionContent, timers: Iterator[Timer]) -> pa.RecordBatchReader:
    """Return a table of timers."""
    lib = arrow()
    domain, time = ArrowType(lib.string(), None), ArrowType(lib.timestamp("us", "UTC"), None)
    columns = [
        column_of("domain", domain, lambda timer: timer.domain),
        column_of("time", time, lambda timer: timer.time),
    ]
    return RowTable(content.key_codec, columns).reader(timers)


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
        written = column_of("written", times, lambda row: row.written)
        yield written
        expiry = info.expiry
        if expiry is not None:
            field = pa.field("expires", times.type)
            yield Column(field, lambda rows: expiry_times(written.array(rows), expiry))


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


def joined_parts(
    content: VersionContent, key_groups: KeyGroupRange | None, join_bytes: int
) -> Iterator[KeyGroupRange]:
    """Split key groups so that each part has about ``join_bytes`` stored."""
    every = key_groups or KeyGroupRange(0, content.max_parallelism - 1)
    size = max(1, int(join_bytes / content.bytes_per_group))
    for part in content.opened.parts(every):
        for start in range(part.start, part.end + 1, size):
            yield KeyGroupRange(start, min(part.end, start + size - 1))
