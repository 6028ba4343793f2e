"""The model of record methods that are data: `programs` on one record, request by request.

Requests complete in their order, each with all that hangs on it, before the next
(docs/decisions/0008-the-life-of-a-record.md).
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import CoroutineType
from typing import Any

from .programs import Performer, Program, ProgramFailed


class ModelFuture:
    """A future of a `RecordModel`."""

    def __init__(self, model: RecordModel, value: Any = None) -> None:
        self.model = model
        self.value = value
        self.done = False
        self.callbacks: list[tuple[Any, Callable[[Any], Any]]] = []

    def attach(self, callback: Callable[[Any], Any]) -> None:
        """Run ``callback`` when its turn comes, in the current namespace."""
        entry = (self.model.current_namespace, callback)
        if self.done:
            self.model.late.append((*entry, self.value))
        else:
            self.callbacks.append(entry)

    def fulfil(self, value: Any) -> None:
        """Complete it; everything that depends on it runs next."""
        self.value, self.done = value, True
        self.model.stack += [(*entry, value) for entry in reversed(self.callbacks)]

    def then_accept(self, fn: Callable[[Any], Any]) -> ModelFuture:
        """Model `StateFuture.then_accept`."""
        after = ModelFuture(self.model)

        def accept(value: Any) -> None:
            returned = fn(value)
            if returned is None:
                after.fulfil(None)
            else:
                self.model.drive(returned, lambda _: after.fulfil(None))

        self.attach(accept)
        return after

    def then_compose(self, fn: Callable[[Any], Any]) -> ModelFuture:
        """Model `StateFuture.then_compose`."""
        after = ModelFuture(self.model)

        def compose(value: Any) -> None:
            returned = fn(value)
            if isinstance(returned, ModelFuture):
                returned.attach(after.fulfil)
            else:
                self.model.drive(returned, after.fulfil)

        self.attach(compose)
        return after

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.model.passes(self):
            yield self
        return self.value


class RecordModel:
    """One record, in which every request waits for its turn."""

    def __init__(self, cells: dict[Any, Any]) -> None:
        """``cells`` are the key's cells: (state, namespace) → content."""
        self.cells = cells
        self.current_namespace: Any = None
        self.requests: deque[ModelFuture] = deque()
        """Pending requests, in order."""
        self.late: deque[tuple[Any, Callable[[Any], Any], Any]] = deque()
        self.stack: list[tuple[Any, Callable[[Any], Any], Any]] = []
        self.v, self.w, self.r, self.l = (ModelState(self, name) for name in "vwrl")
        self.s = ModelSortedMap(self, "s")

    def set_current_namespace(self, namespace: Any) -> None:
        """Model `RuntimeContext.set_current_namespace`."""
        self.current_namespace = namespace

    def request(self, value: Any) -> ModelFuture:
        """Add the next request."""
        future = ModelFuture(self, value)
        self.requests.append(future)
        return future

    completed = request

    def write(self) -> ModelFuture:
        """Add a write that has taken effect; it completes at once if no earlier one is pending."""
        future = self.request(None)
        if not self.stack and not self.late and len(self.requests) == 1:
            self.requests.pop().done = True
        return future

    def passes(self, awaited: ModelFuture) -> bool:
        """Return whether an await resumes at once: nothing depends on the future or precedes it."""
        if self.stack or self.late:
            return False
        if awaited.done:
            return True
        before = [*self.requests]
        if awaited not in before:
            return False
        before = before[: before.index(awaited) + 1]
        if any(future.callbacks for future in before):
            return False
        for future in before:
            self.requests.popleft().done = True
            future.done = True
        return True

    def drive(self, coroutine: Coroutine[Any, Any, Any], end: Callable[[Any], Any]) -> None:
        """Run a coroutine in steps."""

        def step(_: Any = None) -> None:
            try:
                awaited = coroutine.send(None)
            except StopIteration as stop:
                end(stop.value)
                return
            awaited.attach(step)

        step()

    def combine_all(self, members: list[ModelFuture]) -> ModelFuture:
        """Model `combine_all`."""
        after = ModelFuture(self)
        missing = len(members)
        if all(member.done for member in members):
            after.value, after.done = [member.value for member in members], True
            return after

        def collect(_: Any) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                after.fulfil([member.value for member in members])

        for member in members:
            member.attach(collect)
        return after

    def run(self, performer: Performer, program: Program) -> None:
        """Run the record from its first step to its last."""
        returned = performer.perform(program)
        if returned.__class__ is CoroutineType:
            self.drive(returned, lambda _: None)
        while True:
            if self.stack:
                self.current_namespace, callback, value = self.stack.pop()
                callback(value)
            elif self.late:
                self.current_namespace, callback, value = self.late.popleft()
                callback(value)
            elif self.requests:
                request = self.requests.popleft()
                request.fulfil(request.value)
            else:
                return


