"""Reads the newest cells of a table in the order of their addresses, window by window.

All cells of all runs within a window are read and merged. Lists keep the parts that have different
readers; of all other cells each key has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from forebay_backend_lsm.batched_reads import Reads
from forebay_backend_lsm.files import Block, CellKind, Cells
from forebay_backend_lsm.files.blocks import cells_of_blocks
from forebay_backend_lsm.merging import MergeInput, Rules, merge
from forebay_backend_lsm.runs import FileRun, MemoryRun, Run
from forebay_state_api.contract.backend import TableSpec

END: Final = 1 << 64
"""An address above all others."""

Lane = tuple[TableSpec, Cells]
"""Sorted cells, and the spec whose codecs unpack them."""


class NewestCells:
    """The newest cells of one table, without deletes and clears."""

    def __init__(self, reads: Reads) -> None:
        """``reads`` view the table's current state."""
        self._reads: Final = reads
        self._lanes: Final = _lanes(reads.runs)
        self._readers: Final = _readers(reads.runs, self._lanes)

    def window(self, start: int, high: int, cells: int) -> tuple[list[Lane], int]:
        """Return about ``cells`` cells from ``start`` on, below ``high``, and the address after.

        Lanes are from the oldest to the newest.
        """
        stop = min(high, self._reach(start, cells))
        found = [*self._read(start, stop)]
        filled = [at for at, one in enumerate(found) if len(one)]
        if len(filled) == 1 and not found[filled[0]].kinds.any():
            at = filled[0]  # puts of one run: nothing to merge
            return [(self._readers[self._lanes[at]], found[at])], stop
        runs = [
            MergeInput(iter([(min(stop, END - 1), one)]), lane)
            for one, lane in zip(found, self._lanes, strict=True)
        ]
        merged: dict[int, list[Cells]] = {}
        for part in merge(runs, Rules(bottom=True)):
            merged.setdefault(part.lane, []).append(part.cells)
        lanes = [(self._readers[lane], Cells.concat(of)) for lane, of in sorted(merged.items())]
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
            found = [block for _, block in sorted(next(blocks).items())]
            yield _between(_joined(run, found), *run.clip(start, stop - 1))


def _lanes(runs: Sequence[Run]) -> list[int]:
    """Assign lanes to runs, oldest first: neighbours with the same reader share a lane."""
    lanes: list[int] = []
    before: TableSpec | None = None
    for run in runs[::-1]:
        lanes.append((lanes[-1] if lanes else -1) + (run.reader is not before))
        before = run.reader
    return lanes


def _readers(runs: Sequence[Run], lanes: Sequence[int]) -> dict[int, TableSpec]:
    """Return the spec whose codecs unpack each lane's values."""
    return {lane: run.reader for lane, run in zip(lanes, runs[::-1], strict=True)}


def _joined(run: FileRun, blocks: Sequence[Block]) -> Cells:
    has_times = run.residence.has_times
    if not blocks:
        return NO_CELLS[has_times]
    raws, counts = [block.raw for block in blocks], [block.count for block in blocks]
    return cells_of_blocks(raws, counts, has_times=has_times)


def _between(cells: Cells, first: int, last: int) -> Cells:
    """Return the cells of addresses ``first`` to ``last``, both inclusive."""
    bounds = np.array([max(first, 0), max(last, 0)], np.uint64)
    start = int(np.searchsorted(cells.addresses, bounds[0], "left"))
    stop = int(np.searchsorted(cells.addresses, bounds[1], "right"))
    return cells.slice(start, max(stop, start))


NO_CELLS: Final = {
    has_times: Cells.of(np.zeros(0, np.uint64), CellKind.PUT, [], [], [] if has_times else None)
    for has_times in (True, False)
}
