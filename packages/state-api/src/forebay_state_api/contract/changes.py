"""Cells and changes: what the engine holds of a table, and what it hands to a backend."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs


class _Absent(enum.Enum):
    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""The answer for a cell that does not exist; ``None`` is a value that a map may hold."""


class Shape(enum.Enum):
    """What a table holds under each key and namespace, whatever kind of state uses it."""

    POINT = "point"
    """One value."""
    LIST = "list"
    """Elements, in the order in which they were appended."""
    MAP = "map"
    """Entries, each under a user key."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Shape:
        """The shape of a table by its `TableSpec.description`."""
        told = description.get("shape", description["kind"])
        return cls(told) if told in ("list", "map") else cls.POINT


@attrs.define
class Space:
    """The cells of one namespace of one table that this process holds during a micro-batch.

    The state objects read and write it directly; that is what makes an access that memory can
    answer cost one dictionary look-up. Keys are the operator's keys.

    * point tables: ``cells[key] = value``; list tables: ``cells[key] = list of elements``;
      map tables: ``cells[key] = {user key address: value}``.
    * ``complete``: a key that is not in ``cells`` does not exist. A resident backend hands out its
      own dictionaries with ``complete=True``. Otherwise ``cells`` holds what was read or written
      (``ABSENT`` for a cell known not to exist), and unknown cells are asked of the table.
    * ``dirty`` says what was written since the last `Table.apply`: key → key group in point tables,
      key → `ListChange` in list tables, key → `MapChange` in map tables. The cells hold the newest
      content all the same; an incomplete list or map that was only written to has no cell.
    """

    namespace: Any
    complete: bool
    cells: dict[Any, Any] = attrs.field(factory=dict)
    dirty: dict[Any, Any] = attrs.field(factory=dict)


@attrs.define
class PointChanges:
    """What a micro-batch wrote to the cells of one namespace of a point table, column-wise."""

    keys: list[Any]
    groups: list[int]
    values: list[Any]
    """The new value, or ``ABSENT`` for a deleted cell."""


@attrs.define
class ListChange:
    """What a micro-batch did to one list: ``replaced`` tells whether older elements are gone."""

    group: int
    replaced: bool = False
    elements: list[Any] = attrs.field(factory=list)
    """The elements appended (after the replacement, where there was one), in order. A list that
    was replaced and has no elements does not exist."""


@attrs.define
class MapChange:
    """What a micro-batch did to one map: entries put or removed after an optional clear."""

    group: int
    cleared: bool = False
    entries: dict[Any, Any] = attrs.field(factory=dict)
    """User key address → value, or ``ABSENT`` for a removed entry."""


@attrs.frozen
class Changes:
    """Writes to one table since the last `Table.apply`, by namespace.

    Only the member that fits the table's shape is filled, and all of it is the backend's from now
    on (the keys, values and lists in it are not changed any more). Of a resident table (one whose
    spaces are complete) the cells have already changed when this arrives.
    """

    points: Mapping[Any, PointChanges] = attrs.field(factory=dict)
    lists: Mapping[Any, Mapping[Any, ListChange]] = attrs.field(factory=dict)
    maps: Mapping[Any, Mapping[Any, MapChange]] = attrs.field(factory=dict)

    @classmethod
    def whole(cls, shape: Shape, namespace: Any, cells: Iterable[tuple[Any, int, Any]]) -> Changes:
        """What makes each of ``cells``, (key, key group, content), hold its content and no more.

        A content is a value, the elements of a list or the entries of a map; the latter two are
        copied. Cells that do not exist are left out: ``ABSENT``, empty lists and empty maps.
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

    def __bool__(self) -> bool:
        return bool(self.points or self.lists or self.maps)
