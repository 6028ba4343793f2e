"""`AcmeBackend`: the smallest backend that fulfils the contract. Make it yours.

Its tables are not resident: the engine holds the cells that a micro-batch has touched, and reads
the rest with `get_many`, `get_entries` and `Scan.pages`, on worker threads. Each commit with
changes writes the whole range as one sealed object, which is simple and slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, Final, Self

from forebay_state_api.codecs import codec_for, decoding
from forebay_state_api.contract.backend import (
    Opening,
    Scan,
    StateBackend,
    Table,
    TableSpec,
)
from forebay_state_api.contract.changes import ABSENT, Changes, Shape, Space
from forebay_state_api.contract.checksummed import read_sealed, seal
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.settings import DURATION, Setting

_NAMESPACES: Final = codec_for(None, what="a namespace")

Cell = tuple[int, bytes, bytes, bytes]
"""Key group, namespace, key and content, as they are stored."""

Block = tuple[dict[str, Any], list[Cell]]
"""The description of the table that packed some cells, and the cells."""


class AcmeBackend(StateBackend):
    """Objects in a dictionary, one object on storage per commit."""

    name: ClassVar[str] = "acme"
    contract_version: ClassVar[int] = 2
    options: ClassVar[Mapping[str, Setting]] = {
        "read-latency": Setting(
            "read-latency", DURATION, "0s", "How long each batch of reads takes."
        )
    }

    def __init__(self, opening: Opening, stored: dict[str, list[Block]]) -> None:
        self._opening = opening
        self._stored = stored
        """Tables that were not declared yet; with several parents, several blocks each."""
        self._tables: dict[str, AcmeTable] = {}

    @classmethod
    def open(cls, opening: Opening) -> Self:
        stored: dict[str, list[Block]] = {}
        for file in (file for parent in opening.parents for file in parent.files):
            for name, blocks in _read(opening, file).items():
                for description, cells in blocks:
                    own = [cell for cell in cells if cell[0] in file.range]
                    stored.setdefault(name, []).append((description, own))
        return cls(opening, stored)

    def table(self, spec: TableSpec) -> AcmeTable:
        if spec.name not in self._tables:
            for parent in self._opening.parents:
                if spec.name in parent.descriptions:
                    reader_of(parent.descriptions[spec.name], spec)
            table = AcmeTable(spec, self._opening.options.get("read-latency", 0.0))
            for description, cells in self._stored.pop(spec.name, []):
                table.load(cells, reader_of(description, spec), self._where(spec))
            self._tables[spec.name] = table
        return self._tables[spec.name]

    def commit(self, version: int) -> CommittedState:
        files = [file for parent in self._opening.parents for file in parent.files]
        content, written = self._content(), 0
        if any(table.changed for table in self._tables.values()):
            name = data_name(version, "acme")
            data = seal({"name": name, "tables": content})
            written = len(data)
            self._opening.storage.put(name, data)
            files = [StateFile(name=name, size=len(data), range=self._opening.range)]
        return CommittedState(
            files=files,
            keys=sum(len(cells) for blocks in content.values() for _, cells in blocks),
            bytes_total=sum(file.size for file in files),
            bytes_written=written,
        )

    def close(self) -> None:
        self._tables.clear()

    def _where(self, spec: TableSpec) -> str:
        files = ", ".join(file.name for parent in self._opening.parents for file in parent.files)
        return f"{files} of {_operator(self._opening)}, state {spec.name!r}"

    def _content(self) -> dict[str, list[Block]]:
        """Return all tables; undeclared tables are unchanged."""
        tables = {name: [table.dump()] for name, table in self._tables.items()}
        return self._stored | tables


class AcmeTable(Table):
    """``cells[namespace][key]`` is a (key group, content) pair."""

    def __init__(self, spec: TableSpec, delay_s: float) -> None:
        self.spec = spec
        self.changed = False
        self._delay_s = delay_s
        self._cells: dict[Any, dict[Any, tuple[int, Any]]] = {}
        self._spaces: dict[Any, Space] = {}

    def space(self, namespace: Any) -> Space:
        return self._spaces.setdefault(namespace, Space(namespace, complete=False))

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        time.sleep(self._delay_s)
        return [self._content(namespace, key, ABSENT) for _, key in keys]

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        time.sleep(self._delay_s)
        return [self._content(namespace, key, {}).get(entry, ABSENT) for _, key, entry in cells]

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        del group
        content = self._content(namespace, key, ())
        return AcmeScan(content.items() if isinstance(content, dict) else content, self._delay_s)

    def apply(self, changes: Changes) -> None:
        self.changed = True
        for namespace, points in changes.points.items():
            for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
                self._set(namespace, key, group, value)
        for namespace, lists in changes.lists.items():
            for key, change in lists.items():
                older = [] if change.replaced else self._content(namespace, key, [])
                self._set(namespace, key, change.group, [*older, *change.elements])
        for namespace, maps in changes.maps.items():
            for key, entries in maps.items():
                older = {} if entries.cleared else self._content(namespace, key, {})
                merged = {**older, **entries.entries}
                kept = {entry: value for entry, value in merged.items() if value is not ABSENT}
                self._set(namespace, key, entries.group, kept)

    def export(self, keys: int) -> Iterator[Changes]:
        for namespace, cells in self._cells.items():
            every = iter(cells.items())
            while page := list(islice(every, keys)):
                rows = [(key, group, content) for key, (group, content) in page]
                yield Changes.whole(self.spec.shape, namespace, rows)

    def load(self, cells: Sequence[Cell], reader: TableSpec, where: str) -> None:
        """Load the cells stored at ``where``; ``reader``'s codecs match how they were written."""
        key: Any = None
        with decoding(lambda _: f"{where}, key {key!r}"):
            for group, namespace, packed, content in cells:
                key = reader.key.unpack_one(packed)
                named = self._cells.setdefault(_NAMESPACES.unpack_one(namespace), {})
                named[key] = (group, _unpacked(reader, content))

    def dump(self) -> Block:
        """Return the cells for `load`, with the description under which they were packed."""
        cells = [
            (group, name, self.spec.key.pack_one(key), _packed(self.spec, content))
            for namespace, cells in self._cells.items()
            for name in [_NAMESPACES.pack_one(namespace)]
            for key, (group, content) in cells.items()
        ]
        return self.spec.description(), cells

    def _content(self, namespace: Any, key: Any, default: Any) -> Any:
        return self._cells.get(namespace, {}).get(key, (0, default))[1]

    def _set(self, namespace: Any, key: Any, group: int, content: Any) -> None:
        """Replace a content, never change it in place: a scan may be reading it."""
        cells = self._cells.setdefault(namespace, {})
        if content is ABSENT or (not content and self.spec.shape is not Shape.POINT):
            cells.pop(key, None)
        else:
            cells[key] = (group, content)


