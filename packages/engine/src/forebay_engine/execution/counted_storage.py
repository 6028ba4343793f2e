"""Counts the requests that one task makes to storage, as stores bill them."""

from __future__ import annotations

import builtins
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

from forebay_state_api.contract.object_storage import ObjectPage, ObjectStorage
from forebay_state_api.metrics.keyed import REQUESTS
from forebay_state_api.storage import ForwardingStorage
from forebay_state_api.storage.obstore import PART_BYTES
from forebay_state_api.storage.retry import RetryingStorage

T = TypeVar("T")

_PAGE: Final = 1_000
"""Names that S3 and Google Cloud Storage return for one request."""


class RequestCounts:
    """Requests by kind, and bytes read. Thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._requests: Final[Counter[str]] = Counter()
        self.read_bytes = 0

    def add(self, kind: str, requests: int = 1, read_bytes: int = 0) -> None:
        """Count requests of one of the kinds `REQUESTS`."""
        with self._lock:
            self._requests[kind] += requests
            self.read_bytes += read_bytes

    def by_kind(self) -> dict[str, int]:
        """Return kind → requests, for all kinds."""
        return {kind: self._requests[kind] for kind in REQUESTS}


class CountedStorage(ForwardingStorage):
    """Counts the requests to another storage, also those that fail.

    A list counts once for each 1,000 names of its answer, ranges and deletions once each, and a put
    that is written in parts once for each part and twice more.
    """

    def __init__(self, inner: ObjectStorage, counts: RequestCounts) -> None:
        """``counts`` may belong to several storages."""
        super().__init__(inner)
        self._counts = counts

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        del name
        kind = operation.partition("_")[0]
        self._counts.add(kind)
        answer = request()
        if kind == "list":
            names = answer.objects if isinstance(answer, ObjectPage) else answer
            self._counts.add(kind, max(0, len(cast("Sequence[object]", names)) - 1) // _PAGE)
        elif isinstance(answer, bytes):
            self._counts.add(kind, 0, len(answer))
        return answer

    def put(self, name: str, data: bytes) -> None:
        if len(data) > PART_BYTES:
            self._counts.add("put", -(-len(data) // PART_BYTES) + 1)
        super().put(name, data)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        self._counts.add("get", sum(length > 0 for _, length in ranges))
        found = self.inner.get_ranges(name, ranges)
        self._counts.add("get", 0, sum(map(len, found)))
        return found

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self._counts.add("delete", len(doomed))
        self.inner.delete(doomed)


def counted(storage: ObjectStorage, counts: RequestCounts) -> ObjectStorage:
    """Return ``storage``, whose requests are counted, each try of those that it retries."""
    if not isinstance(storage, RetryingStorage):
        return CountedStorage(storage, counts)
    retrying = copy.copy(storage)
    retrying.inner = CountedStorage(storage.inner, counts)
    return retrying
