"""Runs, which hold the cells of one table.

A run is a file, clipped to the key groups for which it is read, or a part of the memtable. The runs
of a table are kept from the newest to the oldest; if two runs have a cell of one key, the newer
run's cell counts.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forebay_backend_lsm.addressing import I64, U64, AddressedKeys
from forebay_backend_lsm.files import Block, Cells, FileTable, Kind, Probes
from forebay_backend_lsm.files.blocks import Cutter
from forebay_backend_lsm.search import Arena, CandidateBlocks, Hits, Mask, search
from forebay_state_api.contract.backend import TableSpec

if TYPE_CHECKING:
    from forebay_backend_lsm.cache import Residence
    from forebay_backend_lsm.file_reader import FileSource
    from forebay_state_api.keys import KeyGroupRange

_GROUP_SHIFT: Final = 48


class Run(abc.ABC):
    """The cells of one table in one run."""

    reader: TableSpec
    """The spec whose codecs unpack the cells."""
    clears: bool
    """Whether the run has cells of `Kind.CLEAR`."""
    where: str = "memory"
    """The run's file, for messages."""

    @property
    @abc.abstractmethod
    def groups(self) -> Iterable[int]:
        """The key groups that may have cells in the run."""


class MemoryRun(Run):
    """A part of the memtable: sorted cells, as one block."""

    def __init__(self, spec: TableSpec, cells: Cells) -> None:
        """``cells`` are sorted, and packed by the codecs of ``spec``."""
        self.reader = spec
        self.cells: Final = cells
        self.clears = bool((cells.kinds == Kind.CLEAR).any())
        self.raw: Final = Cutter(cells).raw(0, len(cells))
        self._arena: Final = Arena.of([self.raw])[0]

    @property
    def groups(self) -> Iterable[int]:
        groups: list[int] = np.unique(self.cells.addresses >> np.uint64(_GROUP_SHIFT)).tolist()
        return groups

    @property
    def size(self) -> int:
        """Bytes of memory that it takes up."""
        return len(self.raw) + int(self.cells.keys.nbytes + self.cells.values.nbytes)

    @property
    def block(self) -> Block:
        """All cells as one block."""
        import pyarrow as pa

        return Block(pa.py_buffer(self.raw), len(self.cells), has_times=self._has_times)

    @property
    def _has_times(self) -> bool:
        return self.cells.times is not None

    def find(self, batch: AddressedKeys, which: I64) -> Hits:
        """Find the cells ``which`` of the batch in this run."""
        bases = np.zeros(len(which), np.int64)
        counts = np.full(len(which), len(self.cells), np.int64)
        return search(self._arena, CandidateBlocks(bases, counts, self._has_times), batch, which)


class FileRun(Run):
    """One table in one open file, within a key-group range."""

    def __init__(
        self,
        source: FileSource,
        name: str,
        groups: KeyGroupRange,
        reader: TableSpec,
    ) -> None:
        """``name`` is the table's name."""
        self.reader = reader
        self.source: Final = source
        self.table: Final[FileTable] = source.file.tables[name]
        self.residence: Final[Residence] = source.residences[name]
        self.clears = self.table.counts[Kind.CLEAR] > 0
        self.where = f"file {source.file.file.name!r} {source.where}"
        self._groups: Final = groups
        self._low: Final = groups.start << _GROUP_SHIFT
        self._high: Final = (groups.end + 1 << _GROUP_SHIFT) - 1
        first, last = self.clip(*self.table.section.addresses)
        self._first, self._last = np.uint64(first), np.uint64(last)
        self._width: Final = last - first
        self._whole: Final = (first, last) == self.table.section.addresses

    @property
    def groups(self) -> KeyGroupRange:
        return self._groups

    def candidates(self, batch: AddressedKeys, which: I64) -> tuple[I64, I64]:
        """Return the cells among ``which`` that may be here, and the block that would hold each."""
        probes, table = batch.probes, self.table
        narrow = 2 * self._width < batch.span
        if narrow:
            # The file is one of several of a run: most cells are outside its range, a cheap check.
            which = which[self._within(batch.addresses[which])]
        everything = len(which) == len(batch)
        if not everything:
            probes = Probes(probes.high[which], probes.masks[which])
        may = np.flatnonzero(table.filter.passes(probes))
        which = may if everything else which[may]
        asked = batch.addresses[which]
        if not (narrow or self._whole):
            within = self._within(asked)
            asked, which = asked[within], which[within]
        blocks = np.searchsorted(table.first_addresses, asked, "right") - 1
        if len(blocks) and blocks.min() < 0:
            there = blocks >= 0
            return which[there], blocks[there]
        return which, blocks

    def _within(self, addresses: U64) -> Mask:
        """Mark the addresses between the lowest and the highest one that is read here."""
        answer: Mask = (addresses >= self._first) & (addresses <= self._last)
        return answer

    def span(self, first: int, last: int) -> range:
        """The blocks that may hold addresses ``first`` to ``last``, both inclusive."""
        return self.table.span(*self.clip(first, last))

    def clip(self, first: int, last: int) -> tuple[int, int]:
        """Clip an address range to the key groups that are read here."""
        return max(first, self._low), min(last, self._high)

    def raw_size(self, block: int) -> int:
        """Return the bytes of a block when decompressed."""
        return int(self.table.raw_sizes[block])

    def view(self, block: int, raw: Any) -> Block:
        """View a block whose raw bytes are given."""
        import pyarrow as pa

        count = int(self.residence.counts[block])
        return Block(pa.py_buffer(raw), count, has_times=self.residence.has_times)
