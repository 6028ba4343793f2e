"""Buffers the writes of one table that no file holds yet, for the next delta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np

from forebay_backend_heap.encoding import Block
from forebay_backend_heap.files import Groups, Operation
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
)

Part = tuple[Any, list[Any], Groups, list[Any] | None]


class WriteBuffer:
    """Accumulates `Changes`, combining several changes to one cell into their net effect.

    Added changes are kept by reference and must not be modified afterwards.
    """

    def __init__(self) -> None:
        self._points: dict[Any, list[PointChanges]] = {}
        self._lists: dict[Any, dict[Any, ListChange]] = {}
        self._maps: dict[Any, dict[Any, MapChange]] = {}
        self._deletes = False
        """Whether cells of a point table are deleted."""

    def add(self, changes: Changes) -> int:
        """Add writes, which are newer than all added before.

        Return how many of them delete a cell of a point table.
        """
        deleted = 0
        for namespace, points in changes.points.items():
            self._points.setdefault(namespace, []).append(points)
            deleted += _deletes(points.values)
        self._deletes = self._deletes or deleted > 0
        for namespace, lists in changes.lists.items():
            _merge(self._lists.setdefault(namespace, {}), lists, _later_list)
        for namespace, maps in changes.maps.items():
            _merge(self._maps.setdefault(namespace, {}), maps, _later_map)
        return deleted

    def __bool__(self) -> bool:
        return bool(self._points or self._lists or self._maps)

    def __len__(self) -> int:
        """Number of cells written; a cell of a point table that was added twice counts twice."""
        points = sum(len(part.keys) for parts in self._points.values() for part in parts)
        return points + sum(map(len, self._lists.values())) + sum(map(len, self._maps.values()))

    def blocks(self) -> Iterator[tuple[Operation, Block]]:
        """Yield the blocks of the delta; no cell, or entry of a map, occurs in two of them."""
        lists, maps = self._split(self._lists, _of_list), self._split(self._maps, _of_map)
        for split in (self._split_points(), lists, maps):
            for op, parts in split.items():
                if parts:
                    yield op, Block.joined(parts)

    def _split_points(self) -> dict[Operation, list[Part]]:
        puts: list[Part] = []
        deletes: list[Part] = []
        for namespace, parts in self._points.items():
            points = parts[0] if len(parts) == 1 else _newest(parts)
            if not points.keys:
                continue
            groups = np.asarray(points.groups, np.uint16)
            gone: list[int] = []
            if self._deletes:
                gone = [i for i, value in enumerate(points.values) if value is ABSENT]
            if not gone:
                puts.append((namespace, points.keys, groups, points.values))
                continue
            deletes.append((namespace, [points.keys[i] for i in gone], groups[gone], None))
            if len(gone) < len(points.keys):
                puts.append(_without(namespace, points, groups, gone))
        return {Operation.PUT: puts, Operation.DELETE: deletes}

    def _split(
        self, changes: Mapping[Any, Mapping[Any, Any]], of: Any
    ) -> dict[Operation, list[Part]]:
        """Split changes of list or map tables; ``of`` yields (operation, content) of one change."""
        split: dict[Operation, list[Part]] = {op: [] for op in Operation}
        for namespace, cells in changes.items():
            rows: dict[Operation, list[tuple[Any, int, Any]]] = {op: [] for op in Operation}
            for key, change in cells.items():
                for op, content in of(change):
                    rows[op].append((key, change.group, content))
            for op, found in rows.items():
                if found:
                    split[op].append(_part(namespace, op, found))
        return split


def changes_of(shape: Shape, op: Operation, block: Block) -> Changes:
    """Return the writes that a block represents: the inverse of `WriteBuffer.blocks`."""
    points: dict[Any, PointChanges] = {}
    lists: dict[Any, dict[Any, ListChange]] = {}
    maps: dict[Any, dict[Any, MapChange]] = {}
    for namespace, keys, own_groups, contents in block.by_namespace():
        groups = own_groups.tolist()
        if shape is Shape.POINT:
            values = [ABSENT] * len(keys) if contents is None else contents
            points[namespace] = PointChanges(keys, groups, values)
            continue
        rows = zip(keys, groups, [()] * len(keys) if contents is None else contents, strict=True)
        whole = op in (Operation.PUT, Operation.DELETE)
        if shape is Shape.LIST:
            lists[namespace] = {k: ListChange(g, whole, list(found)) for k, g, found in rows}
        else:
            maps[namespace] = {k: MapChange(g, whole, _entries(op, found)) for k, g, found in rows}
    return Changes(points=points, lists=lists, maps=maps)


def _entries(op: Operation, content: Any) -> dict[Any, Any]:
    return dict.fromkeys(content, ABSENT) if op is Operation.REMOVE else dict(content)


def _merge(into: dict[Any, Any], changes: Mapping[Any, Any], later: Any) -> None:
    for key, change in changes.items():
        earlier = into.get(key)
        into[key] = change if earlier is None else later(earlier, change)


def _later_list(earlier: ListChange, later: ListChange) -> ListChange:
    if later.replaced:
        return later
    elements = [*earlier.elements, *later.elements]
    return ListChange(later.group, earlier.replaced, elements)


def _later_map(earlier: MapChange, later: MapChange) -> MapChange:
    if later.cleared:
        return later
    return MapChange(later.group, earlier.cleared, {**earlier.entries, **later.entries})


def _deletes(values: list[Any]) -> int:
    """Count the deletes among values of a point table; cheap if there are none."""
    any_deleted = any(map(is_, values, repeat(ABSENT)))
    return sum(value is ABSENT for value in values) if any_deleted else 0


def _newest(parts: Iterable[PointChanges]) -> PointChanges:
    cells: dict[Any, tuple[int, Any]] = {}
    for part in parts:
        cells.update(zip(part.keys, zip(part.groups, part.values, strict=True), strict=True))
    return PointChanges(list(cells), [g for g, _ in cells.values()], [v for _, v in cells.values()])


def _without(namespace: Any, points: PointChanges, groups: Groups, gone: list[int]) -> Part:
    kept = np.delete(np.arange(len(groups)), gone)
    index = kept.tolist()
    keys = [points.keys[i] for i in index]
    return namespace, keys, groups[kept], [points.values[i] for i in index]


def _part(namespace: Any, op: Operation, rows: list[tuple[Any, int, Any]]) -> Part:
    groups = np.fromiter((group for _, group, _ in rows), np.uint16, len(rows))
    contents = None if op is Operation.DELETE else [content for _, _, content in rows]
    return namespace, [key for key, _, _ in rows], groups, contents


def _of_list(change: ListChange) -> Iterator[tuple[Operation, Any]]:
    if change.elements:
        yield Operation.PUT if change.replaced else Operation.MERGE, change.elements
    elif change.replaced:
        yield Operation.DELETE, None


def _of_map(change: MapChange) -> Iterator[tuple[Operation, Any]]:
    puts = {address: v for address, v in change.entries.items() if v is not ABSENT}
    if change.cleared:
        yield (Operation.PUT, puts) if puts else (Operation.DELETE, None)
        return
    if puts:
        yield Operation.MERGE, puts
    if len(puts) < len(change.entries):
        yield Operation.REMOVE, [address for address, v in change.entries.items() if v is ABSENT]
