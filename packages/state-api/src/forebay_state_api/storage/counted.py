"""Counts the requests that one task makes to storage."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.storage.forwarding import ForwardingStorage

T = TypeVar("T")

KINDS: Final = {
    "get": "get",
    "get_ranges": "get",
    "list": "list",
    "list_page": "list",
    "list_folders": "list",
    "put": "put",
    "put_if_absent": "put",
    "delete": "delete",
}
"""Method of a storage → kind of request."""


class RequestCounts:
    """Requests by kind, and bytes read. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._requests: Final[Counter[str]] = Counter()
        self.read_bytes = 0

    def add(self, kind: str, read_bytes: int = 0) -> None:
        """Count one request."""
        with self._lock:
            self._requests[kind] += 1
            self.read_bytes += read_bytes

    def by_kind(self) -> dict[str, int]:
        """Return kind → requests, for all kinds."""
        return {kind: self._requests[kind] for kind in dict.fromkeys(KINDS.values())}


class CountedStorage(ForwardingStorage):
    """Counts each request to another storage; one call for several ranges is one request."""

    def __init__(self, inner: ObjectStorage, counts: RequestCounts) -> None:
        """``counts`` may belong to several storages."""
        super().__init__(inner)
        self._counts = counts

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        del name
        answer = request()
        self._counts.add(KINDS[operation], _size(answer))
        return answer


def _size(answer: object) -> int:
    if isinstance(answer, bytes):
        return len(answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], bytes):
        return sum(map(len, answer))
    return 0
