"""The interfaces of the kinds of keyed state.

Every access belongs to the current key and namespace. Synchronous methods return the result,
waiting for storage if they must; their ``async_`` twins return a `StateFuture` and never wait. Per
key all requests take effect in the order in which they were issued, synchronous or not. Values
passed to a state or returned by it never alias the stored ones.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forebay_state_api.errors import StateAccessError
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.iterators import StateIterator

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(abc.ABC):
    """Base of all kinds. A state is not its content: comparing it is a `StateAccessError`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report its misuse themselves

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
        """Remove the content under the current key and namespace."""

    @abc.abstractmethod
    def async_clear(self) -> StateFuture[None]:
        """`clear`, asynchronously."""


class ValueState(State, Generic[T]):
    """One value per key. If unset, it reads as the descriptor's default, or ``None`` without one.

    ``T`` is the type of reads: ``ValueState[int]`` if there is a default, else
    ``ValueState[int | None]``.
    """

    __slots__ = ()

    @abc.abstractmethod
    def value(self) -> T:
        """Return the current value."""

    @abc.abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; ``None`` clears it."""

    @abc.abstractmethod
    def async_value(self) -> StateFuture[T]:
        """`value`, asynchronously."""

    @abc.abstractmethod
    def async_update(self, value: T | None) -> StateFuture[None]:
        """`update`, asynchronously."""


class ListState(State, Generic[T]):
    """A list per key, in insertion order. ``None`` as an element raises `ValueError`."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> list[T]:
        """Return a copy of the list; empty if unset."""

    @abc.abstractmethod
    def add(self, value: T) -> None:
        """Append without reading."""

    @abc.abstractmethod
    def add_all(self, values: Iterable[T]) -> None:
        """Append each value; ``[]`` does nothing."""

    @abc.abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the list; ``[]`` empties it."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())

    @abc.abstractmethod
    def async_get(self) -> StateFuture[StateIterator[T]]:
        """Return an iterator over the current list; empty if unset, never ``None``."""

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
        """Append the lists of ``sources``, in order, to ``target``'s; sources are empty afterwards.

        If all sources are empty, nothing changes.
        """

    @abc.abstractmethod
    def async_merge_namespaces(
        self, target: object, sources: Iterable[object]
    ) -> StateFuture[None]:
        """`merge_namespaces`, asynchronously.

        An access of the state that follows without an ``await`` waits for it.
        """


