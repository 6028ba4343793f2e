"""Restricts a job's storage: reads below its root, writes only under its own prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import PluginError
from forebay_state_api.storage import ForwardingStorage

T = TypeVar("T")


class JobStorage(ForwardingStorage):
    """A storage that refuses deletes and writes outside the job's prefix, and counts what is read.

    A compactor that writes elsewhere or deletes gets a `PluginError`.
    """

    def __init__(self, inner: ObjectStorage, writable: str, read: Callable[[int], None]) -> None:
        """``writable`` is the prefix below which the job may write; ``read`` gets a size."""
        super().__init__(inner)
        self._writable: Final = writable
        self._read: Final = read

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        if operation == "delete":
            raise PluginError(f"a compactor tried to delete in {name!r}: only the janitor deletes")
        if operation in ("put", "put_if_absent") and not name.startswith(self._writable):
            raise PluginError(
                f"a compactor tried to write {name!r}, which is not below {self._writable!r}"
            )
        found = request()
        if isinstance(found, bytes):
            self._read(len(found))
        elif operation == "get_ranges" and isinstance(found, list):
            self._read(sum(map(len, found)))
        return found
