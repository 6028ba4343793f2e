"""Retry requests that failed transiently, with growing pauses, within a time budget."""

from __future__ import annotations

import builtins
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Final, TypeVar

import attrs

from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import StorageError
from forebay_state_api.storage.forwarding import ForwardingStorage

S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_FIRST_S: Final = 0.05
_LONGEST_S: Final = 5.0


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """The retry policy of storage requests: the time budget, and the pauses between tries."""

    budget_s: float
    """Seconds from the first try on; no try begins later."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    """Returns 0 … 1: a pause takes between half of its length and all of it."""

    def pause_s(self, tried: int) -> float:
        """Return the pause after a number of tries, in seconds."""
        longest = min(_FIRST_S * 2.0 ** (tried - 1), _LONGEST_S)
        return longest * (1 + self.jitter()) / 2


class RetryingStorage(ForwardingStorage):
    """Retries the requests of another storage if its error is marked as transient.

    No store retries by itself, so that one budget covers everything and it is known which requests
    were sent before. If all tries fail, the last error is raised, in its own class, with the number
    of tries and the time they took.
    """

    def __init__(self, inner: ObjectStorage, retry: RetryPolicy) -> None:
        """Wrap ``inner``; names do not change."""
        super().__init__(inner)
        self._retry: Final = retry

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        del operation, name
        retry = self._retry
        started = retry.clock()
        tried = 0
        while True:
            try:
                return request()
            except StorageError as error:
                tried += 1
                elapsed_s = retry.clock() - started
                pause_s = retry.pause_s(tried)
                if not error.transient or elapsed_s + pause_s > retry.budget_s:
                    if tried == 1:
                        raise
                    # The same object, so that callers can still catch its class.
                    error.args = (f"{error} (tried {tried} times in {elapsed_s:.1f} s)",)
                    error.transient = False
                    raise
                _log.info("%s; trying again in %.2f s", error, pause_s)
            retry.sleep(pause_s)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object that does not exist yet.

        After a failed try the object may be the caller's own, so its content is compared.
        """
        tries = count()

        def request() -> bool:
            again = next(tries) > 0
            return self.inner.put_if_absent(name, data) or (again and self._holds(name, data))

        return self.around("put_if_absent", name, request)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        if len(ranges) < 2:  # noqa: PLR2004 - one, or none
            return self.around("get_ranges", name, lambda: self.inner.get_ranges(name, ranges))
        found = self._together(ranges, lambda some: self.inner.get_ranges(name, some))
        return found[0] if len(found) == 1 else [data for answer in found for data in answer]

    def delete(self, names: Iterable[str]) -> None:
        self._together([*names], self.inner.delete)

    def _together(
        self, items: Sequence[S], request: Callable[[Sequence[S]], T]
    ) -> builtins.list[T]:
        """Request all parts at once; if that fails transiently, one by one.

        Of many requests at least one is more likely to fail; repeating all might never succeed.
        """
        parts = [items]
        if len(items) > 1 and self._retry.budget_s:
            try:
                return [request(items)]
            except StorageError as error:
                if not error.transient:
                    raise
                _log.info("%s; trying again one by one", error)
            parts = [[item] for item in items]
        return [self.around("", "", partial(request, part)) for part in parts]

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.inner.get(name) == data
        except ObjectNotFoundError:  # it was deleted in between
            return False
