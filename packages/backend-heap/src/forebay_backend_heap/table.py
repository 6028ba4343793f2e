"""Holds the cells of one state in dictionaries that the state objects change directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from forebay_backend_heap.encoding import Block, decode, encode, oldest_time
from forebay_backend_heap.expiry import NEVER, GroupedKeys, expired_in, log_dropped
from forebay_backend_heap.files import Groups, Operation, Section
from forebay_backend_heap.groups import GroupIndex
from forebay_backend_heap.resident_table import ResidentTable
from forebay_backend_heap.write_buffer import WriteBuffer
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.backend import Scan, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, ListChange, MapChange, Shape, Space
from forebay_state_api.contract.expiry import Deadline
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.memory_sizes import table_size

_MERGE_FROM: Final = 3
"""Sections that a point table reads at once, from which on it first merges all but the oldest.
Each look-up in the table of all cells misses the processor's caches."""


class Cells(dict[Any, Any]):
    """A dictionary that the garbage collector always tracks.

    The collector untracks plain dictionaries that hold no containers, and tracks them again at the
    next write. Freezing them would not last, and every collection would walk all cells.
    """

    __slots__ = ()


class HeapTable(ResidentTable):
    """A resident table: its spaces are complete, and are changed before `apply` is called."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self.pending = WriteBuffer()
        """Changes applied since the last commit."""
        self._spaces: dict[Any, Space] = {}
        self._groups = GroupIndex()
        self._copied_groups: GroupIndex | None = None
        """The index with which a frozen copy began."""

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
        return HeapScan(content.items() if self.spec.shape is Shape.MAP and content else content)

    def apply(self, changes: Changes) -> None:
        self.removed += self.pending.add(changes)
        for points in changes.points.values():
            self._groups.add(points.keys, points.groups)
        changed: Sequence[tuple[Any, Mapping[Any, ListChange | MapChange]]]
        changed = [*changes.lists.items(), *changes.maps.items()]
        for namespace, content in changed:
            self._groups.add(list(content), [change.group for change in content.values()])
            self.removed += _drop_empty(self.space(namespace).cells, content)

    def export(self, keys: int) -> Iterator[Changes]:
        known = self._groups.as_dict()
        for namespace, space in self._spaces.items():
            cells = iter(space.cells.items())
            while page := list(islice(cells, keys)):
                rows = [(key, known[key], content) for key, content in page]
                yield Changes.whole(self.spec.shape, namespace, rows)

    def keys(self, namespace: Any, page_size: int) -> Iterator[list[Any]]:
        keys = list(self.space(namespace).cells)
        return (keys[start : start + page_size] for start in range(0, len(keys), page_size))

    def replay(self, sections: Sequence[Section]) -> None:
        newest: dict[Any, dict[Any, Any]] = {}
        merging = self.spec.shape is Shape.POINT and len(sections) >= _MERGE_FROM
        for section in sections:
            block = self._decoded(section)
            for namespace, keys, _, contents in block.by_namespace():
                cells = self.space(namespace).cells
                merge = merging and (cells or namespace in newest)
                if merge:
                    merged = newest.setdefault(namespace, {})
                    _replay(Shape.POINT, merged, section.op, keys, contents)
                if not merge or section.op is Operation.DELETE:
                    _replay(self.spec.shape, cells, section.op, keys, contents)
        for namespace, merged in newest.items():
            self.space(namespace).cells.update(merged)

    def _decoded(self, section: Section) -> Block:
        with decoding(lambda _: section.where):
            reader = reader_of(section.description, self.spec)
        block = decode(section, reader)
        self._wrote(self._oldest([section]))
        if section.op in (Operation.PUT, Operation.MERGE):
            self._groups.add(block.keys, block.groups)
        return block

    def frozen(self) -> HeapTable:
        # Values, elements and entries are shared: nobody changes them in place.
        frozen = HeapTable(self.spec)
        frozen._groups = frozen._copied_groups = self._groups.copy()
        for namespace, space in self._spaces.items():
            frozen._spaces[namespace] = Space(
                namespace=namespace, complete=True, cells=_copied(self.spec.shape, space.cells)
            )
        return frozen

    def thaw(self) -> None:
        self._spaces = {}

    def compact_as(self, frozen: HeapTable) -> None:
        """Compact the index of groups as an earlier frozen copy has done since."""
        if frozen._copied_groups is not None:
            self._groups.replace(frozen._copied_groups, frozen._groups)

    def content(self) -> Block | None:
        """Return all cells as a snapshot holds them; ``None`` if there is no cell."""
        parts: list[tuple[Any, list[Any], Groups, list[Any] | None]] = []
        known = self._groups.as_dict() if len(self._spaces) > 1 else None
        for namespace, space in self._spaces.items():
            cells: Mapping[Any, Any] = space.cells
            if self.spec.shape is not Shape.POINT:
                cells = {key: content for key, content in cells.items() if content}
            if cells:
                keys = list(cells)
                groups = self._groups.of(keys, known)
                parts.append((namespace, keys, groups, list(cells.values())))
        runs = [(keys, groups) for _, keys, groups, _ in parts]
        self._groups = GroupIndex(runs, self._groups.walked(self.all_cells()))
        return Block.joined(parts) if parts else None

    def sweep(self, checks: int, until_us: int) -> int:
        if self._walk.is_clean(until_us):
            return 0
        self._resume()
        wanted, removed = min(checks, self._groups.held), 0
        while wanted > 0:
            if self._groups.at_end:
                self._groups.rewind(self.all_cells())
                self._walk.rewind()
                if self._walk.is_clean(until_us):
                    break
            if not (keys := self._groups.walk(wanted)):
                break
            wanted -= len(keys)
            held = len(self)
            removed += self._dropped(keys, until_us)[1]
            self._groups.gone += held - len(self)
        return removed

    def _passed(self) -> int:
        return max(0, self._groups.position - self._groups.gone)

    def _resume(self) -> None:
        """Resume where an earlier process stopped; called only when something may have expired."""
        keys, self._left_off = self._left_off, None
        if keys or (keys is not None and self._groups.held > len(self)):
            self._groups.compact(self.all_cells(), keys)

    @property
    def pending_cells(self) -> int:
        return len(self.pending)

    def changed(self, groups: KeyGroupRange) -> list[Section]:
        sections = [encode(self.spec, op, block, groups) for op, block in self.pending.blocks()]
        self._wrote(self._oldest(sections))
        return sections

    def everything(
        self, groups: KeyGroupRange, pause: Callable[[], object] = lambda: None
    ) -> list[Section]:
        block = self.content()
        sections = [] if block is None else [encode(self.spec, Operation.PUT, block, groups, pause)]
        self._wrote(self._oldest(sections), everything=True)
        return sections

    def _oldest(self, sections: Iterable[Section]) -> int:
        if not self.spec.ttl:
            return NEVER
        return min((oldest_time(section, self.spec) for section in sections), default=NEVER)

    def clean_up(self, deadline: Deadline, groups: KeyGroupRange) -> list[Section]:
        keys, start = [*self._groups.as_dict().items()], 0
        dropped: list[Section] = []
        for cells, until_us in deadline.steps(len(keys)):
            dropped += self.drop(keys[start : start + cells], until_us, groups)
            start += cells
        return dropped

    def drop(self, keys: GroupedKeys, until_us: int, groups: KeyGroupRange) -> list[Section]:
        dropped, _ = self._dropped(keys, until_us)
        if len(dropped):
            log_dropped(len(dropped), self.spec, groups)
        return [encode(self.spec, op, block, groups) for op, block in dropped.blocks()]

    def _dropped(self, keys: GroupedKeys, until_us: int) -> tuple[WriteBuffer, int]:
        """Remove expired content; return the changes, which are already applied, and their number.

        Values, elements and entries are counted.
        """
        dropped, removed = WriteBuffer(), 0
        for namespace, space in self._spaces.items():
            held = len(space.cells)
            found = expired_in(self.spec.shape, namespace, space.cells, keys, until_us)
            changes, gone, oldest_us = found
            removed += gone
            self.removed += held - len(space.cells)
            self._walk.saw(oldest_us)
            dropped.add(changes)
            self.pending.add(changes)
        return dropped, removed

    def settled(self) -> None:
        self.pending = WriteBuffer()
        if len(self._spaces) > 1:
            self._spaces = {n: s for n, s in self._spaces.items() if n is None or s.cells}

    def memory_size(self) -> int:
        return sum(map(table_size, self.all_cells()))

    def __len__(self) -> int:
        return sum(len(space.cells) for space in self._spaces.values())

    def all_cells(self) -> list[dict[Any, Any]]:
        """The dictionaries of all namespaces."""
        return [space.cells for space in self._spaces.values()]


class HeapScan(Scan):
    """A scan of a copy of one list, or of the entries of one map."""

    def __init__(self, content: Iterable[Any]) -> None:
        self._content = list(content)

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        for start in range(0, len(self._content), page_size):
            yield self._content[start : start + page_size]


def _copied(shape: Shape, cells: dict[Any, Any]) -> dict[Any, Any]:
    if shape is Shape.POINT:
        return dict(cells)
    copy: Any = list if shape is Shape.LIST else dict
    return {key: copy(content) for key, content in cells.items()}


def _drop_empty(cells: dict[Any, Any], changed: Iterable[Any]) -> int:
    """Delete changed lists and maps that are now empty: without content they do not exist.

    Return how many of ``changed`` do not exist.
    """
    gone = [key for key in changed if not cells.get(key)]
    for key in gone:
        cells.pop(key, None)
    return len(gone)


def _replay(
    shape: Shape, cells: dict[Any, Any], op: Operation, keys: list[Any], contents: list[Any] | None
) -> None:
    if contents is None:
        for key in keys:
            cells.pop(key, None)
    elif op is Operation.PUT:
        cells.update(zip(keys, contents, strict=True))
    elif op is Operation.REMOVE:
        _remove_entries(cells, keys, contents)
    else:
        for key, content in zip(keys, contents, strict=True):
            present = cells.setdefault(key, content)
            if present is content:
                continue
            if shape is Shape.LIST:
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
