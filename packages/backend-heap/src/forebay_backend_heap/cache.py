"""Keeps the state of all operators of a worker process between micro-batches.

Correctness does not depend on it: an entry is used only if it holds the manifest that is opened, or
an ancestor of it. A batch takes a copy out while it works on it, and puts it back when the batch's
manifest is durable.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import attrs

from forebay_backend_heap.resident import Resident
from forebay_state_api import KeyGroupRange

Address = tuple[str, KeyGroupRange]
"""The operator's directory, and the key groups."""


@attrs.frozen
class CachedState:
    """The in-memory state of one manifest."""

    manifest_id: str
    version: int
    """The manifest's version; another attempt may have written another manifest of that version."""
    resident: Resident
    size: int
    """Estimated bytes, see `size_of`."""
    used: int
    """The version that a subtask of this process opened last."""


class ProcessCache:
    """Copies by address, evicted least recently used first. Thread-safe."""

    def __init__(self) -> None:
        self._copies: OrderedDict[Address, CachedState] = OrderedDict()
        self._size = 0
        self._exchanged: set[Address] = set()
        self._changed = threading.Condition()

    def take(self, address: Address) -> CachedState | None:
        """Remove and return the copy of ``address``; the caller then owns it exclusively.

        Waits while an `exchange` of it is in progress.
        """
        with self._changed:
            self._changed.wait_for(lambda: address not in self._exchanged)
            return self._removed(address)

    def put(self, address: Address, copy: CachedState, budget: int) -> None:
        """Keep ``copy``; evict least recently used copies until all fit ``budget`` bytes."""
        with self._changed:
            self._removed(address)
            self._add(address, copy)
            self._keep_to(budget)

    def exchange(
        self, address: Address, change: Callable[[CachedState], CachedState], budget: int
    ) -> None:
        """Replace the copy of ``address``, if there is one, by the result of ``change``.

        A concurrent `take` of the same address waits. The new copy is the first to be evicted. If
        ``change`` raises, the copy is dropped.
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
        """Return ranges of the operator at ``path`` whose copies are older than ``version``.

        Includes only copies that a subtask last opened at version ``used_since`` or later.
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
        """Estimated bytes of all copies."""
        return self._size

    def _add(self, address: Address, copy: CachedState) -> None:
        self._copies[address] = copy
        self._size += copy.size

    def _removed(self, address: Address) -> CachedState | None:
        copy = self._copies.pop(address, None)
        self._size -= 0 if copy is None else copy.size
        return copy

    def _keep_to(self, budget: int) -> None:
        while self._copies and self._size > budget:
            self._removed(next(iter(self._copies)))


CACHE: Final = ProcessCache()
"""The cache of this process."""


def size_of(resident: Resident) -> int:
    """Estimate the bytes of memory that a state takes.

    Accurate within 20 % for cells of similar size, in a time that does not depend on the state's
    size (see `table_size`).
    """
    raw = sum(section.size for sections in resident.raw.values() for section in sections)
    return raw + sum(table.memory_size() for table in resident.tables.values())