class MapState(State, Generic[K, V]):
    """A map per key. ``None`` can be stored as a value, but not used as a user key."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value under ``key``; ``None`` if there is no entry."""

    @abc.abstractmethod
    def put(self, key: K, value: V) -> None:
        """Store ``value`` under ``key``, even if it is ``None``."""

    @abc.abstractmethod
    def put_all(self, entries: Mapping[K, V]) -> None:
        """Put each entry; other entries stay."""

    @abc.abstractmethod
    def remove(self, key: K) -> None:
        """Remove the entry, if there is one."""

    @abc.abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether there is an entry, even if its value is ``None``."""

    @abc.abstractmethod
    def items(self) -> list[tuple[K, V]]:
        """Return a copy of all entries, in any order."""

    @abc.abstractmethod
    def keys(self) -> list[K]:
        """Return a copy of all user keys, in any order."""

    @abc.abstractmethod
    def values(self) -> list[V]:
        """Return a copy of all values, in any order."""

    @abc.abstractmethod
    def is_empty(self) -> bool:
        """Return whether there is no entry."""

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
        """Return an iterator over the current entries."""

    @abc.abstractmethod
    def async_keys(self) -> StateFuture[StateIterator[K]]:
        """Return an iterator over the current user keys."""

    @abc.abstractmethod
    def async_values(self) -> StateFuture[StateIterator[V]]:
        """Return an iterator over the current values."""

    @abc.abstractmethod
    def async_is_empty(self) -> StateFuture[bool]:
        """`is_empty`, asynchronously."""


class SortedMapState(MapState[K, V]):
    """A map per key, in the order of its keys: a range of keys is read without the rest of the map.

    A range begins with ``start``, which is included, and ends before ``stop``; ``None`` means the
    map's first or last key. Keys are in Python's order; datetimes without a zone are before all
    others. If keys are tuples, a bound may be the beginning of one: ``range((5,), (6,))`` are the
    keys whose first part is 5. Iterations of a `SortedMapState` are in ascending order. The time of
    a read depends on the entries in the range, not on those in the map.
    """

    __slots__ = ()

    @abc.abstractmethod
    def range(self, start: Any = None, stop: Any = None) -> list[tuple[K, V]]:
        """Return a copy of the entries in a range, in ascending order."""

    @abc.abstractmethod
    def first(self, start: Any = None, stop: Any = None) -> tuple[K, V] | None:
        """Return the entry with the lowest key in a range; ``None`` if the range is empty."""

    @abc.abstractmethod
    def last(self, start: Any = None, stop: Any = None) -> tuple[K, V] | None:
        """Return the entry with the highest key in a range; ``None`` if the range is empty.

        ``last(stop=at)`` is the last entry before ``at``.
        """

    @abc.abstractmethod
    def remove_range(self, start: Any = None, stop: Any = None) -> None:
        """Remove the entries in a range, without waiting for storage."""

    @abc.abstractmethod
    def async_range(
        self, start: Any = None, stop: Any = None
    ) -> StateFuture[StateIterator[tuple[K, V]]]:
        """Return an iterator over the current entries in a range, in ascending order."""

    @abc.abstractmethod
    def async_first(self, start: Any = None, stop: Any = None) -> StateFuture[tuple[K, V] | None]:
        """`first`, asynchronously."""

    @abc.abstractmethod
    def async_last(self, start: Any = None, stop: Any = None) -> StateFuture[tuple[K, V] | None]:
        """`last`, asynchronously."""

    @abc.abstractmethod
    def async_remove_range(self, start: Any = None, stop: Any = None) -> StateFuture[None]:
        """`remove_range`, asynchronously."""


class ReducingState(State, Generic[T]):
    """One value per key, into which added values are reduced; if unset, it reads as ``None``."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> T | None:
        """Return the reduced value."""

    @abc.abstractmethod
    def add(self, value: T) -> None:
        """Reduce ``value`` into the stored value; the first value is stored as it is."""

    @abc.abstractmethod
    def async_get(self) -> StateFuture[T | None]:
        """`get`, asynchronously."""

    @abc.abstractmethod
    def async_add(self, value: T) -> StateFuture[None]:
        """`add`, asynchronously."""

    @abc.abstractmethod
    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        """Reduce the values of ``sources`` into ``target``; sources are empty afterwards.

        If all sources are empty, nothing changes, not even the target's time to live.
        """

    @abc.abstractmethod
    def async_merge_namespaces(
        self, target: object, sources: Iterable[object]
    ) -> StateFuture[None]:
        """`merge_namespaces`, asynchronously.

        An access of the state that follows without an ``await`` waits for it.
        """


class AggregatingState(State, Generic[IN, OUT]):
    """An accumulator per key; if unset, it reads as ``None``."""

    __slots__ = ()

    @abc.abstractmethod
    def get(self) -> OUT | None:
        """Return the accumulator's result."""

    @abc.abstractmethod
    def add(self, value: IN) -> None:
        """Fold ``value`` into the accumulator; the first value creates it."""

    @abc.abstractmethod
    def async_get(self) -> StateFuture[OUT | None]:
        """`get`, asynchronously."""

    @abc.abstractmethod
    def async_add(self, value: IN) -> StateFuture[None]:
        """`add`, asynchronously."""

    @abc.abstractmethod
    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        """Merge the accumulators of ``sources`` into ``target``; sources are empty afterwards.

        If all sources are empty, nothing changes, not even the target's time to live.
        """

    @abc.abstractmethod
    def async_merge_namespaces(
        self, target: object, sources: Iterable[object]
    ) -> StateFuture[None]:
        """`merge_namespaces`, asynchronously.

        An access of the state that follows without an ``await`` waits for it.
        """
