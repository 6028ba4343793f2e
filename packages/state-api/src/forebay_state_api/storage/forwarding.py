"""The base class of storages that wrap another storage."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from forebay_state_api.contract.object_storage import ObjectInfo, ObjectPage, ObjectStorage

T = TypeVar("T")


class ForwardingStorage(ObjectStorage):
    """Forwards every request to another storage; subclasses add behaviour in `around`.

    A `child` is a shallow copy that shares all of its parent's attributes.
    """

    def __init__(self, inner: ObjectStorage) -> None:
        """Wrap ``inner``; names do not change."""
        self.inner = inner
        self.url = inner.url
        self.options = inner.options
        self.waits = inner.waits
        self._above = ""
        """The path of a child relative to the storage from which it was taken."""

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        """Perform one request; ``operation`` is the method, ``name`` includes the folders above."""
        del operation, name
        return request()

    def put(self, name: str, data: bytes) -> None:
        self.around("put", self._above + name, lambda: self.inner.put(name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        full = self._above + name
        return self.around("put_if_absent", full, lambda: self.inner.put_if_absent(name, data))

    def get(self, name: str) -> bytes:
        return self.around("get", self._above + name, lambda: self.inner.get(name))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        full = self._above + name
        return self.around("get_ranges", full, lambda: self.inner.get_ranges(name, ranges))

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        return self.around("list", self._above + prefix, lambda: self.inner.list(prefix))

    def list_page(self, after: str = "") -> ObjectPage:
        return self.around("list_page", self._above + after, lambda: self.inner.list_page(after))

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        full = self._above + prefix
        return self.around("list_folders", full, lambda: self.inner.list_folders(prefix))

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self.around("delete", self._above, lambda: self.inner.delete(doomed))

    def child(self, prefix: str) -> ObjectStorage:
        below = copy.copy(self)
        below.inner = self.inner.child(prefix)
        below.url = below.inner.url
        below._above = f"{self._above}{prefix.rstrip('/')}/"  # noqa: SLF001 - one's own copy
        return below
