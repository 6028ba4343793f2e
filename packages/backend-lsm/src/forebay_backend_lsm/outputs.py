"""Writes the files of a compaction on threads, while merging continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeAlias

import attrs

from forebay_backend_lsm.files.arrow import POOL
from forebay_backend_lsm.files.cells import Cells
from forebay_backend_lsm.files.few_cells import FewCells
from forebay_backend_lsm.files.writing import BLOCK_BYTES, FileBytes, FileWriter, TableHeader
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage

_PARTS_AHEAD: Final = 2
"""Merged parts that may wait to be written."""
_FEW_TOGETHER: Final = 64
"""Parts with few cells that are handed to the writing thread at once."""

_Part: TypeAlias = tuple[int, TableHeader, Cells | FewCells]
"""Lane, table and cells."""


class Outputs:
    """Takes sorted cells; in each lane one file at a time grows.

    One thread cuts, compresses and checksums, another puts finished files, so merging need not
    wait for either. Both work in the order of `add`, so timing does not affect the bytes.
    """

    def __init__(
        self, job: CompactionJob, storage: ObjectStorage, check: Callable[[], None]
    ) -> None:
        """The adding thread calls ``check``, which raises when the job is cancelled."""
        self._job: Final = job
        self._storage: Final = storage
        self._check: Final = check
        ranges = [r for f in job.inputs if (r := f.range.intersection(job.range)) is not None]
        self._range: Final = (
            KeyGroupRange(min(r.start for r in ranges), max(r.end for r in ranges))
            if ranges
            else job.range
        )
        self._writers: Final[dict[int, tuple[FileWriter, str]]] = {}
        self._files: Final[list[tuple[int, Future[StateFile]]]] = []
        self._writing: Final = ThreadPoolExecutor(1, "forebay-compaction-write")
        self._putting: Final = ThreadPoolExecutor(1, "forebay-compaction-put")
        self._ahead: Final[list[Future[None]]] = []
        self._few: list[_Part] = []
        """Parts with few cells, which are handed over together."""

    def add(self, lane: int, header: TableHeader, cells: Cells | FewCells) -> None:
        """Add cells; when a file is large enough, the next cells begin another one."""
        self._check()
        if not len(cells):
            return
        self._few.append((lane, header, cells))
        if not isinstance(cells, FewCells) or len(self._few) >= _FEW_TOGETHER:
            self._hand_over()

    def _hand_over(self) -> None:
        parts, self._few = self._few, []
        if not parts:
            return
        self._ahead.append(self._writing.submit(self._write_each, parts))
        if len(self._ahead) > _PARTS_AHEAD:
            self._ahead.pop(0).result()

    def finish(self) -> list[StateFile]:
        """Write the remaining cells; return all files, oldest lane first."""
        self._hand_over()
        for part in self._ahead:
            part.result()
        for lane in sorted(self._writers):
            self._check()
            self._writing.submit(self._end, lane).result()
        lanes = sorted({lane for lane, _ in self._files})
        ordered = sorted(self._files, key=lambda found: found[0])
        return [
            attrs.evolve(file, meta={**file.meta, "lane": lanes.index(lane)})
            for lane, file in ((lane, put.result()) for lane, put in ordered)
        ]

    def close(self) -> None:
        """End the threads once the work they have begun is done."""
        self._writing.shutdown(cancel_futures=True)
        self._putting.shutdown(cancel_futures=True)

    def _write_each(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            self._write(*part)

    def _write(self, lane: int, header: TableHeader, cells: Cells | FewCells) -> None:
        writer, name = self._writers.get(lane) or (self._writer(), "")
        if name != header.name:
            writer.begin(header)
        writer.add(cells)
        self._writers[lane] = writer, header.name
        if writer.size >= self._job.target_bytes:
            self._end(lane)

    def _writer(self) -> FileWriter:
        options = self._job.options
        return FileWriter(
            self._range,
            compression=options.get("compression", "lz4"),
            block_bytes=options.get("block_bytes", BLOCK_BYTES),
        )

    def _end(self, lane: int) -> None:
        writer, _ = self._writers.pop(lane)
        if self._files:
            # Hold at most one complete file in addition to the growing ones.
            self._files[-1][1].result()
        name = f"{self._job.output_prefix}{len(self._files):04d}"
        self._files.append((lane, self._putting.submit(self._put, writer.finish(), name)))

    def _put(self, content: FileBytes, name: str) -> StateFile:
        file = content.put(self._storage, name, self._range)
        POOL.release_unused()
        return file
