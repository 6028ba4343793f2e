"""A state backend in one file: packed cells in a dictionary, one object on storage per version.

It is not resident: the engine requests cells that it has not seen in a micro-batch, on threads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Opening, Scan, StateBackend, Table, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, Shape, Space
from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.plugins import hookimpl
from forebay_state_api.settings import Setting

NAMESPACES = codec_for(None, what="a namespace")


class ShelfBackend(StateBackend):
    """All tables of a range, in one dictionary."""

    name: ClassVar[str] = "shelf"
    contract_version: ClassVar[int] = 2
    options: ClassVar[Mapping[str, Setting]] = {
        "level": Setting("level", int, 1, "How hard zlib compresses; 0 does not.", minimum=0)
    }

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._tables: dict[str, ShelfTable] = {}
        self._unread: dict[str, list[Any]] = {}
        for parent in opening.parents:
            for file in parent.files:
                for name, (description, cells) in read(opening, file).items():
                    own = [cell for cell in cells if cell[0] in file.range]
                    self._unread.setdefault(name, []).append((description, own))

    @classmethod
    def open(cls, opening: Opening) -> Self:
        return cls(opening)

    def table(self, spec: TableSpec) -> ShelfTable:
        if spec.name not in self._tables:
            for parent in self._opening.parents:
                if spec.name in parent.descriptions:
                    reader_of(parent.descriptions[spec.name], spec)
            self._tables[spec.name] = table = ShelfTable(spec)
            for description, cells in self._unread.pop(spec.name, []):
                table.load(reader_of(description, spec), cells)
        return self._tables[spec.name]

    def commit(self, version: int) -> CommittedState:
        opening = self._opening
        parents = [file for parent in opening.parents for file in parent.files]
        if not any(table.changed for table in self._tables.values()):
            return CommittedState(files=parents, bytes_total=sum(file.size for file in parents))
        # States that the function no longer declares are kept, packed as they were.
        tables = {name: merged(blocks) for name, blocks in self._unread.items()}
        tables |= {name: table.dump() for name, table in self._tables.items()}
        data = seal({"tables": zlib.compress(seal(tables), opening.options["level"])})
        name = data_name(version, "shelf")
        opening.storage.put(name, data)
        file = StateFile(name=name, size=len(data), range=opening.range)
        return CommittedState(
            files=[file],
            keys=sum(len(cells) for _, cells in tables.values()),
            bytes_total=len(data),
            bytes_written=len(data),
        )

    def close(self) -> None:
        self._tables.clear()


class ShelfTable(Table):
    """``cells[namespace][key]`` is a pair of key group and content, which is never modified."""

    def __init__(self, spec: TableSpec) -> None:
        self.changed = False
        self._spec = spec
        self._cells: dict[Any, dict[Any, tuple[int, Any]]] = {}
        self._spaces: dict[Any, Space] = {}

    def space(self, namespace: Any) -> Space:
        return self._spaces.setdefault(namespace, Space(namespace, complete=False))

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        return [self._content(namespace, key, ABSENT) for _, key in keys]

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        return [self._content(namespace, key, {}).get(entry, ABSENT) for _, key, entry in cells]

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        is_map = self._spec.shape is Shape.MAP
        content = self._content(namespace, key, {} if is_map else [])
        return ShelfScan(list(content.items()) if is_map else content)

    def apply(self, changes: Changes) -> None:
        self.changed = True
        for namespace, points in changes.points.items():
            for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
                self._put(namespace, key, group, value)
        for namespace, lists in changes.lists.items():
            for key, one in lists.items():
                before = [] if one.replaced else self._content(namespace, key, [])
                self._put(namespace, key, one.group, [*before, *one.elements] or ABSENT)
        for namespace, maps in changes.maps.items():
            for key, entries in maps.items():
                before = {} if entries.cleared else self._content(namespace, key, {})
                after = {k: v for k, v in (before | entries.entries).items() if v is not ABSENT}
                self._put(namespace, key, entries.group, after or ABSENT)

    def export(self, keys: int) -> Iterator[Changes]:
        for namespace, cells in self._cells.items():
            rows = [(key, group, content) for key, (group, content) in cells.items()]
            for start in range(0, len(rows), keys):
                yield Changes.whole(self._spec.shape, namespace, rows[start : start + keys])

    def load(self, reader: TableSpec, cells: Sequence[Any]) -> None:
        for group, namespace, key, content in cells:
            named = self._cells.setdefault(NAMESPACES.unpack_one(namespace), {})
            named[reader.key.unpack_one(key)] = (group, unpacked(reader, content))

    def dump(self) -> tuple[dict[str, Any], list[Any]]:
        spec = self._spec
        return spec.description(), [
            (group, NAMESPACES.pack_one(namespace), spec.key.pack_one(key), packed(spec, content))
            for namespace, cells in self._cells.items()
            for key, (group, content) in cells.items()
        ]

    def _content(self, namespace: Any, key: Any, default: Any) -> Any:
        return self._cells.get(namespace, {}).get(key, (0, default))[1]

    def _put(self, namespace: Any, key: Any, group: int, content: Any) -> None:
        cells = self._cells.setdefault(namespace, {})
        if content is ABSENT:
            cells.pop(key, None)
        else:
            cells[key] = (group, content)


class ShelfScan(Scan):
    """Yield one content as it was when the scan was made."""

    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        for start in range(0, len(self._elements), page_size):
            yield self._elements[start : start + page_size]


def packed(spec: TableSpec, content: Any) -> list[bytes]:
    if spec.user_key is None:
        return [spec.stored.pack(content if spec.shape is Shape.LIST else [content])]
    original = spec.user_key.original or (lambda address: address)
    keys = spec.user_key.pack([original(address) for address in content])
    return [keys, spec.stored.pack(list(content.values()))]


def unpacked(spec: TableSpec, content: Sequence[bytes]) -> Any:
    values = spec.stored.unpack(content[-1])
    if spec.user_key is None:
        return values if spec.shape is Shape.LIST else values[0]
    address = spec.user_key.address or (lambda key: key)
    return dict(zip(map(address, spec.user_key.unpack(content[0])), values, strict=True))


def merged(blocks: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Merge the blocks of several parents whose states the job does not declare."""
    return blocks[0][0], [cell for _, cells in blocks for cell in cells]


def read(opening: Opening, file: StateFile) -> dict[str, Any]:
    what = f"{file.name} of operator {opening.uid!r}, version {opening.version}, in {opening.path}"
    try:
        data = opening.storage.get(file.name)
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"{what} is missing") from error
    if len(data) != file.size:
        raise CorruptStateError(f"{what} has {len(data)} bytes instead of {file.size}")
    return unseal(zlib.decompress(unseal(data, what)["tables"]), what)


@hookimpl
def forebay_state_backends() -> type[ShelfBackend]:
    return ShelfBackend
