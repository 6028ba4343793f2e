"""The base of all state objects: a table's spaces, and the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from forebay_engine.execution.iteration import Content, PagedIteration, identity, load_whole
from forebay_engine.execution.request_futures import AnsweredRead
from forebay_state_api.contract.backend import Table, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, Space
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.job.descriptors import StateDescriptor

T = TypeVar("T")


@attrs.frozen
class BoundTable:
    """A state's descriptor, bound to the table that holds its cells."""

    descriptor: StateDescriptor
    spec: TableSpec
    table: Table
    codec: ValueCodec
    """Codec of the values that users see; the table's, in ``spec``, may be derived from it."""


class KeyedState:
    """A state object, bound to the cells of the current namespace of one table.

    ``_cells`` and ``_dirty`` are the current `Space`'s dictionaries, kept as attributes because
    every access needs them.
    """

    __slots__ = (
        "_admit",
        "_cells",
        "_complete",
        "_context",
        "_descriptor",
        "_dirty",
        "_hand_out",
        "_host",
        "_namespace",
        "_scheduler",
        "_spec",
        "_table",
        "spaces",
    )

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        self._host = host
        self._scheduler = host.scheduler
        self._context = host.context
        self._descriptor = bound.descriptor
        self._spec = bound.spec
        self._table = bound.table
        self._admit = bound.codec.admit
        self._hand_out = bound.codec.hand_out
        self.spaces: dict[Any, Space] = {}
        self.bind(None)

    def space_of(self, namespace: Any) -> Space:
        """Return the space of ``namespace``, in use from now on."""
        space = self.spaces.get(namespace)
        if space is None:
            space = self.spaces[namespace] = self._table.space(namespace)
        return space

    def bind(self, namespace: Any) -> None:
        """Make ``namespace`` the current one, to which accesses belong."""
        space = self.space_of(namespace)
        self._namespace = namespace
        self._complete = space.complete
        self._cells = space.cells
        self._dirty = space.dirty

    def has_content(self, stored: Any) -> bool:
        """Return whether a cell, an element or a map's value exists and has not expired."""
        return stored is not ABSENT

    def forget_requests(self, key: Any) -> None:
        """Drop what waits for storage to answer the record of ``key``, which has failed."""

    def changes(self) -> Changes:
        """Return the writes that were not handed over yet."""
        raise NotImplementedError

    def _waits(self) -> None:
        """Note that a synchronous access has to wait for storage."""
        self._host.waits(self._spec.name)

    def _within(self, namespace: Any, act: Callable[[], T]) -> T:
        """Return ``act()``, with its accesses in ``namespace``."""
        current = self._namespace
        if current == namespace:
            return act()
        self.bind(namespace)
        try:
            return act()
        finally:
            self.bind(current)

    def _request_of(
        self,
        owner: object,
        read_many: Any,
        namespace: Any,
        argument: Any,
        arrive: Callable[[Any], Any],
    ) -> StateFuture[Any]:
        """Return a future of ``arrive(answer)``, as `Scheduler.read` does."""
        return self._scheduler.read(owner, read_many, namespace, argument, arrive)

    def _load(self, content: Content, arrive: Callable[[list[Any]], Any]) -> StateFuture[Any]:
        """Return a future of ``arrive`` of all elements, read on a backend thread."""
        wanted = (content, self._host.settings.page_size)
        # Not with the state as their owner: they would be sent in one call with reads of cells.
        return self._request_of(load_whole, load_whole, None, wanted, arrive)

    def _answer(self, value: Any) -> StateFuture[Any]:
        """Return a future of a read that memory answered."""
        scheduler = self._scheduler
        if scheduler.tail._done:
            # The same as `Scheduler.answer`, without the call.
            future: AnsweredRead[Any] = AnsweredRead()
            scheduler.tail = future
            future._value = value
            future._done = False
            return future
        return scheduler.answer_in_order(value, AnsweredRead)

    def _write(self) -> StateFuture[None]:
        """Return a future of a write that has taken effect."""
        scheduler = self._scheduler
        return scheduler.done if scheduler.tail._done else scheduler.write()

    def _iterator(
        self,
        content: Content,
        shape: Callable[[Any], Any] | None,
        ask: Callable[[StateIterator[Any]], Any] = identity,
    ) -> StateFuture[Any]:
        """Return a future of ``ask(iterator)``, called when the first page is loaded."""
        return PagedIteration(self._host, content, shape).iterator(ask)

    def _loaded_iterator(
        self, content: Content, shape: Callable[[Any], Any] | None
    ) -> StateIterator[Any]:
        """Return an iterator over a content in memory."""
        return PagedIteration(self._host, content, shape).in_memory()
