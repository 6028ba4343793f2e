"""Cells and changes: the engine's view of a table, and the writes that it hands to a backend."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

__all__ = ["ABSENT", "Changes", "ListChange", "MapChange", "PointChanges", "Shape", "Space"]


class _Absent(enum.Enum):
    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""Returned for a cell that does not exist; ``None`` is a value that a map may hold."""


class Shape(enum.Enum):
    """The content of a table under each key and namespace, whatever kind of state uses it."""

    POINT = "point"
    """One value."""
    LIST = "list"
    """Elements, in the order in which they were appended."""
    MAP = "map"
    """Entries, each under a user key."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Shape:
        """Return the shape of the table with this `TableSpec.description`."""
        shape = description.get("shape", description["kind"])
        return cls(shape) if shape in ("list", "map") else cls.POINT


@attrs.define
class Space:
    """The cells of one namespace of one table that this process holds during a micro-batch.

    The state objects read and write it directly, so an access that memory can serve costs one
    dictionary look-up. Keys are the operator's keys.

    * point tables: ``cells[key] = value``; list tables: ``cells[key] = list of elements``;
      map tables: ``cells[key] = {user key address: value}``.
    * ``complete``: a key that is not in ``cells`` does not exist. A resident backend returns its
      own dictionaries with ``complete=True``. Otherwise ``cells`` holds the cells that were read or
      written (``ABSENT`` for a cell known not to exist), and others are read from the table.
    * ``dirty`` holds the writes since the last `Table.apply`: key → key group in point tables,
      key → `ListChange` in list tables, key → `MapChange` in map tables. The cells hold the newest
      content all the same; an incomplete list or map that was only written to has no cell.
    """

    namespace: Any
    complete: bool
    cells: dict[Any, Any] = attrs.field(factory=dict)
    dirty: dict[Any, Any] = attrs.field(factory=dict)


@attrs.define
class PointChanges:
    """A micro-batch's writes to one namespace of a point table, column-wise."""

    keys: list[Any]
    groups: list[int]
    values: list[Any]
    """The new value, or ``ABSENT`` for a deleted cell."""


@attrs.define
class ListChange:
    """A micro-batch's changes to one list; ``replaced`` means that older elements are removed."""

    group: int
    replaced: bool = False
    elements: list[Any] = attrs.field(factory=list)
    """The elements appended (after the replacement, if there was one), in order. A list that
    was replaced and has no elements does not exist."""


@attrs.define
class MapChange:
    """A micro-batch's changes to one map: entries put or removed after an optional clear."""

    group: int
    cleared: bool = False
    entries: dict[Any, Any] = attrs.field(factory=dict)
    """User key address → value, or ``ABSENT`` for a removed entry."""

    def hides(self, address: Any) -> bool:  # noqa: ARG002 - as in subclasses
        """Return whether an entry that is not in ``entries`` must not be read from the table."""
        return self.cleared


@attrs.frozen
class Changes:
    """Writes to one table since the last `Table.apply`, by namespace.

    Only the field for the table's shape is filled, and the backend owns its content from now on
    (the keys, values and lists in it are not changed any more). The cells of a resident table (one
    whose spaces are complete) have already changed when this arrives.
    """

    points: Mapping[Any, PointChanges] = attrs.field(factory=dict)
    lists: Mapping[Any, Mapping[Any, ListChange]] = attrs.field(factory=dict)
    maps: Mapping[Any, Mapping[Any, MapChange]] = attrs.field(factory=dict)

    @classmethod
    def whole(cls, shape: Shape, namespace: Any, cells: Iterable[tuple[Any, int, Any]]) -> Changes:
        """Return the changes that replace the content of each of ``cells``.

        ``cells`` are (key, key group, content). The content is a value, the elements of a list or
        the entries of a map; lists and maps are copied. Cells that do not exist (``ABSENT``, empty
        lists and empty maps) are left out.
        """
        if shape is Shape.POINT:
            rows = [row for row in cells if row[2] is not ABSENT]
            columns = [[row[part] for row in rows] for part in range(3)]
            return cls(points={namespace: PointChanges(*columns)})
        if shape is Shape.LIST:
            lists = {
                key: ListChange(group, replaced=True, elements=list(content))
                for key, group, content in cells
                if content
            }
            return cls(lists={namespace: lists})
        maps = {
            key: MapChange(group, cleared=True, entries=dict(content))
            for key, group, content in cells
            if content
        }
        return cls(maps={namespace: maps})

    def keys(self, namespace: Any) -> list[Any]:
        """Return the keys of the changes to one namespace."""
        points = self.points.get(namespace)
        own = [] if points is None else points.keys
        return [*own, *self.lists.get(namespace, ()), *self.maps.get(namespace, ())]

    def __bool__(self) -> bool:
        return bool(self.points or self.lists or self.maps)
