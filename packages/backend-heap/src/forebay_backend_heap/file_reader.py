"""Reads heap files from storage, whole or only the chunks of some key groups or tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import attrs
from xxhash import xxh3_64_intdigest

from forebay_backend_heap.file_chain import written_range
from forebay_backend_heap.files import Chunk, Section, parse_head, seal_of
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.threads import ReadThreads

_THREADS: Final = 8
_WORTH_RANGES: Final = 256 * 1024
"""Smaller files are read whole even for some of their key groups or tables: one request instead of
two."""


@attrs.frozen
class Reader:
    """Reads the files of one opened version."""

    storage: ObjectStorage
    path: str
    uid: str
    version: int
    tables: Collection[str] | None = None
    """The tables whose sections are read; ``None`` selects all."""

    def read_all(self, files: Sequence[StateFile]) -> Iterable[list[Section]]:
        """Return the sections of each file, in order, clipped to the file's range and verified.

        Reads several files concurrently. Raises `CorruptStateError`, naming file, state and
        version, for a file that is missing, truncated or altered.
        """
        if sum(file.data is None for file in files) < 2:  # noqa: PLR2004 - a pool pays off then
            return [self.read(file) for file in files]
        with ReadThreads(min(_THREADS, len(files)), "forebay-heap-read") as pool:
            return list(pool.map(self.read, files))

    def read(self, file: StateFile) -> list[Section]:
        """Read one file, like `read_all`."""
        try:
            with decoding(lambda _: self._where(file)):
                everything = self.tables is None and _is_whole(file)
                if everything or file.size < _WORTH_RANGES or file.data is not None:
                    return self._read_whole(file)
                return self._read_part(file)
        except ObjectNotFoundError as fault:
            raise CorruptStateError(f"{self._where(file)}: it is missing") from fault

    def _read_whole(self, file: StateFile) -> list[Section]:
        data = self.storage.get(file.name) if file.data is None else file.data
        if len(data) != file.size:
            raise CorruptStateError(
                f"{self._where(file)}: it has {len(data)} bytes, its manifest records {file.size}"
            )
        body = memoryview(data)[file.meta["header"] :]
        return [
            self._loaded(
                file, section, [body[c.offset : c.offset + c.size] for c in section.chunks]
            )
            for section in self._sections(file, data[: file.meta["header"]])
        ]

    def _read_part(self, file: StateFile) -> list[Section]:
        header: int = file.meta["header"]
        sections = self._sections(file, self.storage.get_ranges(file.name, [(0, header)])[0])
        if not sections:
            return []
        spans = [_span(section.chunks, header) for section in sections]
        bodies = self.storage.get_ranges(file.name, spans)
        return [
            self._loaded(
                file, section, _cut(section.chunks, memoryview(body), section.chunks[0].offset)
            )
            for section, body in zip(sections, bodies, strict=True)
        ]

    def _sections(self, file: StateFile, head: bytes) -> list[Section]:
        if seal_of(head) != file.meta["checksum"]:
            raise CorruptStateError(f"{self._where(file)}: its header is truncated or altered")
        sections = parse_head(head, self._where(file), self.tables)
        clipped = [section.clipped(file.range) for section in sections]
        return [section for section in clipped if section is not None]

    def _loaded(self, file: StateFile, section: Section, data: Sequence[memoryview]) -> Section:
        chunks = []
        for chunk, part in zip(section.chunks, data, strict=True):
            if len(part) != chunk.size or xxh3_64_intdigest(part) != chunk.checksum:
                raise CorruptStateError(
                    f"{self._where(file, section)}: bytes {chunk.offset} to "
                    f"{chunk.offset + chunk.size} of its body are truncated or altered"
                )
            chunks.append(attrs.evolve(chunk, data=part))
        where = self._where(file, section)
        return attrs.evolve(section, chunks=tuple(chunks), where=where)

    def _where(self, file: StateFile, section: Section | None = None) -> str:
        state = "" if section is None else f"state {section.table!r} of "
        held = "" if file.data is None else "which the manifest holds, "
        where = f"{held}{state}operator {self.uid!r}, version {self.version}"
        return f"{self.path}/{file.name}, {where}"


def _is_whole(file: StateFile) -> bool:
    return written_range(file.meta).intersection(file.range) == written_range(file.meta)


def _span(chunks: Sequence[Chunk], header: int) -> tuple[int, int]:
    first, last = chunks[0], chunks[-1]
    return header + first.offset, last.offset + last.size - first.offset


def _cut(chunks: Sequence[Chunk], body: memoryview, start: int) -> list[memoryview]:
    """Cut out the bytes of each chunk; ``body`` begins at offset ``start``."""
    return [body[c.offset - start : c.offset - start + c.size] for c in chunks]
