"""Write whole contents to a backend's tables, as the engine does, and read them back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forebay_state_api.contract.backend import Scan, StateBackend, Table, TableSpec
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
    Space,
)

GroupOf = Callable[[Any], int]
"""The key group of a key."""


def in_one_group(key: Any) -> int:
    """Return the same key group for each key."""
    return 1


def spread(key: Any) -> int:
    """Return one of eight key groups, by a rule that is easy to follow."""
    return sum(repr(key).encode()) % 8


def write_points(
    table: Table,
    values: Mapping[Any, Any],
    namespace: Any = None,
    group_of: GroupOf = in_one_group,
) -> None:
    """Write as the engine does: into the space where it is complete, and by `Table.apply`."""
    space = table.space(namespace)
    for key, value in values.items():
        if value is not ABSENT:
            space.cells[key] = value
        else:
            space.cells.pop(key, None)
    points = PointChanges([*values], [*map(group_of, values)], [*values.values()])
    _apply(table, space, Changes(points={namespace: points}))


def write_list(
    table: Table,
    key: Any,
    elements: list[Any],
    *,
    replaced: bool = False,
    namespace: Any = None,
    group: int = 1,
) -> None:
    """Append to a list, or replace it."""
    space = table.space(namespace)
    if space.complete:
        before = [] if replaced else space.cells.get(key, [])
        if before or elements:
            space.cells[key] = [*before, *elements]
        else:
            space.cells.pop(key, None)
    change = ListChange(group, replaced=replaced, elements=elements)
    _apply(table, space, Changes(lists={namespace: {key: change}}))


def write_map(
    table: Table,
    key: Any,
    entries: dict[Any, Any],
    *,
    cleared: bool = False,
    namespace: Any = None,
    group: int = 1,
) -> None:
    """Put and remove entries of a map, after an optional clear."""
    space = table.space(namespace)
    if space.complete:
        before = {} if cleared else space.cells.get(key, {})
        merged = {**before, **entries}
        space.cells[key] = {k: v for k, v in merged.items() if v is not ABSENT}
    change = MapChange(group, cleared=cleared, entries=entries)
    _apply(table, space, Changes(maps={namespace: {key: change}}))


def _apply(table: Table, space: Space, changes: Changes) -> None:
    table.apply(changes)
    space.dirty.clear()
    if not space.complete:
        space.cells.clear()


def write_contents(
    table: Table,
    spec: TableSpec,
    contents: Mapping[Any, Any],
    namespace: Any = None,
    group_of: GroupOf = in_one_group,
) -> None:
    """Replace the content of each key; ``ABSENT`` deletes it."""
    if spec.shape is Shape.POINT:
        write_points(table, contents, namespace, group_of)
        return
    for key, content in contents.items():
        where = {"namespace": namespace, "group": group_of(key)}
        gone = content is ABSENT
        if spec.shape is Shape.LIST:
            write_list(table, key, [] if gone else [*content], replaced=True, **where)
        else:
            write_map(table, key, {} if gone else {**content}, cleared=True, **where)


def read_contents(
    table: Table,
    spec: TableSpec,
    keys: Sequence[Any],
    namespace: Any = None,
    group_of: GroupOf = in_one_group,
) -> list[Any]:
    """Return the content of each key: values in one batch, lists and maps by scans."""
    if spec.shape is Shape.POINT:
        return table.get_many(namespace, [(group_of(key), key) for key in keys])
    scans = (table.scan(namespace, group_of(key), key) for key in keys)
    whole: Any = list if spec.shape is Shape.LIST else dict
    return [whole(itertools.chain(*scan.pages(100))) for scan in scans]


def exported(
    backend: StateBackend, spec: TableSpec, page: int = 100
) -> dict[tuple[Any, Any], tuple[int, Any]]:
    """Return (namespace, key) → (key group, content) of all cells of a state."""
    found: dict[tuple[Any, Any], tuple[int, Any]] = {}
    for changes in backend.export(spec, page):
        for address, cell in _cells_of(changes):
            assert address not in found, f"the export has {address} twice"
            found[address] = cell
    return found


def _cells_of(changes: Changes) -> Iterator[tuple[tuple[Any, Any], tuple[int, Any]]]:
    for namespace, points in changes.points.items():
        for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
            yield (namespace, key), (group, value)
    for namespace, lists in changes.lists.items():
        for key, elements in lists.items():
            yield (namespace, key), (elements.group, [*elements.elements])
    for namespace, maps in changes.maps.items():
        for key, entries in maps.items():
            yield (namespace, key), (entries.group, {**entries.entries})


def paged(scan: Scan, page_size: int) -> list[Any]:
    """Return the rows of a scan, in pages of at most ``page_size``."""
    pages = list(scan.pages(page_size))
    assert all(len(page) <= page_size for page in pages), "a page is larger than was asked for"
    return list(itertools.chain(*pages))


def difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return how two long lists differ, in a line; empty if they are equal in type and content."""
    if len(found) != len(expected):
        return f"{len(found)} instead of {len(expected)}"
    for at, (one, other) in enumerate(zip(found, expected, strict=True)):
        if repr(one) != repr(other):
            return f"number {at} of {len(expected)} is {one!r:.80} instead of {other!r:.80}"
    return ""
