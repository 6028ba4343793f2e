"""The states of an operator, joined by key and namespace, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.contract.changes import Shape
from forebay_state_api.reading.columns import ROWS, KeyColumns, nested_types
from forebay_state_api.reading.stored_states import read_by_position

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.contract.changes import Changes
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.reading.arrow_types import ArrowType
    from forebay_state_api.reading.rows import StateRow
    from forebay_state_api.reading.stored_states import StateInfo
    from forebay_state_api.reading.version_content import VersionContent


class StateJoin:
    """Joins states, as many key groups in memory as the caller names at a time."""

    def __init__(self, content: VersionContent, infos: Sequence[StateInfo]) -> None:
        """``infos`` are the states, each one column, or two with a TTL."""
        self._content: Final = content
        self._infos: Final = infos
        self._keys: Final = KeyColumns(content.key_codec)
        self._columns: Final[list[tuple[str, ArrowType]]] = []
        for info in infos:
            value, times = nested_types(info)
            self._columns.append((info.name, value))
            if info.has_ttl:
                self._columns.append((written_name(info.name), times))

    @property
    def fields(self) -> list[pa.Field]:
        """The fields of the table."""
        import pyarrow as pa

        return [*self._keys.fields, *(pa.field(name, kind.type) for name, kind in self._columns)]

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
            yield [
                *self._keys.arrays(joined.keys[page], joined.namespaces[page], joined.groups[page]),
                *(
                    kind.array(joined.column(name)[page], f"column {name!r}")
                    for name, kind in self._columns
                ),
            ]

    def _joined(self, part: KeyGroupRange) -> _JoinedColumns:
        joined = self._empty()
        with self._content.opened.scanning(part) as backend:
            for info in self._infos:
                maker = self._content.row_maker(info)
                for changes in backend.export(read_by_position(info.spec), ROWS):
                    if info.shape is Shape.POINT and not info.has_ttl:
                        joined.add_points(info.name, changes)
                    else:
                        joined.add_rows(info, maker.rows(changes))
        return joined

    def _empty(self) -> _JoinedColumns:
        codec = self._content.key_codec
        return _JoinedColumns(None if codec is None else codec.address)


def written_name(state: str) -> str:
    """Return the name of the column with a state's times of last access."""
    return f"{state} written"


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

    def add_points(self, name: str, changes: Changes) -> None:
        """Add the values of a point state without TTL."""
        for namespace, points in changes.points.items():
            places = self._placed(namespace, points.keys, points.groups)
            column = self.column(name)
            for place, value in zip(places, points.values, strict=True):
                column[place] = value

    def add_rows(self, info: StateInfo, rows: Iterable[StateRow]) -> None:
        """Add the rows of any state."""
        for row in rows:
            (place,) = self._placed(row.namespace, [row.key], [row.key_group])
            self.column(info.name)[place] = row.value
            if info.has_ttl:
                self.column(written_name(info.name))[place] = row.written

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
