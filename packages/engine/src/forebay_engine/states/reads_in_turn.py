"""Reads with side effects: each takes effect before the next access of its key.

With `StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP` a read shows expired data once, and drops
them. If such a read waits for storage, the next access of its key reads for it, and waits. Lists
and merging states need none of this: their accesses queue (`mergeable`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.states.base import BoundTable, KeyedState
from forebay_engine.states.mergeable import MergeableState
from forebay_engine.states.public_methods import overridden
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.ttl import StateVisibility

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.job.ttl import StateTtlConfig


class ReadsInTurn(KeyedState):
    """The part of `in_turn` that all states share."""

    __slots__ = ()

    _under_way: dict[Any, Callable[[], None]]
    """Key → a function that ends its read."""

    def forget_requests(self, key: Any) -> None:
        self._under_way.pop(key, None)
        super().forget_requests(key)

    def _request_of(
        self,
        owner: object,
        read_many: Any,
        namespace: Any,
        argument: Any,
        arrive: Callable[[Any], Any],
    ) -> StateFuture[Any]:
        scheduler, key = self._scheduler, self._context._key
        promise = scheduler.request()

        def answered(answer: Any) -> Any:
            self._under_way.pop(key, None)
            return arrive(answer)

        def end() -> None:
            self._waits()
            scheduler.give(promise, arrive(read_many(namespace, [argument])[0]))

        self._under_way[key] = end
        scheduler.read_for(promise, owner, read_many, namespace, argument, answered)
        return promise

    def _end_read(self) -> None:
        end = self._under_way.pop(self._context._key, None)
        if end is not None:
            end()


_made: Final[dict[type[KeyedState], type[KeyedState]]] = {}


def in_turn(state: type[KeyedState], ttl: StateTtlConfig) -> type[KeyedState]:
    """Return ``state``'s class for a visibility: itself, if its reads have no side effects."""
    shows_once = ttl.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
    if not shows_once or issubclass(state, MergeableState):
        return state
    if state not in _made:
        _made[state] = _class_in_turn(state)
    return _made[state]


def _class_in_turn(state: type[KeyedState]) -> type[KeyedState]:
    def begin(self: Any, host: StateHost, bound: BoundTable) -> None:
        state.__init__(self, host, bound)
        self._under_way = {}

    methods = overridden(state, _after_the_read)
    members = {"__slots__": ("_under_way",), "__init__": begin, **methods}
    return type(f"InTurn{state.__name__}", (ReadsInTurn, state), members)


def _after_the_read(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if self._under_way:
            self._end_read()
        return method(self, *arguments, **named)

    return call
