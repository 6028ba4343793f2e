"""Passes over a version: keys whose content is held in memory together, within a budget.

Content that turns out to be too large is read again in two halves: of the key groups, or, for a
single key group, of its keys and namespaces. So no size need be known in advance, however skewed
the keys are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import attrs

from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.memory_sizes import memory_sizes

T = TypeVar("T")

_ROW_BYTES: Final = 160
"""The overhead of a row in memory: its own object and its place in a dict."""

_MOST_PARTS: Final = 1 << 16
"""A key group is not divided into more parts, where hashes of many keys are the same."""


@attrs.frozen
class Pass:
    """Some keys of an operator: a range of key groups, or a part of it by hash."""

    groups: KeyGroupRange
    part: int = 0
    parts: int = 1

    def of(self, rows: Iterator[T], key: Callable[[T], Any]) -> Iterator[T]:
        """Select the rows of these key groups whose key, a hashable value, is in the part."""
        if self.parts == 1:
            return rows
        return (row for row in rows if hash((key(row),)) % self.parts == self.part)

    def halves(self) -> tuple[Pass, Pass]:
        """Split the pass into two with half of its keys each."""
        start, end = self.groups.start, self.groups.end
        if start < end:
            middle = (start + end) // 2
            low, high = KeyGroupRange(start, middle), KeyGroupRange(middle + 1, end)
            return Pass(low, self.part, self.parts), Pass(high, self.part, self.parts)
        twice = 2 * self.parts
        return Pass(self.groups, self.part, twice), Pass(self.groups, self.part + self.parts, twice)


class TooLargeError(Exception):
    """The content of a pass takes more memory than the budget; not raised outside this package."""


class Budget:
    """Counts the memory that the content of one pass takes.

    The largest row does not count, as it has to be held in any case.
    """

    __slots__ = ("_largest", "_limit", "_used")

    def __init__(self, limit: int | None) -> None:
        """``limit`` is in bytes; ``None`` means no limit."""
        self._limit: Final = limit
        self._used = 0
        self._largest = 0

    @property
    def is_half_spent(self) -> bool:
        """Whether twice as much content would exceed the limit."""
        return self._limit is not None and 2 * self._used > self._limit

    def spend(self, *columns: list[Any]) -> None:
        """Count rows, given by columns of what they hold; `TooLargeError` beyond the limit."""
        if self._limit is None or not columns[0]:
            return
        by_row = zip(*map(memory_sizes, columns), strict=True)
        sizes = [_ROW_BYTES + sum(parts) for parts in by_row]
        self._used += sum(sizes)
        self._largest = max(self._largest, *sizes)
        if self._used - self._largest > self._limit:
            raise TooLargeError


def held_in_passes(
    groups: Iterable[KeyGroupRange], limit: int, hold: Callable[[Pass, Budget], T]
) -> Iterator[tuple[Pass, T]]:
    """Yield each pass with what ``hold`` returns for it, within ``limit`` bytes of memory.

    ``hold`` spends the budget as it reads, and is called again with two halves of the pass if that
    is exceeded. The passes have all keys of ``groups``, each in one of them. The number of key
    groups that has fitted is remembered. Release what is held before the next pass.
    """
    ahead = [Pass(one) for one in groups][::-1]
    most = max((len(one.groups) for one in ahead), default=1)
    while ahead:
        chosen = ahead.pop()
        if len(chosen.groups) > most:
            ahead.extend(reversed(chosen.halves()))
            continue
        budget = Budget(limit if chosen.parts < _MOST_PARTS else None)
        try:
            held = hold(chosen, budget)
        except TooLargeError:
            most = max(1, len(chosen.groups) // 2)
            ahead.extend(reversed(chosen.halves()))
        else:
            if not budget.is_half_spent:
                most *= 2
            yield chosen, held
            del held