class AcmeScan(Scan):
    """A snapshot of one content."""

    def __init__(self, elements: Any, delay_s: float) -> None:
        self._elements = list(elements)
        self._delay_s = delay_s

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        for start in range(0, len(self._elements), page_size):
            time.sleep(self._delay_s)
            yield self._elements[start : start + page_size]


def _packed(spec: TableSpec, content: Any) -> bytes:
    if spec.user_key is None:
        return spec.stored.pack(content if spec.shape is Shape.LIST else [content])
    original = spec.user_key.original
    entries = [key if original is None else original(key) for key in content]
    return _pair(spec.user_key.pack(entries), spec.stored.pack(list(content.values())))


def _unpacked(spec: TableSpec, content: bytes) -> Any:
    if spec.user_key is None:
        elements = spec.stored.unpack(content)
        return elements if spec.shape is Shape.LIST else elements[0]
    entries, values = _unpair(content)
    address = spec.user_key.address
    keys = spec.user_key.unpack(entries)
    addresses = keys if address is None else map(address, keys)
    return dict(zip(addresses, spec.stored.unpack(values), strict=True))


def _pair(first: bytes, second: bytes) -> bytes:
    return len(first).to_bytes(8, "little") + first + second


def _unpair(data: bytes) -> tuple[bytes, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end], data[end:]


def _read(opening: Opening, file: StateFile) -> dict[str, list[Block]]:
    """Read the tables in a file; an error names the file, the operator and the version."""
    what = f"{file.name} of {_operator(opening)}"
    try:
        data = opening.storage.get(file.name)
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"{what} is missing") from error
    if len(data) != file.size:
        raise CorruptStateError(f"{what} has {len(data)} bytes instead of {file.size}")
    name, tables = read_sealed(data, what, itemgetter("name", "tables"))
    if not file.name.endswith(name):
        raise CorruptStateError(f"{what} holds {name}")
    found: dict[str, list[Block]] = tables
    return found


def _operator(opening: Opening) -> str:
    return f"operator {opening.uid!r}, version {opening.version}, in {opening.path}"
