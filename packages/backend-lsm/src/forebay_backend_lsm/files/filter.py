"""Filters rule out addresses that a file does not hold, for a whole batch at once.

A register-blocked Bloom filter: an address sets five bits of one 64-bit word. The bits do not
depend on the file, and the word depends only on the file's number of words. So a batch computes
its `Probes` once, and each file costs one gather and one comparison.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from forebay_backend_lsm.files.cells import U64, Mask

BITS_PER_CELL: Final = 14
"""About 0.6 % of the addresses that a file does not hold pass its filter."""
_BITS: Final = 5
_FIRST: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)
_SIX: Final = np.uint64(63)
_FIRST_FACTOR: Final = int(_FIRST)
_SECOND_FACTOR: Final = int(_SECOND)
_ALL: Final = (1 << 64) - 1


@attrs.frozen(eq=False)
class Probes:
    """A batch of addresses, hashed once for all filters."""

    high: U64
    """The upper 32 bits of the remixed addresses, which choose the word."""
    masks: U64
    """The bits within the word."""

    @classmethod
    def of(cls, addresses: U64) -> Probes:
        """Remix addresses, because their upper bits are alike within a file."""
        mixed = addresses * _FIRST
        mixed ^= mixed >> _HALF
        mixed *= _SECOND
        masks = np.uint64(1) << (mixed & _SIX)
        for i in range(1, _BITS):
            masks |= np.uint64(1) << (mixed >> np.uint64(6 * i) & _SIX)
        return cls(mixed >> _HALF, masks)

    def words(self, count: int) -> U64:
        """Return the number of each address's word in a filter of ``count`` words."""
        return self.high * np.uint64(count) >> _HALF


@attrs.frozen(eq=False)
class Filter:
    """The filter of one table of a file."""

    words: U64

    @classmethod
    def build(cls, parts: Sequence[U64]) -> Filter:
        """Make a filter that all addresses in ``parts`` pass."""
        count = max(1, -(-sum(map(len, parts)) * BITS_PER_CELL // 64))
        words = np.zeros(count, np.uint64)
        for addresses in parts:
            probes = Probes.of(addresses)
            np.bitwise_or.at(words, probes.words(count), probes.masks)
        return cls(words)

    @staticmethod
    def words_of(addresses: Sequence[int]) -> bytes:
        """Return the bytes of the filter that `build` makes, of a few addresses."""
        count = max(1, -(-len(addresses) * BITS_PER_CELL // 64))
        words = [0] * count
        for address in addresses:
            high, mask = _probe(address)
            words[high * count >> 32] |= mask
        return struct.pack(f"<{count}Q", *words)

    def may_hold(self, address: int) -> bool:
        """Return whether the file may hold one address."""
        high, mask = _probe(address)
        return int(self.words[high * len(self.words) >> 32]) & mask == mask

    def passes(self, probes: Probes) -> Mask:
        """Return whether the file may hold each address."""
        found: U64 = self.words.take(probes.words(len(self.words)).view(np.int64))
        answer: Mask = found & probes.masks == probes.masks
        return answer


def _probe(address: int) -> tuple[int, int]:
    """Return what `Probes` has of one address."""
    mixed = address * _FIRST_FACTOR & _ALL
    mixed = (mixed ^ mixed >> 32) * _SECOND_FACTOR & _ALL
    mask = 0
    for i in range(_BITS):
        mask |= 1 << (mixed >> 6 * i & 63)
    return mixed >> 32, mask
