"""Object storages for tests: with planned faults, with counters, with a manual clock.

Each wraps another storage; a `child` shares faults, counts and clock with its parent, and names in
faults and counts are full names, as seen from the outermost wrapper.
"""

from __future__ import annotations

import builtins
import enum
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import attrs

from forebay_state_api.errors import StorageError
from forebay_state_api.storage import ForwardingStorage

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectPage, ObjectStorage
    from forebay_testing.clock import ManualClock

T = TypeVar("T")


class WrappedStorage(ForwardingStorage):
    """Forwards every request to another storage; subclasses add behaviour.

    Its `waits` is true, so that several requests come from several threads whatever it wraps, and
    it deletes one object at a time.
    """

    def __init__(self, inner: ObjectStorage) -> None:
        """Wrap ``inner``; names do not change."""
        super().__init__(inner)
        self.waits = True

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.around("delete", self._above + name, partial(self.inner.delete, [name]))


class FaultKind(enum.Enum):
    """The way in which a request goes wrong."""

    BEFORE = "before"
    """It raises, and nothing has happened."""
    AFTER = "after"
    """It raises although the request has taken effect."""
    TORN = "torn"
    """A put stores only the first half, and raises."""
    ALTERED = "altered"
    """A get or get_ranges returns one changed byte, without an error."""


class Crash(BaseException):
    """The process dies here. Not an `Exception`, so that no handler of the product stops it."""


@attrs.define(kw_only=True)
class Fault:
    """A rule that makes some requests go wrong."""

    operation: str = "*"
    """The method's name, or a pattern: ``put``, ``put*``, ``*``."""
    name: str = "*"
    """The full object name, or a pattern: ``versions/*/manifest-*``."""
    kind: FaultKind = FaultKind.BEFORE
    skip: int = 0
    """The number of matching requests that succeed first."""
    count: int | None = 1
    """The number of matching requests that go wrong; ``None`` for all later ones."""
    error: Callable[[], BaseException] = attrs.field(
        default=lambda: StorageError("injected by the test")
    )

    def strikes(self, operation: str, name: str) -> bool:
        """Return whether this request goes wrong; counts it if it matches."""
        if not (fnmatchcase(operation, self.operation) and fnmatchcase(name, self.name)):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.count is None:
            return True
        self.count -= 1
        return self.count >= 0


class FaultyStorage(WrappedStorage):
    """Fails according to its `faults`, and calls ``latency`` before every request.

    ``latency(operation, name)`` may block, for example at a `Sequencer`'s point, and so decides
    when the request continues. Faults are checked for one request at a time, in their order.
    """

    def __init__(
        self,
        inner: ObjectStorage,
        *faults: Fault,
        latency: Callable[[str, str], object] | None = None,
    ) -> None:
        """Wrap ``inner``; more faults may be appended to `faults` at any time."""
        super().__init__(inner)
        self.faults = [*faults]
        self._latency = latency
        self._lock = threading.Lock()

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        if self._latency is not None:
            self._latency(operation, name)
        fault = self._striking(operation, name, torn=False)
        if fault is None:
            return request()
        if fault.kind is FaultKind.ALTERED:
            return _altered(request())
        if fault.kind is FaultKind.AFTER:
            request()
        raise fault.error()

    def put(self, name: str, data: bytes) -> None:
        if not self._torn("put", name, data):
            super().put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._torn("put_if_absent", name, data) or super().put_if_absent(name, data)

    def _torn(self, operation: str, name: str, data: bytes) -> bool:
        fault = self._striking(operation, self._above + name, torn=True)
        if fault is None:
            return False
        if self._latency is not None:
            self._latency(operation, self._above + name)
        self.inner.put(name, data[: len(data) // 2])
        raise fault.error()

    def _striking(self, operation: str, name: str, *, torn: bool) -> Fault | None:
        with self._lock:
            rules = [fault for fault in self.faults if (fault.kind is FaultKind.TORN) is torn]
            return next((fault for fault in rules if fault.strikes(operation, name)), None)


def _altered(answer: T) -> T:
    """Return ``answer`` with the lowest bit of its middle byte changed."""
    if isinstance(answer, bytes) and answer:
        middle = len(answer) // 2
        changed = answer[:middle] + bytes([answer[middle] ^ 1]) + answer[middle + 1 :]
        return cast("T", changed)
    if isinstance(answer, list) and answer:
        return cast("T", [_altered(answer[0]), *answer[1:]])
    return answer


class CountingStorage(WrappedStorage):
    """Counts requests and bytes."""

    def __init__(self, inner: ObjectStorage) -> None:
        """Wrap ``inner`` with all counts at zero."""
        super().__init__(inner)
        self.requests: builtins.list[tuple[str, str]] = []
        """Every request since the last `reset`: operation and full name, in order."""
        self._bytes = Counter[str]()

    @property
    def counts(self) -> Counter[str]:
        """Return the number of requests of each operation."""
        return Counter(operation for operation, _ in self.requests)

    @property
    def bytes_read(self) -> int:
        """Bytes returned by get and get_ranges."""
        return self._bytes["read"]

    @property
    def bytes_written(self) -> int:
        """Bytes passed to puts."""
        return self._bytes["written"]

    def reset(self) -> None:
        """Reset all counts to zero."""
        self.requests.clear()
        self._bytes.clear()

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        self.requests.append((operation, name))
        answer = request()
        if operation in {"get", "get_ranges"}:
            self._bytes["read"] += _size(answer)
        return answer

    def put(self, name: str, data: bytes) -> None:
        self._bytes["written"] += len(data)
        super().put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._bytes["written"] += len(data)
        return super().put_if_absent(name, data)


def _size(answer: object) -> int:
    if isinstance(answer, bytes):
        return len(answer)
    return sum(map(_size, answer)) if isinstance(answer, list) else 0


class ClockedStorage(WrappedStorage):
    """Objects get the time of a `ManualClock` instead of the store's time."""

    def __init__(self, inner: ObjectStorage, clock: ManualClock) -> None:
        """Wrap ``inner``; objects that were put past this wrapper keep the store's time."""
        super().__init__(inner)
        self._clock = clock
        self._times: dict[str, datetime] = {}

    def put(self, name: str, data: bytes) -> None:
        super().put(name, data)
        self._times[self._above + name] = self._clock.now

    def put_if_absent(self, name: str, data: bytes) -> bool:
        made = super().put_if_absent(name, data)
        if made:
            self._times[self._above + name] = self._clock.now
        return made

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        return [*map(self._timed, super().list(prefix))]

    def list_page(self, after: str = "") -> ObjectPage:
        page = super().list_page(after)
        return attrs.evolve(page, objects=[*map(self._timed, page.objects)])

    def _timed(self, info: ObjectInfo) -> ObjectInfo:
        found = self._times.get(self._above + info.name, info.modified)
        return attrs.evolve(info, modified=found)
