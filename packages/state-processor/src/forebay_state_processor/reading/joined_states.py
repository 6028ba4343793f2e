"""The states of an operator, joined by key and namespace, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.changes import Shape
from forebay_state_processor.reading.columns import (
    ROWS,
    KeyColumns,
    expiry_times,
    nested_types,
    state_columns,
)
from forebay_state_processor.reading.point_table import live_points
from forebay_state_processor.reading.stored_states import read_by_position

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.contract.changes import Changes
    from forebay_state_api.contract.expiry import Expiry
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.reading.arrow_types import ArrowType
    from forebay_state_processor.reading.rows import StateRow
    from forebay_state_processor.reading.stored_states import StateInfo
    from forebay_state_processor.reading.version_content import VersionContent


@attrs.frozen
class _Column:
    """A column of values, or of times of last access, which may have one of expiry after it."""

    name: str
    kind: ArrowType
    expires: str = ""
    expiry: Expiry | None = None


class StateJoin:
    """Joins states, as many key groups in memory as the caller names at a time."""

    def __init__(self, content: VersionContent, infos: Sequence[StateInfo]) -> None:
        """``infos`` are the states; `state_columns` names the columns of each."""
        self._content: Final = content
        self._infos: Final = infos
        self._keys: Final = KeyColumns(content.key_codec)
        self._columns: Final = [column for info in infos for column in _columns_of(info)]

    @property
    def fields(self) -> list[pa.Field]:
        """The fields of the table."""
        import pyarrow as pa

        fields = [*self._keys.fields]
        for column in self._columns:
            fields.append(pa.field(column.name, column.kind.type))
            if column.expiry is not None:
                fields.append(pa.field(column.expires, column.kind.type))
        return fields

    def arrays(self, part: KeyGroupRange) -> Iterator[list[pa.Array]]:
        """Yield the arrays of each page of the rows of some key groups."""
        return self._pages(self._joined(part))

    def arrays_of(
        self, found: Iterable[tuple[StateInfo, Iterable[StateRow]]]
    ) -> Iterator[list[pa.Array]]:
        """Yield the arrays of each page of rows that were looked up."""
        joined = self._empty()
        for info, rows in found:
            joined.add_rows(info, rows)
        return self._pages(joined)

    def _pages(self, joined: _JoinedColumns) -> Iterator[list[pa.Array]]:
        for start in range(0, len(joined.keys), ROWS):
            page = slice(start, start + ROWS)
            keys = joined.keys[page], joined.namespaces[page], joined.groups[page]
            yield [*self._keys.arrays(*keys), *self._of_states(joined, page)]

    def _of_states(self, joined: _JoinedColumns, page: slice) -> Iterator[pa.Array]:
        for column in self._columns:
            values = joined.column(column.name)[page]
            array = column.kind.array(values, f"column {column.name!r}")
            yield array
            if column.expiry is not None:
                yield expiry_times(array, column.expiry)

    def _joined(self, part: KeyGroupRange) -> _JoinedColumns:
        joined = self._empty()
        specs = [info.spec for info in self._infos]
        with self._content.opened.scanning(part, specs) as backend:
            for info in self._infos:
                maker = self._content.row_maker(info)
                until = self._content.expired_until(info)
                for changes in backend.export(read_by_position(info.spec), ROWS):
                    if info.shape is Shape.POINT:
                        joined.add_points(info, changes, until)
                    else:
                        joined.add_rows(info, maker.rows(changes))
        return joined

    def _empty(self) -> _JoinedColumns:
        codec = self._content.key_codec
        return _JoinedColumns(None if codec is None else codec.address)


def _columns_of(info: StateInfo) -> Iterator[_Column]:
    names = state_columns(info.name)
    value, times = nested_types(info)
    yield _Column(names.value, value)
    if info.has_ttl:
        yield _Column(names.written, times, names.expires, info.expiry)


class _JoinedColumns:
    """Columns of equal length; a key has one place in each of its namespaces."""

    def __init__(self, address: Any) -> None:
        """``address`` makes keys hashable; ``None`` if they are."""
        self._address: Final = address
        self._places: Final[dict[Any, dict[Any, int]]] = {}
        self._columns: Final[dict[str, list[Any]]] = {}
        self.keys: Final[list[Any]] = []
        self.namespaces: Final[list[Any]] = []
        self.groups: Final[list[int]] = []

    def column(self, name: str) -> list[Any]:
        """Return a column, with ``None`` up to the last key."""
        values = self._columns.setdefault(name, [])
        values += [None] * (len(self.keys) - len(values))
        return values

    def add_points(self, info: StateInfo, changes: Changes, until: int | None) -> None:
        """Add the values of a point state, with times in µs.

        Values last accessed up to ``until`` have expired.
        """
        names = state_columns(info.name)
        for namespace, points in changes.points.items():
            live = live_points(points, until) if info.has_ttl else points
            places = self._placed(namespace, live.keys, live.groups)
            column = self.column(names.value)
            if not info.has_ttl:
                for place, value in zip(places, live.values, strict=True):
                    column[place] = value
                continue
            written = self.column(names.written)
            for place, (us, value) in zip(places, live.values, strict=True):
                column[place], written[place] = value, us

    def add_rows(self, info: StateInfo, rows: Iterable[StateRow]) -> None:
        """Add the rows of any state."""
        names = state_columns(info.name)
        for row in rows:
            (place,) = self._placed(row.namespace, [row.key], [row.key_group])
            self.column(names.value)[place] = row.value
            if info.has_ttl:
                self.column(names.written)[place] = row.written

    def _placed(self, namespace: Any, keys: Sequence[Any], groups: Sequence[int]) -> list[int]:
        """Return the place of each key, a new one where it has none."""
        known = self._places.setdefault(namespace, {})
        address = self._address
        found = []
        for key, group in zip(keys, groups, strict=True):
            at = key if address is None else address(key)
            place = known.get(at)
            if place is None:
                place = known[at] = len(self.keys)
                self.keys.append(key)
                self.namespaces.append(namespace)
                self.groups.append(group)
            found.append(place)
        return found
