"""Storage for many objects: plain dicts, and listings that cost little however much they return."""

from __future__ import annotations

import builtins
from collections import defaultdict
from collections.abc import Iterable, Sequence

from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage
from forebay_testing.clock import ManualClock


class ClockedObjects(ObjectStorage):
    """Objects with a manual clock's times, kept by folder and by the folder in it."""

    url = "memory://clocked-objects"
    waits = False

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._folders: dict[str, dict[str, dict[str, tuple[ObjectInfo, bytes]]]] = defaultdict(
            lambda: defaultdict(dict)
        )

    def _objects(self, name: str) -> dict[str, tuple[ObjectInfo, bytes]]:
        folder, _, rest = name.partition("/")
        return self._folders[folder][rest.partition("/")[0]]

    def put(self, name: str, data: bytes) -> None:
        self._objects(name)[name] = (ObjectInfo(name, len(data), self._clock.now), data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name in self._objects(name):
            return False
        self.put(name, data)
        return True

    def get(self, name: str) -> bytes:
        found = self._objects(name).get(name)
        if found is None:
            raise self.absent(name)
        return found[1]

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        data = self.get(name)
        return [data[start : start + length] for start, length in ranges]

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        found = []
        for inner in self._below(prefix):
            infos = [info for info, _ in inner.values() if info.name.startswith(f"{prefix}/")]
            found += sorted(infos, key=lambda info: info.name)
        return found

    def _below(self, prefix: str) -> builtins.list[dict[str, tuple[ObjectInfo, bytes]]]:
        folder, _, rest = prefix.partition("/")
        assert folder, "the janitor and its tests list one folder"
        inner = self._folders[folder]
        if rest:
            return [self._objects(f"{prefix}/")]
        return [inner[name] for name in sorted(inner)]

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        assert prefix in self._folders, "the tests ask for the versions' folders"
        return sorted(name for name, objects in self._folders[prefix].items() if objects)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            folder, _, rest = name.partition("/")
            inner = rest.partition("/")[0]
            objects = self._folders[folder][inner]
            objects.pop(name, None)
            if not objects:
                del self._folders[folder][inner]

    def child(self, prefix: str) -> ObjectStorage:
        raise NotImplementedError(f"no test opens {prefix!r}")
