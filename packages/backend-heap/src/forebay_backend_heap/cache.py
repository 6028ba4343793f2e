"""What a worker process keeps between micro-batches, all operators together.

Nothing here is needed for correctness: an entry is used only for the very manifest that is opened,
or for an ancestor of it. A copy is taken out while a batch works on it, and put back when the
manifest of the batch is durable.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from forebay_backend_heap.resident import Resident
from forebay_state_api.keys import KeyGroupRange

Address = tuple[str, KeyGroupRange]
"""The operator's directory, and the key groups."""

_SAMPLE: Final = 64
"""Cells of a dictionary, and parts of a value, that are measured for all."""


@attrs.frozen
class Copy:
    """The state of one manifest, as memory holds it."""

    manifest_id: str
    version: int
    """Of the manifest; another attempt may have made another of the same version."""
    resident: Resident
    size: int
    """Bytes, estimated by `size_of`."""
    used: int
    """The version that a subtask here opened last."""


class ProcessCache:
    """Copies by address, least recently used first. Thread-safe."""

    def __init__(self) -> None:
        self._copies: OrderedDict[Address, Copy] = OrderedDict()
        self._size = 0
        self._exchanged: set[Address] = set()
        self._changed = threading.Condition()

    def take(self, address: Address) -> Copy | None:
        """Remove and return the copy of ``address``; from now on it is the caller's alone.

        Waits while it is exchanged.
        """
        with self._changed:
            self._changed.wait_for(lambda: address not in self._exchanged)
            return self._removed(address)

    def put(self, address: Address, copy: Copy, budget: int) -> None:
        """Keep ``copy``; drop the least recently used ones while all exceed ``budget`` bytes."""
        with self._changed:
            self._removed(address)
            self._add(address, copy)
            self._keep_to(budget)

    def exchange(self, address: Address, change: Callable[[Copy], Copy], budget: int) -> None:
        """Replace the copy of ``address``, if there is one, by what ``change`` makes of it.

        Whoever would `take` it meanwhile waits. It becomes the first to be dropped, and is dropped
        when ``change`` raises.
        """
        with self._changed:
            copy = self._removed(address)
            if copy is None:
                return
            self._exchanged.add(address)
        changed = None
        try:
            changed = change(copy)
        finally:
            with self._changed:
                self._exchanged.remove(address)
                self._changed.notify_all()
                if changed is not None:
                    self._add(address, changed)
                    self._copies.move_to_end(address, last=False)
                    self._keep_to(budget)

    def behind(self, path: str, version: int, *, used_since: int) -> list[KeyGroupRange]:
        """Ranges of the operator at ``path`` whose copies are older than ``version``.

        Of those that a subtask opened at ``used_since`` or later.
        """
        with self._changed:
            found = list(self._copies.items())
        return [
            groups
            for (where, groups), copy in found
            if where == path and copy.used >= used_since and copy.version < version
        ]

    def clear(self) -> None:
        """Drop everything."""
        with self._changed:
            self._copies.clear()
            self._size = 0

    @property
    def size(self) -> int:
        """Bytes of all copies, estimated."""
        return self._size

    def _add(self, address: Address, copy: Copy) -> None:
        self._copies[address] = copy
        self._size += copy.size

    def _removed(self, address: Address) -> Copy | None:
        copy = self._copies.pop(address, None)
        self._size -= 0 if copy is None else copy.size
        return copy

    def _keep_to(self, budget: int) -> None:
        while self._copies and self._size > budget:
            self._removed(next(iter(self._copies)))


CACHE: Final = ProcessCache()
"""The cache of this process."""


def size_of(resident: Resident) -> int:
    """Bytes of memory that a state takes, estimated.

    Dictionaries are measured; of their keys and contents 64 are measured for all, and within a
    container 64 parts for all. Within 20 % for cells of similar size, in well under a
    millisecond whatever the state.
    """
    tables = [cells for table in resident.tables.values() for cells in table.all_cells()]
    raw = [section.size for sections in resident.raw.values() for section in sections]
    return sum(map(_size, tables)) + sum(raw)


def _size(value: Any, depth: int = 0) -> int:
    own = sys.getsizeof(value, 64)
    if isinstance(value, dict):
        return own + _sampled(itertools.chain.from_iterable(value.items()), 2 * len(value), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return own + _sampled(value, len(value), depth)
    attributes = getattr(value, "__dict__", None)
    if attributes:
        return own + _size(attributes, depth)
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    if not slots:
        return own
    return own + _sampled([getattr(value, s, None) for s in slots], len(slots), depth)


def _sampled(parts: Iterable[Any], count: int, depth: int) -> int:
    """The size of ``count`` parts, told from the first ones; small things are shared."""
    measured = [_size(part, depth + 1) for part in itertools.islice(parts, 2 * _SAMPLE)]
    return 0 if not measured else sum(measured) * count // len(measured)