class ModelState:
    """One of the states of a `RecordModel`."""

    def __init__(self, model: RecordModel, name: str) -> None:
        self.model = model
        self.name = name

    @property
    def _cell(self) -> tuple[str, Any]:
        return self.name, self.model.current_namespace

    def value(self) -> Any:
        """Return the stored value."""
        return self.model.cells.get(self._cell)

    get = value

    def async_value(self) -> ModelFuture:
        """Return a future of the stored value."""
        return self.model.request(self.value())

    def async_get(self) -> ModelFuture:
        """Return a future of the stored value; for the list, of an iterator."""
        if self.name == "l":
            return self.model.request(ModelIterator(self.model, [*(self.value() or ())]))
        return self.async_value()

    def async_update(self, value: Any) -> ModelFuture:
        """Write."""
        self.model.cells[self._cell] = value
        return self.model.write()

    def async_clear(self) -> ModelFuture:
        """Remove what is stored."""
        return self.async_update(None)

    def merge_namespaces(self, target: Any, sources: Sequence[Any]) -> None:
        """Add what the sources hold to the target."""
        for source in sources:
            moved = self.model.cells[self.name, source]
            if source != target and moved is not None:
                self.model.cells[self.name, source] = None
                held = self.model.cells[self.name, target]
                self.model.cells[self.name, target] = moved if held is None else held + moved

    def async_merge_namespaces(self, target: Any, sources: Sequence[Any]) -> ModelFuture:
        """Model `merge_namespaces`: a request that takes effect when it is made."""
        self.merge_namespaces(target, sources)
        return self.model.request(None)

    def async_add(self, value: Any) -> ModelFuture:
        """Add to the sum, or to the list."""
        old = self.value()
        if self.name == "l":
            self.model.cells[self._cell] = [*(old or ()), value]
            return self.model.write()
        self.model.cells[self._cell] = (old or 0) + value
        return self.model.request(None)


class ModelSortedMap(ModelState):
    """The sorted map of a `RecordModel`."""

    def range(self, start: int | None, stop: int | None) -> list[tuple[int, int]]:
        """Return the entries in a range."""
        low = float("-inf") if start is None else start
        high = float("inf") if stop is None else stop
        return [entry for entry in sorted((self.value() or {}).items()) if low <= entry[0] < high]

    def async_put(self, key: int, value: int) -> ModelFuture:
        """Write an entry."""
        self.model.cells[self._cell] = {**(self.value() or {}), key: value}
        return self.model.write()

    def async_remove_range(self, start: int | None, stop: int | None) -> ModelFuture:
        """Remove the entries in a range."""
        gone = dict(self.range(start, stop))
        kept = {key: value for key, value in (self.value() or {}).items() if key not in gone}
        self.model.cells[self._cell] = kept
        return self.model.write()

    def async_first(self, start: int | None) -> ModelFuture:
        """Return a future of the first entry from ``start`` on."""
        return self.model.request(next(iter(self.range(start, None)), None))

    def async_last(self, stop: int | None) -> ModelFuture:
        """Return a future of the last entry before ``stop``."""
        return self.model.request(next(reversed(self.range(None, stop)), None))

    def async_range(self, start: int | None, stop: int | None) -> ModelFuture:
        """Return a future of an iterator over the entries in a range."""
        return self.model.request(ModelIterator(self.model, self.range(start, stop)))


class ModelIterator:
    """The elements of a list, or the entries of a map."""

    def __init__(self, model: RecordModel, elements: list[Any]) -> None:
        self.model = model
        self.elements = elements

    def on_next(self, fn: Callable[[Any], Any]) -> ModelFuture:
        """Model `StateIterator.on_next`: a request whose calls run concurrently in its turn."""
        result = ModelFuture(self.model)
        namespace = self.model.current_namespace
        futures: list[ModelFuture] = []

        def call(element: Any) -> None:
            returned = fn(element)
            if returned.__class__ is CoroutineType:
                driven = ModelFuture(self.model)
                self.model.drive(returned, driven.fulfil)
                returned = driven
            if returned is not None:
                futures.append(returned)

        def begin(_: Any) -> None:
            self.model.stack.append((namespace, lambda _: None, None))
            for element in self.elements:
                self.model.current_namespace = namespace
                call(element)
            self.model.current_namespace = namespace
            if futures:
                self.model.combine_all(futures).attach(result.fulfil)
            else:
                result.fulfil(None if self.elements else [])

        self.model.request(None).attach(begin)
        return result


def expected(cells: dict[Any, Any], program: Program) -> tuple[list[Any], dict[Any, Any]]:
    """Run a program on a model of ``cells``; return its log and the changed cells."""
    model = RecordModel(cells)
    performer = Performer(model, model.combine_all, model)
    model.run(performer, program)
    return performer.log, cells


def fails(cells: dict[Any, Any], program: Program) -> bool:
    """Return whether a program fails; if it does not, ``cells`` are changed as in `expected`."""
    after = copy.deepcopy(cells)
    try:
        expected(after, program)
    except ProgramFailed:
        return True
    cells.update(after)
    return False


def no_cells() -> dict[Any, Any]:
    """Return empty cells."""
    return defaultdict(lambda: None)
