"""Storage as a job may use it: reads anywhere below its root, writes under its own prefix only."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Final

from forebay_state_api.errors import PluginError
from forebay_state_api.storage import ObjectInfo, ObjectStorage


class Traffic:
    """Bytes that a job has moved. Written on the job's thread, read on any."""

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0


class JobStorage(ObjectStorage):
    """A storage that refuses what is not the job's business, and counts.

    A compactor that writes elsewhere, or deletes, is at fault: `PluginError`.
    """

    def __init__(
        self, inner: ObjectStorage, writable: str, traffic: Traffic, *, here: str = ""
    ) -> None:
        """``writable`` is the prefix, from the root of all; ``here`` is where ``inner`` lies."""
        self._inner: Final = inner
        self._writable: Final = writable
        self._traffic: Final = traffic
        self._here: Final = here
        self.url = inner.url

    def put(self, name: str, data: bytes) -> None:
        self._check(name)
        self._inner.put(name, data)
        self._traffic.bytes_out += len(data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._check(name)
        self._traffic.bytes_out += len(data)
        return self._inner.put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        data = self._inner.get(name)
        self._traffic.bytes_in += len(data)
        return data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        found = self._inner.get_ranges(name, ranges)
        self._traffic.bytes_in += sum(length for _, length in ranges)
        return found

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        return self._inner.list(prefix)

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        return self._inner.list_folders(prefix)

    def delete(self, names: Iterable[str]) -> None:
        raise PluginError(f"a compactor wants to delete {sorted(names)}: only the janitor deletes")

    def child(self, prefix: str) -> JobStorage:
        here = f"{self._here}{prefix.strip('/')}/" if prefix.strip("/") else self._here
        return JobStorage(self._inner.child(prefix), self._writable, self._traffic, here=here)

    def _check(self, name: str) -> None:
        if not f"{self._here}{name}".startswith(self._writable):
            message = f"a compactor wants to write {name!r}, which is not below {self._writable!r}"
            raise PluginError(message)
