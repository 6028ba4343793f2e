"""The table of one state: a memtable over the opened runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, Final

import numpy as np

from forebay_backend_lsm.addressing import (
    I64,
    AddressedKeys,
    Addressing,
    Entries,
    by_head,
    key_in,
    keys_in,
    namespace_of,
    prefix_of,
)
from forebay_backend_lsm.batched_reads import Reads, contents, where
from forebay_backend_lsm.export import exported_points
from forebay_backend_lsm.few_reads import MOST_ASKED, CellPlace, Runs, newest_few
from forebay_backend_lsm.files import Cell, CellKind
from forebay_backend_lsm.files.layout import packed_description
from forebay_backend_lsm.memtable import Memtable, Memtables
from forebay_backend_lsm.opened_files import OpenedFile, OpenedFiles
from forebay_backend_lsm.ranges import RangeScan, entries_of
from forebay_backend_lsm.runs import FileRun, MemoryRun
from forebay_backend_lsm.scans import ListScan, MapScan
from forebay_backend_lsm.search import Hits
from forebay_backend_lsm.sweeping import Sweep
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.backend import Scan, Table, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, Shape, Space
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.errors import CorruptStateError

_GROUP_SHIFT: Final = 48
_BLOCKS_AT_ONCE: Final = 64
_PAGE: Final = 4_096


class LsmTable(Table):
    """A non-resident table, which reads files through the process's cache."""

    def __init__(
        self,
        spec: TableSpec,
        opened: OpenedFiles,
        memtables: Memtables,
        applied: Callable[[], None],
        swept: int = 0,
    ) -> None:
        """``opened`` and ``memtables`` are shared by all tables.

        ``applied`` is called after each `apply`.
        ``swept`` is the address at which the next sweep begins.
        """
        self.spec: Final = spec
        self.memtable: Final = Memtable(spec, memtables)
        self.described: Final = packed_description(spec.description())
        """The packed description of ``spec``."""
        self._opened: Final = opened
        self._files: tuple[FileRun, ...] = ()
        self._files_of: tuple[OpenedFile, ...] = ()
        """The opened files that have the parts ``_files``."""
        self.swept = swept
        """The address at which the next sweep begins."""
        self._addressing: Final = Addressing(spec)
        self._applied: Final = applied
        self._spaces: Final[dict[Any, Space]] = {}

    @property
    def files(self) -> tuple[FileRun, ...]:
        """The parts of the table that files hold, newest first."""
        opened = self._opened.newest_first
        if self._files_of is not opened:
            self._files, self._files_of = self._opened.runs(self.spec), opened
        return self._files

    def space(self, namespace: Any) -> Space:
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = Space(namespace=namespace, complete=False)
        return space

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        answers: list[Any] = [ABSENT] * len(keys)
        if not keys:
            return answers
        if len(keys) <= MOST_ASKED:
            found = self._newest_few(self._addressing.places(namespace, keys))
            if found is not None:
                return found
        return self._fill(answers, self._addressing.asked(namespace, keys), None)

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        answers: list[Any] = [ABSENT] * len(cells)
        if not cells:
            return answers
        if self.spec.ordered:
            return entries_of(self.spec, self._reads(), self._addressing, namespace, cells)
        if len(cells) <= MOST_ASKED:
            found = self._newest_few(*self._addressing.entry_places(namespace, cells))
            if found is not None:
                return found
        if any(run.reader.user_key is not self.spec.user_key for run in self.files):
            return self._through_scans(namespace, cells)
        entries = self._addressing.entries(namespace, cells)
        return self._fill(answers, entries.cells, self._floors(entries))

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        if self.spec.shape is Shape.LIST:
            return ListScan(self.spec, self._reads(), self._addressing.one(namespace, group, key))
        if self.spec.ordered:
            return self.scan_range(namespace, group, key, KeyRange())
        return MapScan(self.spec, self._reads(), self._addressing.one_map(namespace, group, key))

    def scan_range(self, namespace: Any, group: int, key: Any, part: KeyRange) -> Scan:
        batch = self._addressing.one_map(namespace, group, key)
        return RangeScan(self.spec, self._reads(), batch, part)

    def apply(self, changes: Changes) -> None:
        self.memtable.add(self._addressing, changes)
        self._applied()

    def export(self, keys: int) -> Iterator[Changes]:
        """Export points by columns; lists and maps by key groups, holding the keys of one."""
        if self.spec.shape is Shape.POINT:
            yield from exported_points(self.spec, self._reads(), keys)
            return
        for group, prefixes in self._prefixes(self._reads()):
            while page := list(islice(prefixes, keys)):
                for head, of_namespace in by_head(page).items():
                    yield self._exported(group, head, of_namespace)

    def keys(self, namespace: Any, page_size: int) -> Iterator[list[Any]]:
        """Implement `Table.keys`; holds the keys of one key group in memory."""
        return self._pages_of_keys(self._reads(), namespace, page_size)

    def _pages_of_keys(self, reads: Reads, namespace: Any, page_size: int) -> Iterator[list[Any]]:
        for _, prefixes in self._prefixes(reads):
            keys = (self._key_of(one) for one in prefixes if namespace_of(one) == namespace)
            while page := list(islice(keys, page_size)):
                yield page

    def _key_of(self, prefix: bytes) -> Any:
        return self.spec.key.unpack_one(key_in(prefix))

    def _exported(self, group: int, head: bytes, prefixes: list[bytes]) -> Changes:
        """Return the content of keys of one namespace, given their prefixes."""
        packed = keys_in(prefixes, len(head))
        keys = self.spec.key.unpack_each(b"".join(packed), [*map(len, packed)])
        namespace = namespace_of(head)
        contents = [
            [one for page in self.scan(namespace, group, key).pages(_PAGE) for one in page]
            for key in keys
        ]
        return Changes.whole(self.spec.shape, namespace, zip(keys, repeat(group), contents))

    def sweep(self, checks: int, until_us: int) -> int:
        """Implement `Table.sweep`; each list and each map entry counts as one check.

        Skips maps whose user keys are stored in another encoding, because addresses do not show
        which of their entries are the same.
        """
        reads = self._reads()
        if any(run.reader.user_key is not self.spec.user_key for run in reads.runs):
            return 0
        done = Sweep(self.spec, reads, until_us).run(self.swept, checks)
        self.swept = done.cursor
        if done.changes is None:
            return 0
        self.memtable.put(done.changes)
        return done.removed

    def _reads(self) -> Reads:
        """Return a reader of the table's current state."""
        return Reads((*self.memtable.runs, *self.files))

    def _newest_few(
        self, asked: Sequence[CellPlace], clears: Sequence[CellPlace] = ()
    ) -> list[Any] | None:
        """Return the values at some places; ``None`` if they should be read as a batch."""
        runs = Runs(self.spec.name, self.described, self.memtable.runs, self._opened)
        found = newest_few(runs, asked, clears)
        if found is None:
            return None
        unpack = self.spec.value.unpack_each
        # The batch meets the same damage, and says where it is.
        with contextlib.suppress(CorruptStateError):
            return [_value(cell, unpack) for cell in found]
        return None

    def _fill(self, answers: list[Any], batch: AddressedKeys, floors: I64 | None) -> list[Any]:
        for reader, hits in self._reads().newest(batch, floors):
            puts = hits.only(CellKind.PUT)
            with decoding(partial(self._where, batch, puts)):
                for i, value in zip(*contents(reader, puts), strict=True):
                    answers[i] = value
        return answers

    def _where(self, batch: AddressedKeys, puts: Hits, at: int | None) -> str:
        """Name the unreadable cell and the newest file that has it."""
        asked = int(puts.which[at or 0])
        one = AddressedKeys(batch.addresses[asked : asked + 1], [batch.keys[asked]])
        return where(self.spec, one, self._reads().holders(one)[:1])

    def _floors(self, entries: Entries) -> I64 | None:
        """Return, for each entry, the oldest run, counted from the newest, that a clear leaves."""
        runs = self._reads().runs
        levels = [level for level, run in enumerate(runs) if run.clears]
        if not levels:
            return None
        floors = np.full(len(entries.cells), len(runs), np.int64)
        for level in reversed(levels):
            for _, hits in Reads([runs[level]]).newest(entries.prefixes):
                floors[hits.which] = level
        return floors

    def _through_scans(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        """Find entries of maps whose user keys have another encoding by reading whole maps."""
        maps: dict[tuple[int, Any], dict[Any, Any]] = {}
        for group, key, _ in cells:
            if (group, key) not in maps:
                pages = self.scan(namespace, group, key).pages(_BLOCKS_AT_ONCE)
                maps[group, key] = {address: value for page in pages for address, value in page}
        return [maps[group, key].get(address, ABSENT) for group, key, address in cells]

    def _prefixes(self, reads: Reads) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield each key group that has cells, and the prefixes of its cells, each once."""
        for group in sorted({group for run in reads.runs for group in run.groups}):
            cell_keys = _cell_keys(reads, group << _GROUP_SHIFT, (group + 1 << _GROUP_SHIFT) - 1)
            if self.spec.shape is Shape.MAP:
                cell_keys = map(prefix_of, cell_keys)
            yield group, iter(dict.fromkeys(cell_keys))  # elsewhere a key is its own prefix


def _value(cell: Cell | None, unpack: Callable[[bytes, Sequence[int]], list[Any]]) -> Any:
    """Return the stored value of a cell."""
    if cell is None or cell.kind != CellKind.PUT:
        return ABSENT
    (value,) = unpack(cell.value, (len(cell.value),))
    return value if cell.time is None else (cell.time, value)


def _cell_keys(reads: Reads, first: int, last: int) -> Iterator[bytes]:
    """Yield the keys of all runs between two addresses, both inclusive; may repeat keys."""
    for run in reads.runs:
        if isinstance(run, MemoryRun):
            yield from run.block.keys(*run.block.slice_of(first, last))
        elif isinstance(run, FileRun):
            span = run.span(first, last)
            for start in range(0, len(span), _BLOCKS_AT_ONCE):
                numbers = span[start : start + _BLOCKS_AT_ONCE]
                for block in reads.blocks([(run, numbers)])[0].values():
                    yield from block.keys(*block.slice_of(*run.clip(first, last)))
