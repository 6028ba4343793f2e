"""Reads ordered maps: ranges of entries in the order of their keys, and single entries.

The entries of an ordered map are sorted by their keys, and the index of a file has the first key of
each block. So a read searches for the blocks that it needs, and in these for the cells.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from forebay_backend_lsm.addressing import AddressedKeys, Addressing, order_bits
from forebay_backend_lsm.batched_reads import Reads
from forebay_backend_lsm.files import Block, CellKind
from forebay_backend_lsm.files.cells import Place
from forebay_backend_lsm.runs import FileRun, MemoryRun, Run
from forebay_backend_lsm.scans import FoundEntry, MapScan
from forebay_state_api.contract.backend import TableSpec, packed_bounds
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.contract.key_range import KeyRange

_MOST_AHEAD: Final = 16
"""Most blocks of one run that a scan reads at once: one at first, then more."""

Cell = tuple[bytes, Run, Block, int]
"""A cell's key, its run, its block, and its position there."""


class _Blocks:
    """Blocks of several runs, read together; the cells of a run in memory are one block."""

    def __init__(self, reads: Reads) -> None:
        self._reads: Final = reads
        self._held: Final[dict[Run, dict[int, Block]]] = {}

    def load(self, wanted: Iterable[tuple[Run, Iterable[int]]]) -> None:
        """Read the blocks that are not held."""
        absent: dict[FileRun, set[int]] = {}
        for run, numbers in wanted:
            held = self._held.setdefault(run, {})
            if isinstance(run, FileRun):
                absent.setdefault(run, set()).update(n for n in numbers if n not in held)
            elif isinstance(run, MemoryRun) and not held:
                held[0] = run.block
        asked = [(run, sorted(numbers)) for run, numbers in absent.items() if numbers]
        for (run, _), found in zip(asked, self._reads.blocks(asked), strict=True):
            self._held[run].update(found)

    def take(self, run: Run, number: int) -> Block:
        """Return a block, and hold it no longer."""
        return self._held[run].pop(number)

    def cell(self, run: Run, place: Place) -> tuple[Block, int] | None:
        """Return the cell at a place, as its block and its position there."""
        key = place[1]
        for number in _numbers(run, place, place):
            block = self._held[run][number]
            at = block.lower_bound(place)
            if at < block.count and block.key(at) == key:
                return block, at
        return None


def _numbers(run: Run, low: Place, high: Place) -> range:
    """Return the numbers of the blocks between two places, both inclusive."""
    return run.table.between(low, high) if isinstance(run, FileRun) else range(1)


