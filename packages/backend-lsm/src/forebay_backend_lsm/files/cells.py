"""Cells in columns, as memtables write them, blocks hold them, and compaction merges them.

A cell has an *address*: 64 bits that begin with its key group and continue with bits of its key's
hash. Files are sorted by (address, cell key bytes). Different cells may share an address; only the
key bytes decide equality.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files.arrow import POOL, binary_array, compute, flags_of, taken

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

GROUP_SHIFT: Final = 48
"""The key group is stored in the bits of an address from this one up."""
_HASH_SHIFT: Final = 16


Place = tuple[int, bytes | None]
"""An address and a cell key, between the cells of an ordered table or at one of them.

Without a key it is after all cells of the address.
"""


class CellKind(enum.IntEnum):
    """The effect of a cell on its key."""

    PUT = 0
    """Sets the whole content."""
    DELETE = 1
    """Removes the content of all older runs."""
    APPEND = 2
    """Appends list elements after the elements of older runs."""
    CLEAR = 3
    """Removes all entries of older runs from a map; its key is the map's bare prefix."""


def address_of(group: int, prefix: bytes) -> int:
    """Return the address of a cell of a point or list table."""
    return group << GROUP_SHIFT | xxh3_64_intdigest(prefix) >> _HASH_SHIFT


def addresses_of(groups: npt.NDArray[Any], prefixes: Sequence[bytes]) -> U64:
    """Return the addresses of many cells of a point or list table."""
    hashes = np.fromiter(map(xxh3_64_intdigest, prefixes), np.uint64, len(prefixes))
    shifted: U64 = groups.astype(np.uint64) << np.uint64(GROUP_SHIFT)
    return shifted | hashes >> np.uint64(_HASH_SHIFT)


@attrs.frozen(eq=False)
class Cells:
    """Cells of one table, column by column."""

    addresses: U64
    kinds: U8
    times: I64 | None
    """Last access of each cell, µs since the epoch; ``None`` in a table without a time column."""
    keys: pa.Array
    """Cell key bytes; binary or large binary, without nulls."""
    values: pa.Array
    """Value bytes, empty for `CellKind.DELETE` and `CellKind.CLEAR`; typed like ``keys``."""

    @classmethod
    def of(
        cls,
        addresses: U64,
        kinds: U8 | CellKind,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        times: Sequence[int] | I64 | None = None,
    ) -> Cells:
        """Make columns from lists; a single ``kinds`` applies to all cells."""
        count = len(addresses)
        return cls(
            addresses,
            np.full(count, kinds, np.uint8) if isinstance(kinds, CellKind) else kinds,
            None if times is None else np.asarray(times, np.int64),
            binary_array(keys),
            binary_array(values),
        )

    @classmethod
    def concat(cls, parts: Sequence[Cells]) -> Cells:
        """Concatenate at least one part; either all parts have times or no part has."""
        if len(parts) == 1:
            return parts[0]
        times = [part.times for part in parts if part.times is not None]
        return cls(
            np.concatenate([part.addresses for part in parts]),
            np.concatenate([part.kinds for part in parts]),
            np.concatenate(times) if times else None,
            joined([part.keys for part in parts]),
            joined([part.values for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.addresses)

    def slice(self, start: int, stop: int) -> Cells:
        """Return cells ``start`` to ``stop`` (exclusive) without copying."""
        return Cells(
            self.addresses[start:stop],
            self.kinds[start:stop],
            None if self.times is None else self.times[start:stop],
            self.keys.slice(start, stop - start),
            self.values.slice(start, stop - start),
        )

    def take(self, indices: npt.NDArray[Any]) -> Cells:
        """Return the cells at ``indices``, in the order of ``indices``."""
        return Cells(
            self.addresses[indices],
            self.kinds[indices],
            None if self.times is None else self.times[indices],
            taken(self.keys, indices),
            taken(self.values, indices),
        )

    def sorted(self) -> Cells:
        """Sort by address, then key bytes; equal cells keep their order."""
        order, _ = order_of(self.addresses, self.keys)
        return self.take(order)


def joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate binary arrays of either width into a large binary one."""
    wide = pa.large_binary()
    alike = [a if a.type == wide else compute().cast(a, wide, memory_pool=POOL) for a in arrays]
    return pa.concat_arrays(alike, memory_pool=POOL)


def order_of(addresses: U64, keys: pa.Array) -> tuple[Positions, Mask]:
    """Return the order by (address, key bytes), in which equal cells keep their order.

    The second array holds, for each position but the last, whether the next position holds the
    same cell.
    """
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    same: Mask = ordered[1:] == ordered[:-1]
    ties = np.flatnonzero(same)
    if len(ties):
        equal = flags_of(compute().equal(taken(keys, order[ties]), taken(keys, order[ties + 1])))
        if not equal.all():
            shared = same.copy()
            same[ties] = equal
            _separate(order, same, shared, ties[~equal], keys)
    return order, same


def _separate(
    order: Positions, same: Mask, shared: Mask, unequal: Positions, keys: pa.Array
) -> None:
    """Sort the cells of each address that several keys share; ``shared`` marks those cells."""
    starts = np.flatnonzero(np.concatenate(([True], ~shared)))
    ends = np.append(starts[1:], len(order))
    runs = np.unique(np.searchsorted(starts, unequal, "right") - 1)
    for start, end in zip(starts[runs].tolist(), ends[runs].tolist(), strict=True):
        found = taken(keys, order[start:end]).to_pylist()
        ranked = sorted(range(len(found)), key=found.__getitem__)
        order[start:end] = order[start:end][ranked]
        ahead = [found[i] for i in ranked]
        same[start : end - 1] = [a == b for a, b in itertools.pairwise(ahead)]
