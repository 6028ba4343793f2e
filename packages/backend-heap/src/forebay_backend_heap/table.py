"""The cells of one state, in dictionaries that the state objects work on directly."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from forebay_backend_heap.columns import Block, decode
from forebay_backend_heap.files import Groups, Op, Section
from forebay_backend_heap.pending import Pending
from forebay_state_api.backend import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Scan,
    Space,
    StateKind,
    Table,
    TableSpec,
)
from forebay_state_api.migration import reader_of

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

    def export(self, keys: int) -> Iterator[Changes]:
        known = self._groups.as_dict()
        for namespace, space in self._spaces.items():
            cells = iter(space.cells.items())
            while page := list(islice(cells, keys)):
                yield self._exported(namespace, page, known)

    def _exported(
        self, namespace: Any, page: Sequence[tuple[Any, Any]], known: Mapping[Any, int]
    ) -> Changes:
        kind = self.spec.kind
        if kind.is_point:
            names, values = [key for key, _ in page], [value for _, value in page]
            groups = [known[key] for key in names]
            return Changes(points={namespace: PointChanges(names, groups, values)})
        if kind is StateKind.LIST:
            lists = {
                key: ListChange(known[key], replaced=True, elements=list(all_))
                for key, all_ in page
                if all_
            }
            return Changes(lists={namespace: lists})
        maps = {
            key: MapChange(known[key], cleared=True, entries=dict(all_))
            for key, all_ in page
            if all_
        }
        return Changes(maps={namespace: maps})

    def replay(self, section: Section) -> None:
        """Do what a file says; raises `StateMigrationError` if the spec does not fit it."""
        block = decode(section, reader_of(section.description, self.spec))
        if section.op in (Op.PUT, Op.MERGE):
            self._groups.add(block.keys, block.groups)
        for namespace, keys, _, contents in block.by_namespace():
            _replay(self.spec.kind, self.space(namespace).cells, section.op, keys, contents)

    def content(self) -> Block | None:
        """All cells, as a snapshot holds them; ``None`` without any."""
        parts: list[tuple[Any, list[Any], Groups, list[Any] | None]] = []
        known = self._groups.as_dict() if len(self._spaces) > 1 else None
        for namespace, space in self._spaces.items():
            cells: Mapping[Any, Any] = space.cells
            if not self.spec.kind.is_point:
                cells = {key: content for key, content in cells.items() if content}
            if cells:
                keys = list(cells)
                groups = self._groups.of(keys, known)
                parts.append((namespace, keys, groups, list(cells.values())))
        self._groups = GroupIndex([(keys, groups) for _, keys, groups, _ in parts])
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
        run = (keys, np.asarray(groups, np.uint16))
        if not self._runs:
            self._reset([run])
            return
        self._runs.append(run)
        self._held += len(keys)
        if self._held > self._limit:
            known = self.as_dict()
            groups = np.fromiter(known.values(), np.uint16, len(known))
            self._reset([(list(known), groups)])

    def _reset(self, runs: list[tuple[list[Any], Groups]]) -> None:
        self._runs = runs
        self._held = sum(len(keys) for keys, _ in runs)
        self._limit = 4 * self._held + _SLACK

    def of(self, keys: list[Any], known: Mapping[Any, int] | None = None) -> Groups:
        """The key groups of known keys; ``known`` is what `as_dict` gives, for many calls.

        Dictionaries keep their order: where nothing was deleted, ``keys`` begins with the keys of
        the oldest run, and these need not be looked up.
        """
        if known is not None:
            return _looked_up(keys, known)
        first, groups = self._runs[0]
        if len(keys) < len(first) or not all(map(operator.is_, first, keys)):
            return _looked_up(keys, self.as_dict())
        if len(keys) == len(first):
            return groups
        return np.concatenate([groups, _looked_up(keys[len(first) :], self.as_dict(1))])

    def as_dict(self, start: int = 0) -> dict[Any, int]:
        """Key → key group, of the runs from ``start`` on."""
        known: dict[Any, int] = {}
        for keys, groups in self._runs[start:]:
            known.update(zip(keys, groups.tolist(), strict=True))
        return known


def _looked_up(keys: list[Any], known: Mapping[Any, int]) -> Groups:
    return np.fromiter(map(known.__getitem__, keys), np.uint16, len(keys))


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
