"""Columns: the values of many cells as arrays, and texts in Arrow's layout.

This module needs NumPy (the extra ``columns``), so it is imported where columns are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Self

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "Array",
    "Column",
    "Texts",
    "copy_spans",
    "first_not_utf8",
    "objects",
    "offsets_of",
    "windows",
]

Array = npt.NDArray[Any]
"""An array of NumPy."""

_MOST_LENGTHS: Final = 64
"""`copy_spans` copies the spans of one length at a time, up to this many lengths."""


@attrs.frozen(eq=False)
class Texts:
    """Strings in UTF-8, or bytes, in Arrow's layout: ``data[offsets[i] : offsets[i + 1]]``."""

    offsets: Array
    """Ascending integers; the first need not be 0."""
    data: Array
    """Array of ``uint8``."""
    binary: bool = False

    @classmethod
    def of(cls, parts: Sequence[bytes], *, binary: bool) -> Self:
        """Lay out ``parts`` side by side."""
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls(offsets_of(lengths), np.frombuffer(b"".join(parts), np.uint8), binary)

    @classmethod
    def joined(cls, several: Sequence[Texts]) -> Self:
        """Return the texts of ``several``, one after the other."""
        lengths = np.concatenate([texts.lengths for texts in several])
        data = [texts.data[int(texts.offsets[0]) : int(texts.offsets[-1])] for texts in several]
        return cls(offsets_of(lengths), np.concatenate(data), several[0].binary)

    @property
    def lengths(self) -> Array:
        """The bytes of each."""
        return np.diff(self.offsets).astype(np.int64, copy=False)

    def take(self, index: Array) -> Texts:
        """Return some of the texts, in the order of ``index``, in an array of their own."""
        lengths = self.lengths[index]
        offsets = offsets_of(lengths)
        data = np.empty(int(offsets[-1]), np.uint8)
        copy_spans(self.data, self.offsets[:-1][index], data, offsets[:-1], lengths)
        return Texts(offsets, data, self.binary)

    def parts(self) -> list[bytes]:
        """Return the bytes of each."""
        data, ends = self.data.tobytes(), self.offsets.tolist()
        return [data[start:end] for start, end in pairwise(ends)]

    def part(self, position: int) -> bytes:
        """Return the bytes of one of them."""
        return self.data[self.offsets[position] : self.offsets[position + 1]].tobytes()

    def __len__(self) -> int:
        return len(self.offsets) - 1


@attrs.frozen(eq=False)
class Column:
    """One value per cell."""

    values: Array | Texts
    """By kind: bool, int64, float64, `Texts`, int64 (a date's days since 1970), or objects."""
    valid: Array | None = None
    """False for ``None``; without the array all values are valid."""

    @classmethod
    def joined(cls, parts: Sequence[Column]) -> Self:
        """Return the values of several columns, one after the other."""
        texts = [part.values for part in parts if isinstance(part.values, Texts)]
        arrays = [part.values for part in parts if not isinstance(part.values, Texts)]
        valid = None
        if any(part.valid is not None for part in parts):
            every = [np.ones(len(p), np.bool_) if p.valid is None else p.valid for p in parts]
            valid = np.concatenate(every)
        return cls(Texts.joined(texts) if texts else np.concatenate(arrays), valid)

    def take(self, index: Array) -> Column:
        """Return the values of some cells."""
        values = self.values.take(index) if isinstance(self.values, Texts) else self.values[index]
        return Column(values, None if self.valid is None else self.valid[index])

    def spread(self, present: Array) -> Column:
        """Return a column with these values where ``present``, and zero or empty ones elsewhere."""
        if isinstance(self.values, Texts):
            lengths = np.zeros(len(present), np.int64)
            lengths[present] = self.values.lengths
            start, stop = int(self.values.offsets[0]), int(self.values.offsets[-1])
            values: Array | Texts = Texts(
                offsets_of(lengths), self.values.data[start:stop], self.values.binary
            )
        else:
            values = np.zeros(len(present), self.values.dtype)
            values[present] = self.values
        if self.valid is None:
            return Column(values)
        valid = np.ones(len(present), np.bool_)
        valid[present] = self.valid
        return Column(values, valid)

    def __len__(self) -> int:
        return len(self.values)


def objects(values: Sequence[Any]) -> Array:
    """Return an array of Python values, whatever they are."""
    array = np.empty(len(values), np.object_)
    array[:] = [*values]
    return array


def offsets_of(lengths: Array) -> Array:
    """Return the offsets of texts of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def copy_spans(source: Array, starts: Array, target: Array, into: Array, lengths: Array) -> None:
    """Copy ``lengths[i]`` bytes at ``starts[i]`` of ``source`` to ``into[i]`` of ``target``."""
    counts = np.bincount(lengths) if len(lengths) and int(lengths.max()) < 1 << 16 else None
    found = None if counts is None else np.flatnonzero(counts)
    if found is None or len(found) > _MOST_LENGTHS:
        before = np.cumsum(lengths) - lengths
        inside = np.arange(int(lengths.sum()))
        target[np.repeat(into - before, lengths) + inside] = source[
            np.repeat(starts - before, lengths) + inside
        ]
        return
    for length in found.tolist():
        if not length:
            continue
        which = slice(None) if len(found) == 1 else np.flatnonzero(lengths == length)
        windows(target, length)[into[which]] = windows(source, length)[starts[which]]


def windows(data: Array, length: int) -> Array:
    """Return a view of each ``length`` bytes that follow one another."""
    kind = np.dtype(f"V{length}")
    return np.ndarray((len(data) - length + 1,), kind, data, strides=(1,))


def first_not_utf8(texts: Texts) -> int | None:
    """Return the position of the first text that is not UTF-8; ``None`` if all are."""
    used = texts.data[int(texts.offsets[0]) : int(texts.offsets[-1])]
    starts = (texts.offsets[:-1] - texts.offsets[0])[texts.lengths > 0]
    try:
        used.tobytes().decode()
    except UnicodeDecodeError:
        pass
    else:
        if not ((used[starts] & 0xC0) == 0x80).any():  # noqa: PLR2004 - no character begins so
            return None
    for position, part in enumerate(texts.parts()):
        try:
            part.decode()
        except UnicodeDecodeError:
            return position
    return None
