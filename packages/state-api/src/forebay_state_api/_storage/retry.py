"""Tries again what failed in passing, with growing pauses, within a budget of time."""

from __future__ import annotations

import builtins
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import attrs

from forebay_state_api._storage.contract import ObjectInfo, ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import StorageError

T = TypeVar("T")

_log = logging.getLogger(__name__)

_FIRST_S: Final = 0.05
_LONGEST_S: Final = 5.0


@attrs.frozen(kw_only=True)
class Retry:
    """How long a request is tried again."""

    budget_s: float
    """From the first try on, seconds; nothing is tried again that would begin after it."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    """0 … 1: pauses are between half of their length and all of it."""

    def call(self, request: Callable[[int], T]) -> T:
        """Return the result of ``request``, which gets the number of tries before this one.

        Raises the last `StorageError`, of its own kind, with how often and how long it was tried.
        """
        started = self.clock()
        tried = 0
        while True:
            try:
                return request(tried)
            except StorageError as error:
                tried += 1
                elapsed_s = self.clock() - started
                pause_s = self._pause_s(tried)
                if not error.transient or elapsed_s + pause_s > self.budget_s:
                    if tried == 1:
                        raise
                    # The error itself, so that a caller who expects its kind sees it.
                    error.args = (f"{error} (tried {tried} times in {elapsed_s:.1f} s)",)
                    error.transient = False
                    raise
                _log.info("%s; trying again in %.2f s", error, pause_s)
            self.sleep(pause_s)

    def _pause_s(self, tried: int) -> float:
        longest = min(_FIRST_S * 2.0 ** (tried - 1), _LONGEST_S)
        return longest * (1 + self.jitter()) / 2


class RetryingStorage(ObjectStorage):
    """Another storage whose requests are tried again where it says that they may succeed."""

    def __init__(self, inner: ObjectStorage, retry: Retry) -> None:
        """Wrap ``inner``; names do not change."""
        self._inner: Final = inner
        self._retry: Final = retry
        self.url = inner.url
        self.waits = inner.waits

    def put(self, name: str, data: bytes) -> None:
        self._retry.call(lambda _: self._inner.put(name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object that does not exist yet.

        After a try that failed, the object may be the caller's own, so its content is compared.
        """

        def request(tried: int) -> bool:
            return self._inner.put_if_absent(name, data) or (tried > 0 and self._holds(name, data))

        return self._retry.call(request)

    def get(self, name: str) -> bytes:
        return self._retry.call(lambda _: self._inner.get(name))

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        return self._retry.call(lambda _: self._inner.get_ranges(name, ranges))

    def list(self, prefix: str = "") -> builtins.list[ObjectInfo]:
        return self._retry.call(lambda _: self._inner.list(prefix))

    def list_folders(self, prefix: str = "") -> builtins.list[str]:
        return self._retry.call(lambda _: self._inner.list_folders(prefix))

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self._retry.call(lambda _: self._inner.delete(doomed))

    def child(self, prefix: str) -> RetryingStorage:
        return RetryingStorage(self._inner.child(prefix), self._retry)

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self._inner.get(name) == data
        except ObjectNotFoundError:  # it was deleted in between
            return False
