"""`ObjectsInMemory`: the store of a simulation, whose time is a clock's."""

from __future__ import annotations

import builtins
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from forebay_state_api.contract.object_storage import (
    ObjectInfo,
    ObjectStorage,
    checked_name,
    checked_prefix,
)

if TYPE_CHECKING:
    from forebay_testing.clock import ManualClock


class ObjectsInMemory(ObjectStorage):
    """Objects in a dictionary, without threads; a `child` shares them."""

    def __init__(self, clock: ManualClock) -> None:
        """``clock`` gives objects their times."""
        self.url = "memory://simulation"
        self.waits = False
        self._clock: Final = clock
        self._prefix = ""
        self._objects: dict[str, ObjectInfo] = {}
        """By full name; the infos have full names, too."""
        self._contents: dict[str, bytes] = {}
        self._names: list[str] = []
        """Sorted."""

    def put(self, name: str, data: bytes) -> None:
        full = self._prefix + checked_name(name)
        if full not in self._objects:
            insort(self._names, full)
        self._objects[full] = ObjectInfo(full, len(data), self._clock.now)
        self._contents[full] = data

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self._prefix + name in self._objects:
            return False
        self.put(name, data)
        return True

    def get(self, name: str) -> bytes:
        try:
            return self._contents[self._prefix + checked_name(name)]
        except KeyError:
            raise self.absent(name) from None

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        data = self.get(name)
        if any(start + length > len(data) for start, length in ranges):
            raise self.failed("read", name, ValueError("a range reaches beyond its end"))
        return [data[start : start + length] for start, length in ranges]

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        cut = len(self._prefix)
        found = (self._objects[full] for full in self._below(prefix))
        return [ObjectInfo(one.name[cut:], one.size, one.modified) for one in found]

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        folder = self._folder(prefix)
        below = (name[len(folder) :].split("/") for name in self._below(prefix))
        return [*dict.fromkeys(parts[0] for parts in below if len(parts) > 1)]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            full = self._prefix + checked_name(name)
            if self._objects.pop(full, None) is not None:
                del self._contents[full]
                del self._names[bisect_left(self._names, full)]

    def child(self, prefix: str) -> ObjectsInMemory:
        below = ObjectsInMemory(self._clock)
        below.url = f"{self.url}/{checked_prefix(prefix)}"
        below._prefix = self._folder(prefix)
        below._objects, below._contents = self._objects, self._contents
        below._names = self._names
        return below

    def _folder(self, prefix: str) -> str:
        folder = checked_prefix(prefix)
        return f"{self._prefix}{folder}/" if folder else self._prefix

    def _below(self, prefix: str) -> Sequence[str]:
        folder = self._folder(prefix)
        start = bisect_left(self._names, folder)
        end = bisect_left(self._names, f"{folder[:-1]}0") if folder else len(self._names)
        return self._names[start:end]
