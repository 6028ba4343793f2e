"""Record methods as data: requests, callbacks that make more requests, awaits, and their order.

A program is a list of operations, which `Performer` executes on the states of an operator or on a
`RecordModel` of them (`program_model`). The order of events and their namespaces are the same in
both; this is the life of a record (docs/decisions/0008-the-life-of-a-record.md).

``("read", state)``, ``("write", state)``, ``("add",)``, ``("sum",)``, ``("append",)`` and
``("completed",)`` each make a future; ``("combine", positions)`` combines futures made before.
``("then", position, body)`` and ``("compose", position, body)`` chain a program to one;
``("each", body)`` runs one for each element of the list. ``("put", key)`` and
``("cut", start, stop)`` write to the sorted map, ``("first", start)`` and ``("last", stop)`` make
futures of an entry, and ``("walk", start, stop, body)`` runs a program for each entry of a range.
``("clear", state)``, ``("replace",)`` and ``("merge", state, target, sources)`` write, ``("join",
state, target, sources)`` merges synchronously, and ``("elements",)`` reads the list synchronously.
``("await", position)`` is for coroutines: a program is one behind ``"async"``.
``("namespace", name)`` makes a namespace current; ``("look", state)``, ``("total",)`` and
``("range", start, stop)`` read synchronously; ``("fail",)`` raises `ProgramFailed`. The states are
``v`` and ``w``, which hold a value, ``r``, which adds, ``l``, a list, and ``s``, a sorted map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Final

Program = Sequence[Any]
"""Operations, each a tuple."""


class ProgramFailed(Exception):
    """A program has come to its ``("fail",)``."""


_REQUESTS: Final = frozenset(
    {
        "read",
        "write",
        "add",
        "sum",
        "append",
        "put",
        "cut",
        "first",
        "last",
        "completed",
        "clear",
        "replace",
        "merge",
    }
)


class Performer:
    """Executes one program, and records its observations in ``log``."""

    def __init__(self, states: Any, combine_all: Callable[[list[Any]], Any], ctx: Any) -> None:
        """``states`` has the states as attributes; ``ctx`` sets namespaces."""
        self.states = states
        self.combine_all = combine_all
        self.ctx = ctx
        self.log: list[Any] = []
        self.futures: list[Any] = []
        self.requests: list[Any] = []
        """Futures that complete without a callback, so that a callback may wait for them."""
        self.steps = 0

    def perform(self, program: Program, *, in_callback: bool = False) -> Any:
        """Execute it, as a coroutine if it begins with ``"async"``; return the last future."""
        # A callback that waited for a future that depends on its own end would wait for ever.
        known = self.requests if in_callback else self.futures
        if program and program[0] == "async":
            return self._perform_async(program[1:], known)
        made = None
        for operation in program:
            if operation[0] != "await":
                made = self._do(operation, known)
                if operation[0] == "then" and in_callback:
                    made = None
        return made

    async def _perform_async(self, program: Program, known: list[Any]) -> Any:
        for operation in program:
            if operation[0] != "await":
                self._do(operation, known)
            elif known:
                self._note("awaited", _shown(await known[operation[1] % len(known)]))
        self._note("ended")

    def _do(self, operation: Any, known: list[Any]) -> Any:
        kind, *arguments = operation
        if kind in {"combine", "compose"}:
            arguments.append(known)
        made = getattr(self, f"_{kind}")(*arguments)
        if made is not None:
            self.futures.append(made)
            if kind in _REQUESTS:
                self.requests.append(made)
        return made

    def _future(self, position: int) -> Any:
        return self.futures[position % len(self.futures)]

    def _note(self, *seen: Any) -> None:
        self.log.append((self.ctx.current_namespace, *seen))

    def _read(self, state: str) -> Any:
        return getattr(self.states, state).async_value()

    def _write(self, state: str) -> Any:
        self.steps += 1
        return getattr(self.states, state).async_update(self.steps)

    def _add(self) -> Any:
        return self.states.r.async_add(1)

    def _sum(self) -> Any:
        return self.states.r.async_get()

    def _append(self) -> Any:
        self.steps += 1
        return self.states.l.async_add(self.steps)

    def _put(self, key: int) -> Any:
        self.steps += 1
        return self.states.s.async_put(key, self.steps)

    def _cut(self, start: int | None, stop: int | None) -> Any:
        return self.states.s.async_remove_range(start, stop)

    def _first(self, start: int | None) -> Any:
        return self.states.s.async_first(start)

    def _last(self, stop: int | None) -> Any:
        return self.states.s.async_last(stop=stop)

    def _clear(self, state: str) -> Any:
        return getattr(self.states, state).async_clear()

    def _replace(self) -> Any:
        self.steps += 1
        return self.states.l.async_update([self.steps])

    def _merge(self, state: str, target: Any, sources: Sequence[Any]) -> Any:
        return getattr(self.states, state).async_merge_namespaces(target, sources)

    def _join(self, state: str, target: Any, sources: Sequence[Any]) -> None:
        getattr(self.states, state).merge_namespaces(target, sources)

    def _completed(self) -> Any:
        self.steps += 1
        return self.states.completed(self.steps)

    def _look(self, state: str) -> None:
        self._note("look", getattr(self.states, state).value())

    def _total(self) -> None:
        self._note("total", self.states.r.get())

    def _elements(self) -> None:
        self._note("elements", list(self.states.l.get() or ()))

    def _range(self, start: int | None, stop: int | None) -> None:
        self._note("range", self.states.s.range(start, stop))

    def _fail(self) -> None:
        raise ProgramFailed

    def _namespace(self, name: Any) -> None:
        self.ctx.set_current_namespace(name)

    def _combine(self, positions: Sequence[int], known: list[Any]) -> Any:
        if not known:
            return None
        return self.combine_all([known[position % len(known)] for position in positions])

    def _then(self, position: int, body: Program) -> Any:
        if not self.futures:
            return None
        return self._future(position).then_accept(partial(self._called, body))

    def _called(self, body: Program, value: Any) -> Any:
        self._note("then", _shown(value))
        returned = self.perform(body, in_callback=True)
        return returned if returned.__class__ is CoroutineType else None

    def _compose(self, position: int, body: Program, known: list[Any]) -> Any:
        if not known:
            return None
        return known[position % len(known)].then_compose(partial(self._composed, body))

    def _composed(self, body: Program, value: Any) -> Any:
        self._note("compose", _shown(value))
        returned = self.perform(body, in_callback=True)
        return self.states.completed(0) if returned is None else returned

    def _each(self, body: Program) -> Any:
        return self.states.l.async_get().then_compose(
            lambda iterator: iterator.on_next(partial(self._element, body))
        )

    def _walk(self, start: int | None, stop: int | None, body: Program) -> Any:
        return self.states.s.async_range(start, stop).then_compose(
            lambda iterator: iterator.on_next(partial(self._element, body))
        )

    def _element(self, body: Program, element: Any) -> Any:
        self._note("each", element)
        return self.perform(body, in_callback=True)


def _shown(value: Any) -> Any:
    """Return the comparable part of a result."""
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return value if isinstance(value, int | tuple | None) else "?"
