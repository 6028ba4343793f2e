"""Restricts a job's storage: reads below its root, writes only under its own prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import PluginError
from forebay_state_api.storage.forwarding import ForwardingStorage


class Traffic:
    """Bytes that a job has transferred. Written on the job's thread, read on any thread."""

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0


class JobStorage(ForwardingStorage):
    """A storage that counts bytes and refuses writes outside the job's prefix, and deletes.

    A compactor that writes elsewhere or deletes gets a `PluginError`.
    """

    def __init__(self, inner: ObjectStorage, writable: str, traffic: Traffic) -> None:
        """``writable`` is the prefix below which the job may write."""
        super().__init__(inner)
        self._writable: Final = writable
        self._traffic: Final = traffic

    def put(self, name: str, data: bytes) -> None:
        self._check(name)
        super().put(name, data)
        self._traffic.bytes_out += len(data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._check(name)
        self._traffic.bytes_out += len(data)
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes:
        data = super().get(name)
        self._traffic.bytes_in += len(data)
        return data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = super().get_ranges(name, ranges)
        self._traffic.bytes_in += sum(length for _, length in ranges)
        return found

    def delete(self, names: Iterable[str]) -> None:
        raise PluginError(f"a compactor tried to delete {sorted(names)}: only the janitor deletes")

    def _check(self, name: str) -> None:
        if not f"{self._above}{name}".startswith(self._writable):
            raise PluginError(
                f"a compactor tried to write {name!r}, which is not below {self._writable!r}"
            )