class RangeScan(MapScan):
    """A scan of a range of an ordered map; holds some blocks of each run."""

    def __init__(self, spec: TableSpec, reads: Reads, batch: AddressedKeys, part: KeyRange) -> None:
        """``batch`` addresses the map's prefix, at its lowest address."""
        super().__init__(spec, reads, batch)
        low, high = packed_bounds(spec, part)
        self._low: Final = self.place(low or b"")
        self._high: Final[Place] = (self._last, None) if high is None else self.place(high)
        self._descending: Final = part.descending

    def place(self, user_key: bytes) -> Place:
        """Return the place of an entry; of the map's clear, if ``user_key`` is empty."""
        return self._first | order_bits(user_key), self._prefix + user_key

    @cached_property
    def holders(self) -> list[Run]:
        """The runs that may hold cells of the map, newest first."""
        return [run for run in self._reads.runs if self._may_hold(run)]

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        puts = (cell for cell in self._newest() if cell[2].kinds[cell[3]] == CellKind.PUT)
        while page := list(islice(puts, page_size)):
            yield self.unpacked(page)

    def _newest(self) -> Iterator[Cell]:
        """Yield the newest cell of each key in the range, whatever its kind."""
        before = None
        blocks = _Blocks(self._reads)
        lanes = [self._cells(run, numbers, blocks) for run, numbers in self._lanes(blocks)]
        # Of equal keys, the one from the newest run comes first.
        for cell in heapq.merge(*lanes, key=itemgetter(0), reverse=self._descending):
            if cell[0] != before:
                before = cell[0]
                yield cell

    def _lanes(self, blocks: _Blocks) -> list[tuple[Run, Sequence[int]]]:
        """Return the runs to read, newest first, each with its blocks in the scan's direction."""
        runs, clear = self.holders, self.place(b"")
        lanes: list[tuple[Run, Sequence[int]]] = []
        for run in runs:
            numbers = _numbers(run, self._low, self._high)
            lanes.append((run, numbers[::-1] if self._descending else numbers))
        heads = [(run, _numbers(run, clear, clear)) for run in runs if run.clears]
        blocks.load([*heads, *((run, numbers[:1]) for run, numbers in lanes)])
        cleared = [run.clears and blocks.cell(run, clear) is not None for run in runs]
        return lanes[: cleared.index(True) + 1] if True in cleared else lanes

    def _cells(self, run: Run, numbers: Sequence[int], blocks: _Blocks) -> Iterator[Cell]:
        """Yield the cells of one run in the scan's direction."""
        ahead = 1
        while numbers:
            some, numbers = numbers[:ahead], numbers[ahead:]
            ahead = min(2 * ahead, _MOST_AHEAD)
            blocks.load([(run, some)])
            for number in some:
                block = blocks.take(run, number)
                inside = range(block.lower_bound(self._low), block.lower_bound(self._high))
                for at in inside[::-1] if self._descending else inside:
                    key = block.key(at)
                    # Another map may have the same address; a bare prefix is a clear.
                    if key.startswith(self._prefix) and len(key) > len(self._prefix):
                        yield key, run, block, at

    def unpacked(self, page: Sequence[Cell]) -> list[Any]:
        """Return the entries of puts, which may have several readers, in their order."""
        cut = len(self._prefix)
        found: dict[int, list[tuple[bytes, FoundEntry]]] = {}
        for key, run, block, at in page:
            time = None if block.times is None else int(block.times[at])
            entry = key[cut:], (run, int(CellKind.PUT), time, block.value(at))
            found.setdefault(id(run.reader), []).append(entry)
        unpacked = {
            id(reader): self._unpacked(reader, found[id(reader)])
            for reader in (run.reader for _, run, _, _ in page)
        }
        return [next(unpacked[id(run.reader)]) for _, run, _, _ in page]


def entries_of(
    spec: TableSpec,
    reads: Reads,
    addressing: Addressing,
    namespace: Any,
    cells: Sequence[tuple[int, Any, Any]],
) -> list[Any]:
    """Return the values of ``(key group, key, user key address)`` cells of an ordered table."""
    maps: dict[tuple[int, Any], RangeScan] = {}
    for group, key, _ in cells:
        if (group, key) not in maps:
            batch = addressing.one_map(namespace, group, key)
            maps[group, key] = RangeScan(spec, reads, batch, KeyRange())
    packed = addressing.user_keys([cell[2] for cell in cells])
    wanted: list[tuple[Run, Iterable[int]]] = []
    for (group, key, _), user_key in zip(cells, packed, strict=True):
        one = maps[group, key]
        for run in one.holders:
            places = [one.place(user_key), *([one.place(b"")] if run.clears else [])]
            wanted += [(run, _numbers(run, place, place)) for place in places]
    blocks = _Blocks(reads)
    blocks.load(wanted)
    return [
        _value(maps[group, key], blocks, user_key)
        for (group, key, _), user_key in zip(cells, packed, strict=True)
    ]


def _value(one: RangeScan, blocks: _Blocks, user_key: bytes) -> Any:
    """Return an entry's value from the newest run that has it or cleared its map."""
    place, clear = one.place(user_key), one.place(b"")
    for run in one.holders:
        found = blocks.cell(run, place)
        if found is not None:
            block, at = found
            if block.kinds[at] != CellKind.PUT:
                return ABSENT
            ((_, value),) = one.unpacked([(block.key(at), run, block, at)])
            return value
        if run.clears and blocks.cell(run, clear) is not None:
            return ABSENT
    return ABSENT
