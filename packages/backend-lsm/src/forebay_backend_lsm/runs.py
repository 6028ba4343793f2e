"""Runs, which hold the cells of one table.

A run is a file, clipped to the key groups for which it is read, or a part of the memtable. The runs
of a table are kept from the newest to the oldest; if two runs have a cell of one key, the newer
run's cell counts.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np

from forebay_backend_lsm.addressing import I64, U64, AddressedKeys
from forebay_backend_lsm.files import Block, CellKind, Cells, FileTable, Probes
from forebay_backend_lsm.files.blocks import Cutter
from forebay_backend_lsm.files.few_cells import FewCells
from forebay_backend_lsm.search import Arena, CandidateBlocks, Hits, Mask, search
from forebay_state_api.contract.backend import TableSpec

if TYPE_CHECKING:
    from forebay_backend_lsm.cache import CachedBlocks
    from forebay_backend_lsm.file_reader import FileSource
    from forebay_state_api import KeyGroupRange

_GROUP_SHIFT: Final = 48


class Run(abc.ABC):
    """The cells of one table in one run."""

    reader: TableSpec
    """The spec whose codecs unpack the cells."""

    @property
    @abc.abstractmethod
    def clears(self) -> bool:
        """Whether the run has cells of `CellKind.CLEAR`."""

    @property
    def where(self) -> str:
        """The run's file, for messages."""
        return "memory"

    @property
    @abc.abstractmethod
    def groups(self) -> Iterable[int]:
        """The key groups that may have cells in the run."""


class MemoryRun(Run):
    """A part of the memtable: sorted cells, as one block."""

    def __init__(self, spec: TableSpec, cells: Cells | FewCells) -> None:
        """``cells`` are sorted, and packed by the codecs of ``spec``."""
        self.reader = spec
        self.stored: Final = cells
        """The cells in the form in which they came."""
        if isinstance(cells, FewCells):
            self.size = cells.memory_bytes
        else:
            self.size = len(self.raw) + int(cells.keys.nbytes + cells.values.nbytes)
        """Bytes of memory that it takes up."""

    @cached_property
    def clears(self) -> bool:
        stored = self.stored
        if isinstance(stored, FewCells):
            return stored.clears
        return bool((stored.kinds == CellKind.CLEAR).any())

    @property
    def few(self) -> FewCells | None:
        """The cells, if there are few."""
        return self.stored if isinstance(self.stored, FewCells) else None

    @property
    def cells(self) -> Cells:
        """The cells, column by column."""
        return self.stored.columns if isinstance(self.stored, FewCells) else self.stored

    @cached_property
    def raw(self) -> bytes:
        """The cells as one block."""
        if isinstance(self.stored, FewCells):
            return self.stored.raw
        return Cutter(self.stored).raw(0, len(self.stored))

    @cached_property
    def _arena(self) -> Arena:
        return Arena.of([self.raw])[0]

    @property
    def groups(self) -> Iterable[int]:
        groups: list[int] = np.unique(self.cells.addresses >> np.uint64(_GROUP_SHIFT)).tolist()
        return groups

    @property
    def block(self) -> Block:
        """All cells as one block."""
        import pyarrow as pa

        return Block(pa.py_buffer(self.raw), len(self.stored), has_times=self._has_times)

    @property
    def _has_times(self) -> bool:
        stored = self.stored
        return stored.has_times if isinstance(stored, FewCells) else stored.times is not None

    def find(self, batch: AddressedKeys, which: I64) -> Hits:
        """Find the cells ``which`` of the batch in this run."""
        bases = np.zeros(len(which), np.int64)
        counts = np.full(len(which), len(self.stored), np.int64)
        return search(self._arena, CandidateBlocks(bases, counts, self._has_times), batch, which)


@attrs.frozen
class _Extent:
    """The addresses of a table's cells in a file that are read."""

    first: np.uint64
    last: np.uint64
    width: int
    whole: bool
    """Whether these are all."""


class FileRun(Run):
    """One table in one open file, within a key-group range."""

    def __init__(
        self,
        source: FileSource,
        name: str,
        groups: KeyGroupRange,
        reader: TableSpec,
    ) -> None:
        """``name`` is the table's name.

        The index for large batches is made when it is first used.
        """
        self.reader = reader
        self.source: Final = source
        self._name: Final = name
        self._groups: Final = groups

    @cached_property
    def table(self) -> FileTable:
        """The table's cells in the file."""
        return self.source.file.tables[self._name]

    @cached_property
    def residence(self) -> CachedBlocks:
        """The blocks that are in memory."""
        return self.source.residences[self._name]

    @property
    def clears(self) -> bool:
        return self.table.counts[CellKind.CLEAR] > 0

    @property
    def where(self) -> str:
        return f"file {self.source.file.file.name!r} {self.source.where}"

    @cached_property
    def _extent(self) -> _Extent:
        whole = self.table.section.addresses
        first, last = self.clip(*whole)
        return _Extent(np.uint64(first), np.uint64(last), last - first, (first, last) == whole)

    @property
    def groups(self) -> KeyGroupRange:
        return self._groups

    def candidates(self, batch: AddressedKeys, which: I64) -> tuple[I64, I64]:
        """Return the cells among ``which`` that may be here, and the block that would hold each."""
        probes, table = batch.probes, self.table
        narrow = 2 * self._extent.width < batch.span
        if narrow:
            # The file is one of several of a run: most cells are outside its range, a cheap check.
            which = which[self._within(batch.addresses[which])]
        everything = len(which) == len(batch)
        if not everything:
            probes = Probes(probes.high[which], probes.masks[which])
        may = np.flatnonzero(table.filter.passes(probes))
        which = may if everything else which[may]
        asked = batch.addresses[which]
        if not (narrow or self._extent.whole):
            within = self._within(asked)
            asked, which = asked[within], which[within]
        blocks = np.searchsorted(table.first_addresses, asked, "right") - 1
        if len(blocks) and blocks.min() < 0:
            there = blocks >= 0
            return which[there], blocks[there]
        return which, blocks

    def _within(self, addresses: U64) -> Mask:
        """Mark the addresses between the lowest and the highest one that is read here."""
        extent = self._extent
        answer: Mask = (addresses >= extent.first) & (addresses <= extent.last)
        return answer

    def span(self, first: int, last: int) -> range:
        """The blocks that may hold addresses ``first`` to ``last``, both inclusive."""
        return self.table.span(*self.clip(first, last))

    def clip(self, first: int, last: int) -> tuple[int, int]:
        """Clip an address range to the key groups that are read here."""
        groups = self._groups
        low, high = groups.start << _GROUP_SHIFT, (groups.end + 1 << _GROUP_SHIFT) - 1
        return max(first, low), min(last, high)

    def raw_size(self, block: int) -> int:
        """Return the bytes of a block when decompressed."""
        return int(self.table.raw_sizes[block])

    def view(self, block: int, raw: Any) -> Block:
        """View a block whose raw bytes are given."""
        import pyarrow as pa

        count = int(self.residence.counts[block])
        return Block(pa.py_buffer(raw), count, has_times=self.residence.has_times)
