"""The cells of one state, in dictionaries that the state objects work on directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from forebay_backend_heap.columns import Block, decode
from forebay_backend_heap.files import Groups, Op, Section
from forebay_backend_heap.migration import reader_of
from forebay_backend_heap.pending import Pending
from forebay_state_api.backend import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    Scan,
    Space,
    StateKind,
    Table,
    TableSpec,
)

_SLACK: Final = 4096


class Cells(dict[Any, Any]):
    """A dictionary that the garbage collector never lets out of its sight.

    It lets go of plain ones without cyclic content, and takes them up again at the next write: so
    freezing would not last, and every collection would walk through all cells.
    """

    __slots__ = ()


class HeapTable(Table):
    """A resident table: its spaces are complete, and changed before `apply` hears of it."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.pending = Pending(spec.kind)
        """What was applied since the table was opened."""
        self._spaces: dict[Any, Space] = {}
        self._groups = GroupIndex()

    def space(self, namespace: Any) -> Space:
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = Space(
                namespace=namespace, complete=True, cells=Cells()
            )
        return space

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        cells = self.space(namespace).cells
        return [cells.get(key, ABSENT) for _, key in keys]

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        maps = self.space(namespace).cells
        return [maps.get(key, {}).get(address, ABSENT) for _, key, address in cells]

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:  # noqa: ARG002 - as declared
        content = self.space(namespace).cells.get(key, ())
        return HeapScan(content.items() if self.spec.kind is StateKind.MAP and content else content)

    def apply(self, changes: Changes) -> None:
        self.pending.add(changes)
        for points in changes.points.values():
            self._groups.add(points.keys, points.groups)
        changed: Sequence[tuple[Any, Mapping[Any, ListChange | MapChange]]]
        changed = [*changes.lists.items(), *changes.maps.items()]
        for namespace, cells in changed:
            self._groups.add(list(cells), [change.group for change in cells.values()])
            _drop_empty(self.space(namespace).cells, cells)

    def namespaces(self) -> Iterator[Any]:
        return iter(list(self._spaces))

    def replay(self, section: Section) -> None:
        """Do what a file says; raises `StateMigrationError` if the spec does not fit it."""
        block = decode(section, reader_of(section.description, self.spec))
        if section.op in (Op.PUT, Op.MERGE):
            self._groups.add(block.keys, block.groups)
        for namespace, keys, _, contents in block.by_namespace():
            _replay(self.spec.kind, self.space(namespace).cells, section.op, keys, contents)

    def content(self) -> Block | None:
        """All cells, as a snapshot holds them; ``None`` without any."""
        groups = self._groups.as_dict()
        parts: list[tuple[Any, list[Any], Groups, list[Any] | None]] = []
        for namespace, space in self._spaces.items():
            cells = space.cells
            if not self.spec.kind.is_point:
                cells = {key: content for key, content in cells.items() if content}
            if cells:
                found = np.fromiter(map(groups.__getitem__, cells), np.uint16, len(cells))
                parts.append((namespace, list(cells), found, list(cells.values())))
        self._groups = GroupIndex([(keys, found) for _, keys, found, _ in parts])
        return Block.joined(parts) if parts else None

    def settled(self) -> None:
        """Begin anew after a commit: nothing is pending, and empty namespaces are forgotten."""
        self.pending = Pending(self.spec.kind)
        if len(self._spaces) > 1:
            self._spaces = {n: s for n, s in self._spaces.items() if n is None or s.cells}

    def __len__(self) -> int:
        return sum(len(space.cells) for space in self._spaces.values())

    def all_cells(self) -> list[dict[Any, Any]]:
        """The dictionaries of all namespaces."""
        return [space.cells for space in self._spaces.values()]


class HeapScan(Scan):
    """A copy of one list, or of the entries of one map."""

    def __init__(self, content: Iterable[Any]) -> None:
        self._content = list(content)

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        for start in range(0, len(self._content), page_size):
            yield self._content[start : start + page_size]


class GroupIndex:
    """The key group of each key: what a snapshot is sorted by.

    Kept as runs of keys and groups, in the order in which they came, because that takes a tenth of
    the memory of a dictionary and is asked for only when a snapshot is written.
    """

    def __init__(self, runs: Iterable[tuple[list[Any], Groups]] = ()) -> None:
        self._reset(list(runs))

    def add(self, keys: list[Any], groups: Sequence[int] | Groups) -> None:
        """Learn of keys, known or new; ``keys`` is kept."""
        self._runs.append((keys, np.asarray(groups, np.uint16)))
        self._held += len(keys)
        if self._held > self._limit:
            known = self.as_dict()
            groups = np.fromiter(known.values(), np.uint16, len(known))
            self._reset([(list(known), groups)])

    def _reset(self, runs: list[tuple[list[Any], Groups]]) -> None:
        self._runs = runs
        self._held = sum(len(keys) for keys, _ in runs)
        self._limit = 2 * self._held + _SLACK

    def as_dict(self) -> dict[Any, int]:
        """Key → key group."""
        known: dict[Any, int] = {}
        for keys, groups in self._runs:
            known.update(zip(keys, groups.tolist(), strict=True))
        return known


def _drop_empty(cells: dict[Any, Any], changed: Iterable[Any]) -> None:
    """A list or map without content does not exist."""
    for key in changed:
        if not cells.get(key, True):
            del cells[key]


def _replay(
    kind: StateKind, cells: dict[Any, Any], op: Op, keys: list[Any], contents: list[Any] | None
) -> None:
    if contents is None:
        for key in keys:
            cells.pop(key, None)
    elif op is Op.PUT:
        cells.update(zip(keys, contents, strict=True))
    elif op is Op.REMOVE:
        _remove_entries(cells, keys, contents)
    else:
        for key, content in zip(keys, contents, strict=True):
            present = cells.setdefault(key, content)
            if present is content:
                continue
            if kind is StateKind.LIST:
                present.extend(content)
            else:
                present.update(content)


def _remove_entries(cells: dict[Any, Any], keys: list[Any], contents: list[Any]) -> None:
    for key, addresses in zip(keys, contents, strict=True):
        entries = cells.get(key, {})
        for address in addresses:
            entries.pop(address, None)
        if not entries:
            cells.pop(key, None)
