"""The keys of one namespace: each has a slot, a number under which columns hold its cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay_backend_heap.slots import Array, Slots
from forebay_state_api.codecs.columns import Texts, copy_spans, offsets_of
from forebay_state_api.contract.columns import EncodedKeys


class KeySlots:
    """Looks keys up by their hashes, and compares their bytes with the stored ones.

    A key whose hash another key has taken is in a dictionary. Slots do not change.
    """

    def __init__(self, capacity: int = 0, key_bytes: int = 0) -> None:
        """Make room for ``capacity`` keys of ``key_bytes`` in total."""
        self.count = 0
        self._slots = Slots(capacity)
        self._collided: dict[bytes, int] = {}
        self._offsets = np.zeros(capacity + 1, np.int64)
        self._groups = np.empty(capacity, np.uint16)
        self._data = np.zeros(key_bytes, np.uint8)

    @property
    def groups(self) -> Array:
        """The key group of each slot."""
        return self._groups[: self.count]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        held = self._offsets.nbytes + self._groups.nbytes + self._data.nbytes
        return held + self._slots.nbytes + 200 * len(self._collided)

    def find(self, keys: EncodedKeys, noted_by: object) -> Array:
        """Return the slot of each key, -1 for unknown ones; notes them with the keys."""
        slots = keys.noted.get(noted_by)
        if slots is None:
            slots = self._found(keys)
        elif len(unknown := np.flatnonzero(slots < 0)):
            slots = slots.copy()
            slots[unknown] = self._found(keys.take(unknown))
        keys.noted[noted_by] = slots
        return slots

    def find_or_add(self, keys: EncodedKeys, noted_by: object) -> Array:
        """Return the slot of each key; unknown ones get the next slots."""
        slots = self.find(keys, noted_by)
        unknown = np.flatnonzero(slots < 0)
        if not len(unknown):
            return slots
        new = keys if len(unknown) == len(keys) else keys.take(unknown)
        slots = slots.copy()
        slots[unknown] = self.add(new)
        keys.noted[noted_by] = slots
        return slots

    def add(self, keys: EncodedKeys) -> Array:
        """Return the next slots, which ``keys`` get; none of them has one yet."""
        numbers = np.arange(self.count, self.count + len(keys))
        self._append(keys)
        for other in self._slots.add(keys.hashes, numbers).tolist():
            self._collided[keys.encoded.part(other)] = int(numbers[other])
        return numbers

    def take(self, slots: Array) -> EncodedKeys:
        """Return the keys of some slots."""
        starts = self._offsets[slots]
        lengths = self._offsets[slots + 1] - starts
        offsets = offsets_of(lengths)
        data = np.empty(int(offsets[-1]), np.uint8)
        copy_spans(self._data, starts, data, offsets[:-1], lengths)
        return EncodedKeys(Texts(offsets, data, binary=True), self._groups[slots])

    def frozen(self) -> KeySlots:
        """Return a copy that can be read, but not looked up: it shares what is never changed."""
        frozen: KeySlots = KeySlots()
        frozen.count = self.count
        frozen._offsets, frozen._groups, frozen._data = self._offsets, self._groups, self._data
        return frozen

    def _found(self, keys: EncodedKeys) -> Array:
        slots = self._slots.get(keys.hashes)
        known = np.flatnonzero(slots >= 0)
        if len(known):
            asked = keys.encoded if len(known) == len(keys) else keys.encoded.take(known)
            others = known[self._differing(asked, slots[known])]
            for other in others.tolist():
                slots[other] = self._collided.get(keys.encoded.part(other), -1)
        return slots

    def _differing(self, asked: Texts, slots: Array) -> Array:
        """Return which of ``asked`` are not the keys of ``slots``."""
        starts, lengths = self._offsets[slots], asked.lengths
        same = self._offsets[slots + 1] - starts == lengths
        if not same.all():
            rest = np.flatnonzero(same)
            inner = self._differing(asked.take(rest), slots[rest])
            return np.concatenate([np.flatnonzero(~same), rest[inner]])
        offsets = asked.offsets - asked.offsets[0]
        given = asked.data[int(asked.offsets[0]) : int(asked.offsets[-1])]
        stored = np.empty(len(given), np.uint8)
        copy_spans(self._data, starts, stored, offsets[:-1], lengths)
        if np.array_equal(stored, given):
            return np.zeros(0, np.int64)
        return np.unique(np.searchsorted(offsets, np.flatnonzero(stored != given), "right") - 1)

    def _append(self, keys: EncodedKeys) -> None:
        encoded, first = keys.encoded, self.count
        self.count += len(keys)
        ends = encoded.offsets[1:] - encoded.offsets[0] + self._offsets[first]
        self._offsets = grown(self._offsets, self.count + 1)
        self._groups = grown(self._groups, self.count)
        self._data = grown(self._data, int(ends[-1]))
        self._offsets[first + 1 : self.count + 1] = ends
        self._groups[first : self.count] = keys.groups
        given = encoded.data[int(encoded.offsets[0]) : int(encoded.offsets[-1])]
        self._data[int(self._offsets[first]) : int(ends[-1])] = given


def grown(array: Any, size: int) -> Any:
    """Return an array of at least ``size`` that begins with ``array``; the same one if it fits."""
    if size <= len(array):
        return array
    larger = np.zeros(max(size, len(array) + len(array) // 2), array.dtype)
    larger[: len(array)] = array
    return larger
