"""Sweeps a table for expired content, step by step in address order, from where it stopped.

A step takes a range of addresses in which one run has about the wanted number of cells, reads all
cells of all runs there, and merges them, so that it checks each cell's newest content. It
overwrites expired content as the function itself would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np

from forebay_backend_lsm.batched_reads import Reads
from forebay_backend_lsm.encoding import pack_elements, unpack_elements
from forebay_backend_lsm.files import Cells, Kind
from forebay_backend_lsm.files.arrow import binary_array
from forebay_backend_lsm.files.cells import Positions
from forebay_backend_lsm.merging import MergeInput, Rules, expired, merge
from forebay_backend_lsm.runs import FileRun, MemoryRun, Run
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Shape

END: Final = 1 << 64
"""Greater than any address."""
_STEP: Final = 50_000
"""Most cells of one run that are read at once."""
_PAGE: Final = 1_000


@attrs.frozen
class Swept:
    """The result of a sweep."""

    changes: Cells | None
    """Sorted cells that remove the expired content."""
    cursor: int
    """The address at which the next sweep begins."""


class Sweep:
    """Checks a limited number of cells of one table."""

    def __init__(self, spec: TableSpec, reads: Reads, until_us: int) -> None:
        """``reads`` view the table's current state; content is expired at ``until_us`` or older."""
        self._spec: Final = spec
        self._reads: Final = reads
        self._until_us: Final = until_us
        self._lanes: Final = _lanes(reads.runs)

    def run(self, cursor: int, checks: int) -> Swept:
        """Begin at ``cursor``, wrap around to the lowest address, and end before ``cursor``."""
        found: list[Cells] = []
        start, checked = cursor, 0
        for low, high in ((cursor, END), (0, cursor)):
            start = low
            while start < high and checked < checks:
                lanes, stop = self._cells(start, high, checks - checked)
                checked += sum(map(len, lanes))
                found += filter(len, [self._expired(lanes)])
                start = stop
            if checked >= checks:
                break
        changes = Cells.concat(found).sorted() if found else None
        return Swept(changes, 0 if start >= END else start)

    def _cells(self, start: int, high: int, checks: int) -> tuple[Sequence[Cells], int]:
        """Return about ``checks`` cells from ``start`` on, by lane, and the address after them."""
        stop = min(high, self._reach(start, min(checks, _STEP)))
        runs = [
            MergeInput(iter([(min(stop, END - 1), cells)]), lane)
            for cells, lane in zip(self._read(start, stop), self._lanes, strict=True)
        ]
        merged: dict[int, list[Cells]] = {}
        for part in merge(runs, Rules(bottom=True)):
            merged.setdefault(part.lane, []).append(part.cells)
        lanes = [Cells.concat(parts) for _, parts in sorted(merged.items())]
        addresses = np.sort(np.concatenate([np.zeros(0, np.uint64), *(c.addresses for c in lanes)]))
        if len(addresses) > checks:
            # Check all cells of the last address.
            after = addresses[np.searchsorted(addresses, addresses[checks - 1], "right") :]
            if len(after):
                stop = int(after[0])
                lanes = [c.slice(0, int(np.searchsorted(c.addresses, after[0]))) for c in lanes]
        return lanes, stop

    def _reach(self, start: int, cells: int) -> int:
        """Return an address before which the largest run from ``start`` on has about ``cells``."""
        most, reach = 0, END
        for run in self._reads.runs:
            if isinstance(run, MemoryRun):
                addresses = run.cells.addresses
                at = int(np.searchsorted(addresses, np.array([start], np.uint64)[0]))
                count = len(addresses) - at
                stop = int(addresses[at + cells]) if count > cells else END
            else:
                assert isinstance(run, FileRun)
                span = run.span(start, END - 1)
                counts = np.cumsum(run.residence.counts[span.start : span.stop])
                count = int(counts[-1]) if len(counts) else 0
                # Most of the first block may be before the start.
                block = span.start + 1 + int(np.searchsorted(counts, cells)) + 1
                stop = int(run.table.first_addresses[block]) if block < span.stop else END
            if count > most:
                most, reach = count, max(stop, start + 1)
        return reach

    def _read(self, start: int, stop: int) -> Iterator[Cells]:
        """Yield each run's cells from ``start`` to ``stop`` (exclusive), oldest run first."""
        runs = self._reads.runs[::-1]
        wanted = [(run, run.span(start, stop - 1)) for run in runs if isinstance(run, FileRun)]
        blocks = iter(self._reads.blocks(wanted))
        for run in runs:
            if isinstance(run, MemoryRun):
                yield _between(run.cells, start, stop - 1)
                continue
            assert isinstance(run, FileRun)
            first, last = run.clip(start, stop - 1)
            parts = [
                _between(block.cells, first, last) for _, block in sorted(next(blocks).items())
            ]
            yield Cells.concat(parts) if parts else _NO_CELLS[run.residence.has_times]

    def _expired(self, lanes: Sequence[Cells]) -> Cells:
        if self._spec.shape is Shape.LIST:
            return self._of_lists(lanes)
        old = Cells.concat([_NO_CELLS[True], *(c.take(self._expired_in(c)) for c in lanes)])
        nothing = binary_array([b""] * len(old))
        kinds = np.full(len(old), Kind.DELETE, np.uint8)
        times = np.zeros(len(old), np.int64)
        return attrs.evolve(old, kinds=kinds, times=times, values=nothing)

    def _of_lists(self, lanes: Sequence[Cells]) -> Cells:
        """Return the lists with expired elements, without these; joins their parts of all lanes."""
        found: dict[tuple[int, bytes], list[tuple[TableSpec, bytes]]] = {}
        for cells in lanes:
            for at in self._expired_in(cells).tolist():
                found[int(cells.addresses[at]), cells.keys[at].as_py()] = []
        if not found:
            return _NO_CELLS[False]
        readers = self._readers()
        for cells, reader in zip(lanes, readers, strict=True):
            addresses = np.array([address for address, _ in found], np.uint64)
            for at in np.flatnonzero(np.isin(cells.addresses, addresses)).tolist():
                place = int(cells.addresses[at]), cells.keys[at].as_py()
                if place in found:
                    found[place].append((reader, cells.values[at].as_py()))
        values = [self._without_expired(parts) for parts in found.values()]
        kinds = [Kind.PUT if value else Kind.DELETE for value in values]
        return Cells.of(
            np.array([address for address, _ in found], np.uint64),
            np.array(kinds, np.uint8),
            [key for _, key in found],
            values,
        )

    def _expired_in(self, cells: Cells) -> Positions:
        """Return the positions of cells with expired content."""
        until = np.full(len(cells), self._until_us, np.int64)
        stamped = self._spec.shape is Shape.LIST
        return np.flatnonzero(expired(cells, until, stamped_lists=stamped))

    def _without_expired(self, parts: Sequence[tuple[TableSpec, bytes]]) -> bytes:
        live = [
            element
            for reader, value in parts
            for page in unpack_elements(reader, value, _PAGE)
            for element in page
            if element[0] > self._until_us
        ]
        return pack_elements(self._spec, live)

    def _readers(self) -> list[TableSpec]:
        """Return the specs whose codecs unpack each lane's values."""
        runs = self._reads.runs[::-1]
        by_lane = {lane: run.reader for lane, run in zip(self._lanes, runs, strict=True)}
        return [reader for _, reader in sorted(by_lane.items())]


def _lanes(runs: Sequence[Run]) -> list[int]:
    """Assign lanes to runs, oldest first: neighbours with the same reader share a lane."""
    lanes: list[int] = []
    before: TableSpec | None = None
    for run in runs[::-1]:
        lanes.append((lanes[-1] if lanes else -1) + (run.reader is not before))
        before = run.reader
    return lanes


def _between(cells: Cells, first: int, last: int) -> Cells:
    """Return the cells of addresses ``first`` to ``last``, both inclusive."""
    bounds = np.array([max(first, 0), max(last, 0)], np.uint64)
    start = int(np.searchsorted(cells.addresses, bounds[0], "left"))
    stop = int(np.searchsorted(cells.addresses, bounds[1], "right"))
    return cells.slice(start, max(stop, start))


_NO_CELLS: Final = {
    has_times: Cells.of(np.zeros(0, np.uint64), Kind.PUT, [], [], [] if has_times else None)
    for has_times in (True, False)
}
