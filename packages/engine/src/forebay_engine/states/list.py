"""`ListState` over a list table: appends read nothing, iterations see a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forebay_engine.execution.iteration import Content, ScannedContent, load_whole
from forebay_engine.states.answers import put_list_under
from forebay_engine.states.elements import checked_elements
from forebay_engine.states.mergeable import MergeableState
from forebay_state_api.contract.changes import Changes, ListChange
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.job.states import ListState


class KeyedListState(MergeableState, ListState[Any]):
    """`ListState` without TTL.

    ``_cells[key]`` is the whole list, if it is known; ``_dirty[key]`` is the changes to it.
    """

    __slots__ = ()

    _put_under = staticmethod(put_list_under)

    def changes(self) -> Changes:
        lists = {name: dict(space.dirty) for name, space in self.spaces.items() if space.dirty}
        return Changes(lists=lists)

    # Synchronous.

    def get(self) -> list[Any]:
        return self._seen(self._known())

    def add(self, value: Any) -> None:
        if value is None:
            raise self._refused("add(None)")
        self._append([self._admit(value)])

    def add_all(self, values: Iterable[Any]) -> None:
        admitted = self._admitted("add_all", values)
        if admitted:
            self._append(admitted)

    def update(self, values: Iterable[Any]) -> None:
        self._replace(self._admitted("update", values))

    def clear(self) -> None:
        if self._complete and self._context._key not in self._cells:
            change = self._dirty.get(self._context._key)
            if change is None:
                return
        self._replace([])

    def _merge(self, target: Any, sources: list[Any]) -> None:
        merged: list[Any] = []
        for source in sources:
            self.bind(source)
            if elements := self._known():
                merged += self._mergeable(elements)
                self.clear()
        if merged:
            self.bind(target)
            self._append(merged)

    def _read_by_merge(self, target: Any, sources: list[Any]) -> list[Any]:
        del target  # it is appended to
        return sources

    def _mergeable(self, elements: list[Any]) -> list[Any]:
        """Return the stored elements that a merge takes over."""
        return elements

    # Asynchronous.

    def async_get(self) -> StateFuture[StateIterator[Any]]:
        return self._iterator(self._content(), self._shape())

    def async_add(self, value: Any) -> StateFuture[None]:
        self.add(value)
        return self._write()

    def async_add_all(self, values: Iterable[Any]) -> StateFuture[None]:
        self.add_all(values)
        return self._write()

    def async_update(self, values: Iterable[Any]) -> StateFuture[None]:
        self.update(values)
        return self._write()

    def async_clear(self) -> StateFuture[None]:
        self.clear()
        return self._write()

    # Cells.

    def _shape(self) -> Any:
        """Return the function from a stored element to the user's value."""
        return self._hand_out

    def _seen(self, elements: list[Any]) -> list[Any]:
        shape = self._shape()
        return list(elements) if shape is None else [shape(element) for element in elements]

    def _admitted(self, method: str, values: Iterable[Any]) -> list[Any]:
        elements = checked_elements(method, values, self._refused)
        return [self._admit(element) for element in elements]

    def _refused(self, call: str) -> ValueError:
        return ValueError(f"list state {self._spec.name!r}: {call} is refused; nothing was changed")

    def _change(self) -> ListChange:
        context = self._context
        change: ListChange | None = self._dirty.get(context._key)
        if change is None:
            change = self._dirty[context._key] = ListChange(context._group)
        return change

    def _append(self, elements: list[Any]) -> None:
        if self._pending and self._defer_write(self._append, elements):
            return
        self._change().elements.extend(elements)
        key = self._context._key
        known = self._cells.get(key)
        if known is not None:
            known.extend(elements)
        elif self._complete:
            self._cells[key] = elements

    def _replace(self, elements: list[Any]) -> None:
        if self._pending and self._defer_write(self._replace, elements):
            return
        key = self._context._key
        change = self._change()
        change.replaced = True
        change.elements = list(elements)
        if elements or not self._complete:
            self._cells[key] = elements
        else:
            self._cells.pop(key, None)

    def _known(self) -> list[Any]:
        """Return the stored elements of the current key; waits if it must."""
        if self._pending:
            self._settle()
        known: list[Any] | None = self._cells.get(self._context._key)
        if known is not None:
            return known
        return [] if self._complete else self._fetch()

    def _fetch(self) -> list[Any]:
        self._waits()
        _, load, _, wanted = self._question()
        return put_list_under(self._cells, self._dirty, self._context._key, load(None, [wanted])[0])

    def _question(self) -> tuple[object, Any, Any, Any]:
        scan = self._table.scan(self._namespace, self._context._group, self._context._key)
        wanted = (ScannedContent(scan, None, []), self._host.settings.page_size)
        # Not with the state as their owner: other calls would answer them.
        return load_whole, load_whole, None, wanted

    def _content(self) -> Content:
        """Return the current elements, in memory or still to be read."""
        if self._pending:
            self._end_merge()
        key = self._context._key
        known = self._cells.get(key)
        if known is not None or self._complete:
            return Content(list(known or ()))
        change = self._dirty.get(key)
        scan = self._table.scan(self._namespace, self._context._group, key)
        return ScannedContent(scan, None, [] if change is None else list(change.elements))
