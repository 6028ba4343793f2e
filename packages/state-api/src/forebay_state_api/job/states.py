"""The kinds of keyed state, as a function sees them.

Every access belongs to the current key and namespace. Synchronous methods answer at once, waiting
for storage if they must; their ``async_`` twins give a `StateFuture` and never wait. Per key all
requests take effect in the order in which they were issued, whichever way. What a state hands out
or is given never aliases what is stored.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from forebay_state_api.errors import StateAccessError
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(abc.ABC):
    """What every kind has. A state is not its content: to compare it is a `StateAccessError`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # what type checkers say of it is theirs

        def __bool__(self) -> bool:
            raise StateAccessError(
                "a state was used where its content was meant, in a condition or a comparison: "
                "read it by value(), get() or is_empty()"
            )

        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other or bool(self)

    @abc.abstractmethod
    def clear(self) -> None:
        """Remove what is stored under the current key and namespace."""

    @abc.abstractmethod
    def async_clear(self) -> StateFuture[None]:
        """`clear`, asynchronously."""


class ValueState(State, Generic[T]):
    """One value per key. Unset it reads as the descriptor's default, else as ``None``.

    ``T`` is what it reads as: ``ValueState[int]`` if there is a default, else
    ``ValueState[int | None]``.
    """

    __slots__ = ()

    @abc.abstractmethod
    def value(self) -> T:
        """The current value."""

    @abc.abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; ``None`` clears."""

    @abc.abstractmethod
    def async_value(self) -> StateFuture[T]:
        """`value`, asynchronously."""

    @abc.abstractmethod
    def async_update(self, value: T | None) -> StateFuture[None]:
        """`update`, asynchronously."""


class ListState(State, Generic[T]):
    """A list per key, in insertion order. ``None`` is no element: a `ValueError` at the call."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> list[T]:
        """A copy of the list; empty if unset."""

    @abc.abstractmethod
    def add(self, value: T) -> None:
        """Append blindly: nothing is read."""

    @abc.abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append each; ``[]`` does nothing."""

    @abc.abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list; ``[]`` empties it."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    @abc.abstractmethod
    def async_get(self) -> StateFuture[StateIterator[T]]:
        """An iterator over the list as it stands now; empty if unset, never ``None``."""

    @abc.abstractmethod
    def async_add(self, value: T) -> StateFuture[None]:
        """`add`, asynchronously."""

    @abc.abstractmethod
    def async_add_all(self, values: Iterable[T]) -> StateFuture[None]:
        """`add_all`, asynchronously."""

    @abc.abstractmethod
    def async_update(self, values: Iterable[T]) -> StateFuture[None]:
        """`update`, asynchronously."""

    @abc.abstractmethod
    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        """Append the lists of ``sources``, in order, to that of ``target``; sources end empty.

        Where no source holds anything, nothing changes.
        """


class MapState(State, Generic[K, V]):
    """A map per key. ``None`` is a value that can be stored, and no user key."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self, key: K) -> V | None:
        """The value under ``key``; ``None`` if there is none."""

    @abc.abstractmethod
    def put(self, key: K, value: V) -> None:
        """Store ``value`` under ``key``, also if it is ``None``."""

    @abc.abstractmethod
    def put_all(self, entries: Mapping[K, V]) -> None:
        """Put each entry; the others stay."""

    @abc.abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry; no error if there is none."""

    @abc.abstractmethod
    def contains(self, key: K) -> bool:
        """Whether there is an entry, its value being ``None`` or not."""

    @abc.abstractmethod
    def items(self) -> list[tuple[K, V]]:
        """A copy of all entries, in any order."""

    @abc.abstractmethod
    def keys(self) -> list[K]:
        """A copy of all user keys, in any order."""

    @abc.abstractmethod
    def values(self) -> list[V]:
        """A copy of all values, in any order."""

    @abc.abstractmethod
    def is_empty(self) -> bool:
        """Whether there is no entry."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    @abc.abstractmethod
    def async_get(self, key: K) -> StateFuture[V | None]:
        """`get`, asynchronously."""

    @abc.abstractmethod
    def async_put(self, key: K, value: V) -> StateFuture[None]:
        """`put`, asynchronously."""

    @abc.abstractmethod
    def async_put_all(self, entries: Mapping[K, V]) -> StateFuture[None]:
        """`put_all`, asynchronously."""

    @abc.abstractmethod
    def async_remove(self, key: K) -> StateFuture[None]:
        """`remove`, asynchronously."""

    @abc.abstractmethod
    def async_contains(self, key: K) -> StateFuture[bool]:
        """`contains`, asynchronously."""

    @abc.abstractmethod
    def async_items(self) -> StateFuture[StateIterator[tuple[K, V]]]:
        """An iterator over the entries as they stand now."""

    @abc.abstractmethod
    def async_keys(self) -> StateFuture[StateIterator[K]]:
        """An iterator over the user keys as they stand now."""

    @abc.abstractmethod
    def async_values(self) -> StateFuture[StateIterator[V]]:
        """An iterator over the values as they stand now."""

    @abc.abstractmethod
    def async_is_empty(self) -> StateFuture[bool]:
        """`is_empty`, asynchronously."""


class ReducingState(State, Generic[T]):
    """One value per key, into which each added value is reduced; unset it reads as ``None``."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> T | None:
        """The reduced value."""

    @abc.abstractmethod
    def add(self, value: T) -> None:
        """Reduce ``value`` in; the first one is stored as it is."""

    @abc.abstractmethod
    def async_get(self) -> StateFuture[T | None]:
        """`get`, asynchronously."""

    @abc.abstractmethod
    def async_add(self, value: T) -> StateFuture[None]:
        """`add`, asynchronously."""

    @abc.abstractmethod
    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        """Reduce the members of ``sources`` into ``target``; sources end empty.

        Where no source holds anything, nothing changes, the target's time to live included.
        """


class AggregatingState(State, Generic[IN, OUT]):
    """An accumulator per key; unset it reads as ``None``."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> OUT | None:
        """The result of the accumulator."""

    @abc.abstractmethod
    def add(self, value: IN) -> None:
        """Fold ``value`` into the accumulator; the first one creates it."""

    @abc.abstractmethod
    def async_get(self) -> StateFuture[OUT | None]:
        """`get`, asynchronously."""

    @abc.abstractmethod
    def async_add(self, value: IN) -> StateFuture[None]:
        """`add`, asynchronously."""

    @abc.abstractmethod
    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        """Merge the accumulators of ``sources`` into ``target``; sources end empty.

        Where no source holds anything, nothing changes, the target's time to live included.
        """
