"""Looks up a few cells of a table that has few cells in each run, one run after the other.

`batched_reads` handles all cells of a batch in each step. For a cell or two each step costs the
same as for thousands, so hundreds of small tables would cost hundreds of times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.file_reader import read_few
from forebay_backend_lsm.files import Cell, CellKind, FewCells, Filter
from forebay_backend_lsm.files.cells import GROUP_SHIFT
from forebay_backend_lsm.opened_files import OpenedFile, OpenedFiles
from forebay_backend_lsm.runs import MemoryRun
from forebay_state_api import KeyGroupRange

MOST_ASKED: Final = 8
"""Most cells that are looked up one after the other."""

CellPlace: TypeAlias = tuple[int, bytes]
"""Address and key of a cell."""


class Runs(NamedTuple):
    """The runs of a table, newest first, and what the table is."""

    name: str
    described: bytes
    """The packed description of the table."""
    memory: Sequence[MemoryRun]
    opened: OpenedFiles


def newest_few(
    runs: Runs, asked: Sequence[CellPlace], clears: Sequence[CellPlace] = ()
) -> list[Cell | None] | None:
    """Return the newest cell of a table at each place, whatever its kind.

    In a map table, ``clears`` has the place of the clear of each cell's map. Returns ``None`` if
    the table has more than few cells in a run, or cells that were described otherwise.
    """
    name, described, memory, opened = runs
    search = _Search(asked, clears)
    for run in memory:
        if run.few is None:
            return None
        search.within(run.few, None)
    files = opened.newest_first
    for level, (source, groups) in enumerate(files):
        if not search.left:
            break
        section = source.file.sections.get(name)
        if section is None:
            continue
        if not section.has_few or section.described != described:
            return None
        if source.holds_few(name):
            CACHE.note(hits=len(search.left))
        else:
            # One thread reads what the others find.
            with opened.reading:
                if not _is_read(name, files[level:], search):
                    continue
        block = source.few(name)
        few = FewCells.of_block(block, section.cells, has_times=section.has_times)
        search.within(few, groups)
    return search.found


class _Search:
    """Finds cells in one run after the other."""

    def __init__(self, asked: Sequence[CellPlace], clears: Sequence[CellPlace]) -> None:
        self.found: Final[list[Cell | None]] = [None] * len(asked)
        self.left: list[int] = [*range(len(asked))]
        """The positions of the cells that older runs may have."""
        self._asked: Final = asked
        self._clears: Final = clears

    def within(self, few: FewCells, groups: KeyGroupRange | None) -> None:
        """Search the next run.

        ``groups`` are the key groups that are read there, by default all.
        """
        left = []
        for i in self.left:
            address, key = self._asked[i]
            if groups is not None and not groups.start <= address >> GROUP_SHIFT <= groups.end:
                left.append(i)
                continue
            cell = self.found[i] = few.find(address, key)
            if cell is None and not self._is_cleared(few, i):
                left.append(i)
        self.left = left

    def passes(self, test: Filter) -> bool:
        """Return whether a run with this filter may decide any of the cells."""
        places = [self._asked[i][0] for i in self.left]
        if self._clears:
            places += [self._clears[i][0] for i in self.left]
        return any(map(test.may_hold, places))

    def _is_cleared(self, few: FewCells, i: int) -> bool:
        if not self._clears:
            return False
        cell = few.find(*self._clears[i])
        return cell is not None and cell.kind == CellKind.CLEAR


def _is_read(name: str, files: Sequence[OpenedFile], search: _Search) -> bool:
    """Read the table's block of the first file if it may decide a cell; return whether it was read.

    Where requests wait, the blocks of the other files are requested at the same time.
    """
    first = files[0][0]
    if first.holds_few(name):
        return True
    wanted = [
        source
        for source, _ in (files if first.waits else files[:1])
        if (section := source.file.sections.get(name)) is not None
        and section.has_few
        and not source.holds_few(name)
        and search.passes(section.filter)
    ]
    if not wanted or wanted[0] is not first:
        return False
    CACHE.note(misses=len(search.left))
    read_few(wanted, name)
    return True
