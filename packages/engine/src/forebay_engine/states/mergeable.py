"""Accesses that read before they take effect, and the merging of namespaces.

Such an access is *deferred* until its cell has been read, and the later accesses of the cell queue
behind it: ``async_add; async_add; async_get`` makes one read and sees both additions. A
synchronous access does not queue. It reads the cell and carries out what is queued before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.states.base import BoundTable, KeyedState
from forebay_engine.versions.format.namespaces import merged_namespaces
from forebay_state_api.job.futures import Promise, StateFuture

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost

Deferred = tuple[Promise[Any] | None, Callable[[], Any]]
"""A request, or ``None`` for a write whose future needs no answer; and what it does."""


@attrs.define
class Merge:
    """A merge of namespaces that waits for cells."""

    target: Any
    sources: list[Any]
    missing: int
    """The number of cells that were not read yet."""
    promise: Promise[Any] = attrs.field(init=False)

    def arrive(self) -> None:
        """Note that a cell has arrived."""
        self.missing -= 1


class MergeableState(KeyedState):
    """Base of the kinds of state whose namespaces can be merged: lists and merging states.

    A merge waits for several cells. While it does, every other access of its key ends it first.
    """

    __slots__ = ("_merges", "_pending")

    _put_under: Callable[[dict[Any, Any], dict[Any, Any], Any, Any], Any]
    """The function of `answers` for the shape."""

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        super().__init__(host, bound)
        self._pending: dict[tuple[Any, Any], list[Deferred]] = {}
        """(namespace, key) → the accesses that wait for one read, in order."""
        self._merges: dict[Any, Merge] = {}
        """Key → its merge that waits, if any. Then some of its cells are in `_pending`."""

    def forget_requests(self, key: Any) -> None:
        for address in [one for one in self._pending if one[1] == key]:
            del self._pending[address]
        self._merges.pop(key, None)
        super().forget_requests(key)

    # Differences between the kinds.

    def _question(self) -> tuple[object, Any, Any, Any]:
        """Return whose read of the current key's cell it is, its function and its arguments."""
        raise NotImplementedError

    def _fetch(self) -> Any:
        """Read the current key's cell unless it is in memory; waits."""
        raise NotImplementedError

    def _merge(self, target: Any, sources: list[Any]) -> None:
        """Merge ``sources`` (without ``target``) into it; any namespace may stay bound."""
        raise NotImplementedError

    # Deferred accesses.

    def _must_defer(self) -> bool:
        """Return whether the current key's cell is unknown, or accesses of it are waiting."""
        key = self._context._key
        if self._pending and (self._namespace, key) in self._pending:
            return True
        return not self._complete and key not in self._cells

    def _defer(
        self, operation: Callable[[], Any], kind: type[Promise[Any]] = Promise
    ) -> StateFuture[Any]:
        """Run ``operation`` once the cell has arrived, after earlier deferred accesses."""
        address = (self._namespace, self._context._key)
        waiting = self._pending.get(address)
        promise = self._scheduler.request(kind)
        if waiting is not None:
            waiting.append((promise, operation))
            return promise
        self._pending[address] = [(promise, operation)]
        cells, dirty, put_under = self._cells, self._dirty, self._put_under

        def keep(stored: Any) -> Any:
            put_under(cells, dirty, address[1], stored)
            self._run_deferred(address)
            return promise._value

        self._scheduler.read_for(promise, *self._question(), keep)
        return promise

    def _defer_write(self, write: Callable[[Any], None], written: Any) -> bool:
        """Defer ``write(written)`` if accesses of its cell are waiting; return whether."""
        self._end_merge()
        waiting = self._pending.get((self._namespace, self._context._key))
        if waiting is None:
            return False
        waiting.append((None, partial(write, written)))
        return True

    def _run_deferred(self, address: tuple[Any, Any]) -> None:
        # A merge of the key comes after them: it must not end on account of what they do.
        merge = self._merges.pop(address[1], None)
        self._within(address[0], partial(self._run_all, self._pending.pop(address, ())))
        if merge is not None:
            self._merges[address[1]] = merge
            if not merge.missing:
                self._end_merge()

    def _run_all(self, deferred: Iterable[Deferred]) -> None:
        for promise, operation in deferred:
            value = operation()
            if promise is not None:
                self._scheduler.give(promise, value)

    def _settle(self) -> None:
        """Carry out now what the current key's cell waits for."""
        self._end_merge()
        address = (self._namespace, self._context._key)
        if address in self._pending:
            self._fetch()
            self._run_deferred(address)

    # Merges.

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        self._merge_now(*merged_namespaces(target, sources))

    def async_merge_namespaces(self, target: Any, sources: Iterable[Any]) -> StateFuture[None]:
        target, others = merged_namespaces(target, sources)
        self._end_merge()
        wanted = self._read_by_merge(target, others) if others else ()
        loads = [one for one in wanted if self._within(one, self._must_defer)]
        if not loads:
            self._merge_now(target, others)
            return self._scheduler.answer(None)
        merge = Merge(target, others, len(loads))
        for one in loads:
            self._within(one, partial(self._defer, merge.arrive))
        merge.promise = self._scheduler.request(Promise)
        self._merges[self._context._key] = merge
        return merge.promise

    def _read_by_merge(self, target: Any, sources: list[Any]) -> list[Any]:
        """Return the namespaces of which a merge reads the cells."""
        return [target, *sources]

    def _end_merge(self) -> None:
        """Merge now what the current record merges, waiting for cells that have not arrived."""
        merge = self._merges.pop(self._context._key, None)
        if merge is not None:
            self._merge_now(merge.target, merge.sources)
            self._scheduler.give(merge.promise, None)

    def _merge_now(self, target: Any, sources: list[Any]) -> None:
        before = self._namespace
        try:
            self._merge(target, sources)
        finally:
            self.bind(before)
