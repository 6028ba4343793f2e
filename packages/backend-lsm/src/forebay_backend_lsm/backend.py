"""`LsmBackend`: keyed state as sorted files on object storage, read in batches."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.compactions import Compactions
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.file_reader import FileSource, OperatorStorage, open_sources
from forebay_backend_lsm.files import FileBytes
from forebay_backend_lsm.memtable import Memtables
from forebay_backend_lsm.opened_files import OpenedFiles
from forebay_backend_lsm.options import LsmOptions
from forebay_backend_lsm.snapshot import write_memtables
from forebay_backend_lsm.table import LsmTable
from forebay_state_api import CleanupInCompaction
from forebay_state_api.contract.backend import Capability, Opening, StateBackend, TableSpec
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.settings import Setting, settings_of

_log = logging.getLogger(__name__)


class LsmBackend(StateBackend):
    """Keeps state on object storage: opening reads indexes and filters, reads fetch blocks.

    All operators and partitions of the process share one cache of file contents.
    """

    name: ClassVar[str] = "lsm"
    contract_version: ClassVar[int] = 2
    capabilities: ClassVar[Capability] = (
        Capability.CLEANUP_FULL_SNAPSHOT
        | Capability.CLEANUP_INCREMENTALLY
        | Capability.CLEANUP_IN_COMPACTION
    )
    background_cleanup: ClassVar[CleanupInCompaction] = CleanupInCompaction()
    options: ClassVar[Mapping[str, Setting]] = settings_of(LsmOptions)

    def __init__(
        self,
        opening: Opening,
        options: LsmOptions,
        storage: OperatorStorage,
        compactions: Compactions,
        sources: Mapping[str, FileSource],
    ) -> None:
        """``sources`` are the opened files of ``compactions`` on ``storage``, by name."""
        self._opening: Final = opening
        self._options: Final = options
        self._storage: Final = storage
        self._compactions: Final = compactions
        self._opened: Final = OpenedFiles(
            (sources[file.name], file.range) for file in compactions.files
        )
        self._tables: Final[dict[str, LsmTable]] = {}
        self._memtables: Final = Memtables()
        self._new: Final[list[StateFile]] = []
        """Files that this batch has written."""
        self._swept: Final[dict[str, int]] = _swept(opening)
        """State → the address at which its next sweep begins."""
        self._hits_before: Final = CACHE.hits, CACHE.misses
        self._data: Final[list[tuple[StateFile, FileBytes]]] = []
        """The last file written, with its content, for the cache."""

    @classmethod
    def open(cls, opening: Opening) -> Self:
        options = LsmOptions.of(opening.options)
        CACHE.resize(min(options.block_cache_bytes, opening.cache_bytes))
        storage = OperatorStorage.of(opening, options)
        compactions = storage.blamed(lambda: Compactions(opening, options, LsmCompactor()))
        sources = open_sources(storage, compactions.files)
        return cls(opening, options, storage, compactions, sources)

    def table(self, spec: TableSpec) -> LsmTable:
        if spec.name not in self._tables:
            for parent in self._opening.parents:
                if (stored := parent.descriptions.get(spec.name)) is not None:
                    reader_of(stored, spec)
            swept = self._swept.get(spec.name, 0)
            table = LsmTable(spec, self._opened, self._memtables, self._applied, swept)
            self._opened.check(spec, table.described)
            self._tables[spec.name] = table
        return self._tables[spec.name]

    def stored_bytes(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for source, groups in self._opened.newest_first:
            for name, table in source.file.tables.items():
                found[name] += table.bytes_of(groups)
        return found

    def commit(self, version: int) -> CommittedState:
        self._data.extend(self._write(version))
        done = self._compactions.commit(version, self._new, options=self._job_options())
        return CommittedState(
            files=done.files,
            meta={**done.meta, "swept": self._swept_after()},
            protected=done.protected,
            bytes_total=sum({file.name: file.size for file in done.files}.values()),
            bytes_written=sum(file.size for file in self._new) + done.bytes_written,
        )

    def measured(self) -> Mapping[str, float]:
        hits, misses = self._hits_before
        return {
            "cache_hits_memory": CACHE.hits - hits,
            "cache_misses_memory": CACHE.misses - misses,
            **self._storage.measured(),
            **self._compactions.measured(),
        }

    def installed(self, manifest_id: str) -> None:
        del manifest_id
        self._compactions.installed()
        for file, data in self._data:
            self._storage.keep(file, data)

    def close(self) -> None:
        self._tables.clear()
        self._opened.clear()
        self._data.clear()

    def _swept_after(self) -> dict[str, int]:
        swept = self._swept | {name: table.swept for name, table in self._tables.items()}
        return {name: address for name, address in sorted(swept.items()) if address}

    def _job_options(self) -> dict[str, Any]:
        """Return the options that a compactor needs in addition to the files."""
        specs = [table.spec for table in self._tables.values()]
        return {
            "compression": self._options.compression,
            "block_bytes": self._options.block_bytes,
            "ttl": {s.name: s.compaction_expiry.plain for s in specs if s.compaction_expiry},
            "full_ttl": {s.name: s.snapshot_expiry.plain for s in specs if s.snapshot_expiry},
            "clock_every": {
                s.name: s.compaction_clock_every
                for s in specs
                if s.compaction_clock_every is not None
            },
        }

    def _applied(self) -> None:
        """Spill the memtables to a file when they take up too much memory."""
        size = self._memtables.bytes
        if size <= self._options.memtable_bytes:
            return
        _log.debug("operator %s: spills %d bytes of changes", self._opening.uid, size)
        for file, data in self._write(self._opening.version + 1):
            self._opened.add(self._storage.keep(file, data), file.range)

    def _write(self, version: int) -> Sequence[tuple[StateFile, FileBytes]]:
        """Write all memtables as one file, and empty them; do nothing if they are empty."""
        memtables = [memtable for _, memtable in sorted(self._memtables.filled.items())]
        written = write_memtables(memtables, self._opening, self._options, version)
        self._new.extend(file for file, _ in written)
        return written


def _swept(opening: Opening) -> dict[str, int]:
    """Return where sweeps stopped; after a rescale they begin again."""
    whole = len(opening.parents) == 1 and opening.parents[0].whole
    return dict(opening.parents[0].meta.get("swept", {})) if whole else {}
