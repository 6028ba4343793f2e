"""Hash tables of arrays: many 64-bit hashes are looked up, or added, at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_SMALLEST: Final = 1 << 10
_FULL: Final = 0.6
"""The table grows when more than this part of it is taken."""


class Slots:
    """Maps distinct hashes, none of them 0, to numbers: open addressing with linear probing."""

    def __init__(self, capacity: int = 0) -> None:
        """Make room for ``capacity`` hashes."""
        self._count = 0
        self._make(capacity)

    def get(self, hashes: Array) -> Array:
        """Return the number of each hash, -1 for unknown ones."""
        mask = len(self._hashes) - 1
        at = (hashes & np.uint64(mask)).astype(np.int64)
        found = self._hashes[at]
        numbers = np.where(found == hashes, self._numbers[at], np.int32(-1)).astype(np.int64)
        left = np.flatnonzero((found != hashes) & (found != 0))
        while len(left):
            at[left] = (at[left] + 1) & mask
            found = self._hashes[at[left]]
            hit = found == hashes[left]
            numbers[left[hit]] = self._numbers[at[left[hit]]]
            left = left[~hit & (found != 0)]
        return numbers

    def add(self, hashes: Array, numbers: Array) -> Array:
        """Add numbers, which are distinct; return the positions of those whose hash is taken."""
        self._count += len(hashes)
        if self._count > _FULL * len(self._hashes):
            held = np.flatnonzero(self._hashes)
            old = self._hashes[held], self._numbers[held]
            self._make(self._count)
            self._put(*old)
        return self._put(hashes, numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._hashes.nbytes + self._numbers.nbytes

    def _make(self, capacity: int) -> None:
        size = max(_SMALLEST, 1 << (int(capacity / _FULL)).bit_length())
        self._hashes = np.zeros(size, np.uint64)
        self._numbers = np.empty(size, np.int32)

    def _put(self, hashes: Array, numbers: Array) -> Array:
        mask = len(self._hashes) - 1
        at = (hashes & np.uint64(mask)).astype(np.int64)
        left = np.arange(len(hashes))
        taken = [left[:0]]
        while len(left):
            places = at[left]
            held = self._hashes[places]
            free = held == 0
            tried, into = left[free], places[free]
            self._hashes[into] = hashes[tried]  # of several for one place the last one stays
            self._numbers[into] = numbers[tried]
            others = left[~free]
            equal = held[~free] == hashes[others]
            taken.append(others[equal])
            moved = others[~equal]
            at[moved] = (at[moved] + 1) & mask
            left = np.concatenate([moved, tried[self._numbers[into] != numbers[tried]]])
        return np.concatenate(taken)
