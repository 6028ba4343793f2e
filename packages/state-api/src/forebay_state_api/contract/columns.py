"""Keys and cells by columns: the arguments and results of `Table.get_columns` and its kin.

This module needs NumPy, so `contract.backend` imports it when a column method is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
import numpy as np

from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.codecs.columns import Array, Column, Texts
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.errors import ColumnValueError

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec

__all__ = ["CellColumns", "EncodedKeys", "NamespaceColumns", "hashes_of"]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT: Final = np.uint64(33)
_WORD: Final = 8
_LOW_BYTES: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)
"""Masks of the first bytes of a little-endian word."""


@attrs.define(eq=False)
class EncodedKeys:
    """Distinct keys with their key groups, in the encoding of `ValueCodec.pack_one`."""

    encoded: Texts
    groups: Array
    """The key group of each, ``uint16``."""
    noted: dict[object, Array] = attrs.field(factory=dict, repr=False)
    """A number per key that a backend's store has noted, by store: a later call with the same keys
    may use it."""
    _hashes: Array | None = None

    @classmethod
    def of(cls, codec: ValueCodec, keys: Sequence[Any], groups: Sequence[int] | Array) -> Self:
        """Encode Python keys."""
        encoded = Texts.of(codec.pack_each([*keys]), binary=True)
        return cls(encoded, np.asarray(groups, np.uint16))

    @property
    def hashes(self) -> Array:
        """The hash of each key's bytes, ``uint64``, never 0; equal in every process."""
        if self._hashes is None:
            self._hashes = hashes_of(self.encoded)
        return self._hashes

    def take(self, index: Array) -> EncodedKeys:
        """Return some of the keys."""
        noted = {store: numbers[index] for store, numbers in self.noted.items()}
        hashes = None if self._hashes is None else self._hashes[index]
        return EncodedKeys(self.encoded.take(index), self.groups[index], noted, hashes)

    def decoded(self, codec: ValueCodec) -> list[Any]:
        """Return the Python keys."""
        encoded = self.encoded
        used = encoded.data[int(encoded.offsets[0]) : int(encoded.offsets[-1])]
        return codec.unpack_each(used.tobytes(), encoded.lengths.tolist())

    def __len__(self) -> int:
        return len(self.groups)


@attrs.frozen(eq=False)
class CellColumns:
    """The cells of some keys of a point table, in the columns of `ColumnTypes`."""

    columns: tuple[Column, ...]
    present: Array | None = None
    """False for a cell that does not exist, of which the columns hold zeros; else ``None``."""
    times: Array | None = None
    """With TTL the time of each, in µs."""

    @classmethod
    def of(cls, codec: ValueCodec, keys: Sequence[Any], cells: list[Any], *, ttl: bool) -> Self:
        """Return the columns of cells as `Table.get_many` returns them.

        ``codec`` is that of the values, `TableSpec.value`. Raises `ColumnValueError` that names the
        first of ``keys`` whose value has no place in columns.
        """
        there = np.fromiter((cell is not ABSENT for cell in cells), np.bool_, len(cells))
        found = [cell for cell in cells if cell is not ABSENT]
        types = ColumnTypes.of(codec)
        columns = types.columns([cell[1] for cell in found] if ttl else found)
        if columns is None:
            raise _misfit_error(types, keys, cells, ttl=ttl)
        times = np.array([cell[0] for cell in found], np.int64) if ttl else None
        if there.all():
            return cls(columns, None, times)
        if times is not None:
            spread = np.zeros(len(cells), np.int64)
            spread[there] = times
            times = spread
        return cls(tuple(column.spread(there) for column in columns), there, times)

    def cells(self, codec: ValueCodec) -> list[Any]:
        """Return the cells as `PointChanges.values` has them; ``codec`` is that of the values."""
        own = self if self.present is None else self.take(np.flatnonzero(self.present))
        values = ColumnTypes.of(codec).values(own.columns)
        if own.times is not None:
            values = [*zip(own.times.tolist(), values, strict=True)]
        if self.present is None:
            return values
        found = iter(values)
        return [next(found) if one else ABSENT for one in self.present.tolist()]

    def take(self, index: Array) -> CellColumns:
        """Return the cells of some of the keys."""
        return CellColumns(
            tuple(column.take(index) for column in self.columns),
            None if self.present is None else self.present[index],
            None if self.times is None else self.times[index],
        )


NamespaceColumns = tuple[Any, EncodedKeys, CellColumns]
"""A namespace, and some of its keys with their cells."""


def _misfit_error(
    types: ColumnTypes, keys: Sequence[Any], cells: Sequence[Any], *, ttl: bool
) -> ColumnValueError:
    there = [(key, cell) for key, cell in zip(keys, cells, strict=True) if cell is not ABSENT]
    values = [(key, cell[1] if ttl else cell) for key, cell in there]
    key, value = next(one for one in values if types.columns([one[1]]) is None)
    return ColumnValueError(
        f"{types.codec.what}, key {key!r}: {value!r:.200} has no place in columns, which hold ints "
        "of 64 bits and text in UTF-8; a function on single records wrote it, and can read and "
        "replace it"
    )


def hashes_of(texts: Texts) -> Array:
    """Return a hash of the bytes of each text, ``uint64`` and never 0."""
    lengths = texts.lengths
    hashes = lengths.astype(np.uint64) * _GOLDEN
    for which, words in words_of(texts.data, texts.offsets[:-1], lengths):
        hashes[which] = _mixed(hashes[which] ^ words) + _GOLDEN
    hashes[hashes == 0] = 1
    return hashes


def words_of(data: Array, starts: Array, lengths: Array) -> Iterator[tuple[Any, Array]]:
    """Yield the first eight bytes of texts as words, then the next eight of those that have more.

    Each item is (the texts, an index of arrays; the word of each). The last bytes of a shorter text
    count as if zeros followed.
    """
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    view = np.ndarray((len(padded) - _WORD + 1,), np.dtype("<u8"), padded, strides=(1,))
    which: Any = slice(None) if (lengths > 0).all() else np.flatnonzero(lengths)
    at, left = starts[which].astype(np.int64), lengths[which]
    while len(left):
        words = view[at]
        if (left < _WORD).any():
            words &= _LOW_BYTES[np.minimum(left, _WORD)]
        yield which, words
        more = left > _WORD
        if not more.all():
            which = np.flatnonzero(more) if isinstance(which, slice) else which[more]
            at, left = at[more], left[more]
        at, left = at + _WORD, left - _WORD


def _mixed(words: Array) -> Array:
    """Return the finalizer of MurmurHash3 of each word."""
    for multiplier in _MULTIPLIERS:
        words = (words ^ (words >> _SHIFT)) * multiplier
    mixed: Array = words ^ (words >> _SHIFT)
    return mixed
