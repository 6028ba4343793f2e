"""Ranges of user keys, and entries that are kept in the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
from sortedcontainers import SortedKeyList, SortedList

__all__ = ["KeyRange", "OrderedEntries"]

Rank = Callable[[Any], Any] | None
"""`ValueCodec.rank`: user key address → what Python compares in its place."""


@attrs.frozen
class KeyRange:
    """The user keys from ``low``, included, to ``high``, excluded, in one of two directions.

    The bounds are user key addresses; in a map whose user keys are tuples a bound may have the
    first parts of a tuple only. ``None`` means there is no bound.
    """

    low: Any = None
    high: Any = None
    descending: bool = False
    """Whether the highest key comes first."""
    rank: Rank = attrs.field(default=None, eq=False, repr=False)

    def holds(self, address: Any) -> bool:
        """Return whether a user key address is within the bounds."""
        at = self.of(address)
        return (self.low is None or self.of(self.low) <= at) and (
            self.high is None or at < self.of(self.high)
        )

    def of(self, address: Any) -> Any:
        """Return the value that Python compares for an address."""
        return address if self.rank is None else self.rank(address)

    def order(self, entry: tuple[Any, Any]) -> Any:
        """Return the value that Python compares for an entry, which begins with its address."""
        return self.of(entry[0])

    def cut(self, entries: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the entries within the bounds, in the range's direction."""
        inside = [entry for entry in entries if self.holds(entry[0])]
        return sorted(inside, key=self.order, reverse=self.descending)

    def covers(self, other: KeyRange) -> bool:
        """Return whether each key within ``other``'s bounds is within these."""
        starts = self.low is None or (
            other.low is not None and self.of(self.low) <= self.of(other.low)
        )
        ends = self.high is None or (
            other.high is not None and self.of(other.high) <= self.of(self.high)
        )
        return starts and ends


class OrderedEntries(dict[Any, Any]):
    """Entries by user key address, with an index of their order, made when it is first used."""

    __slots__ = ("_index", "_rank")

    def __init__(self, entries: Iterable[Any] = (), rank: Rank = None) -> None:
        """``entries`` are a mapping or pairs."""
        super().__init__(entries)
        self._rank = rank
        self._index: Any = None

    def between(self, part: KeyRange) -> Iterator[tuple[Any, Any]]:
        """Yield the entries in ``part``, in its direction; they must not change meanwhile.

        Takes the logarithm of the number of entries, and then a constant time for each.
        """
        index = self._index
        if index is None:
            index = SortedList(self) if self._rank is None else SortedKeyList(self, self._rank)
            self._index = index
        walk = index.irange if self._rank is None else index.irange_key
        low = None if part.low is None else part.of(part.low)
        high = None if part.high is None else part.of(part.high)
        for address in walk(low, high, inclusive=(True, False), reverse=part.descending):
            yield address, self[address]

    def __setitem__(self, address: Any, value: Any) -> None:
        if self._index is not None and address not in self:
            self._index.add(address)
        super().__setitem__(address, value)

    def __delitem__(self, address: Any) -> None:
        super().__delitem__(address)
        if self._index is not None:
            self._index.remove(address)

    def pop(self, address: Any, *default: Any) -> Any:
        """Remove an entry, as `dict.pop` does."""
        if self._index is not None and address in self:
            self._index.remove(address)
        return super().pop(address, *default)

    def setdefault(self, address: Any, default: Any = None) -> Any:
        """Add an entry unless there is one, as `dict.setdefault` does."""
        if address not in self:
            self[address] = default
        return self[address]

    def update(self, *entries: Any, **more: Any) -> None:
        """Change many entries, as `dict.update` does."""
        self._index = None
        super().update(*entries, **more)

    def clear(self) -> None:
        """Remove all entries."""
        self._index = None
        super().clear()

    def popitem(self) -> tuple[Any, Any]:
        """Remove the entry that was added last."""
        self._index = None
        return super().popitem()

    def __sizeof__(self) -> int:
        """Include the index, one reference for each entry."""
        return super().__sizeof__() + (0 if self._index is None else 8 * len(self))
