"""A process's memory of small objects: the entries of its runs, and the last manifests.

It remembers the manifests that it put, and those of other subtasks that it read.

It saves requests and decides nothing. Which version is opened is always listed, and whether a newer
run has begun is looked up before each commit: with a get while the epochs were listed not long ago.
Both kinds of objects never change, so what was put is what is stored.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.format.manifest import Manifest

if TYPE_CHECKING:
    from forebay_engine.versions.format.epochs import EpochEntry
    from forebay_state_api.keys import KeyGroupRange

MOST_BYTES: Final = 16 << 20
"""The most bytes of manifests that a process remembers, for all operators together."""
_MOST_RUNS: Final = 1_000
RECENT_S: Final = 600.0
"""How long after a list of the epochs a get may stand for the next one."""


@attrs.frozen
class _Entered:
    """The entry of a run that ranked highest in a list, and when the list began."""

    entry: EpochEntry
    at: float


@attrs.frozen
class _Put:
    """A stored manifest: its name, which is never used again, and its content."""

    name: str
    data: bytes


class WriterMemory:
    """The last manifests of each range of each operator, and each run's entry. Thread-safe."""

    def __init__(
        self, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        """``most_bytes`` bounds the manifests; the one that was put longest ago goes first.

        ``clock`` returns seconds, and goes on while the machine sleeps.
        """
        self._most: Final = most_bytes
        self.clock: Final = clock
        self._lock: Final = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], _Entered] = OrderedDict()
        self._manifests: OrderedDict[tuple[str, KeyGroupRange], Sequence[_Put]] = OrderedDict()
        self._bytes = 0

    def entered(self, url: str, entry: EpochEntry, at: float) -> None:
        """Remember the entry of a run that owned the state in ``url`` in a list begun at ``at``."""
        with self._lock:
            self._entries[url, entry.run_key] = _Entered(entry, at)
            while len(self._entries) > _MOST_RUNS:
                self._entries.popitem(last=False)

    def entry(self, url: str, run_key: str, *, recent: bool = False) -> EpochEntry | None:
        """Return a run's entry; ``None`` if it is not remembered, or not a ``recent`` one."""
        with self._lock:
            found = self._entries.get((url, run_key))
        if found is None or (recent and not 0 <= self.clock() - found.at < RECENT_S):
            return None
        return found.entry

    def put(self, url: str, name: str, manifest: Manifest, data: bytes) -> None:
        """Remember a manifest that is stored in ``url``, and one more of its range.

        While one subtask has committed a version, another one may still open the one before.
        """
        address = (url, manifest.made.range)
        with self._lock:
            before = [one for one in self._drop(address) if one.name != name]
            self._manifests[address] = (_Put(name, data), *before[:1])
            self._bytes += _size(self._manifests[address])
            while self._bytes > self._most:
                self._drop(next(iter(self._manifests)))

    def manifest(self, url: str, name: str, groups: KeyGroupRange) -> Manifest | None:
        """Return the manifest of this name, as reading it would; ``None`` if it is not remembered.

        It is decoded again, because what is read back is plain data and what was put need not be.
        """
        with self._lock:
            found = self._manifests.get((url, groups), ())
        data = next((one.data for one in found if one.name == name), None)
        return None if data is None else Manifest.unsealed(data, f"{name} in {url}")

    def forget(self) -> None:
        """Forget everything, as a new process does."""
        with self._lock:
            self._entries.clear()
            self._manifests.clear()
            self._bytes = 0

    def _drop(self, address: tuple[str, KeyGroupRange]) -> Sequence[_Put]:
        found = self._manifests.pop(address, ())
        self._bytes -= _size(found)
        return found


def _size(manifests: Sequence[_Put]) -> int:
    return sum(len(one.data) for one in manifests)


MEMORY: Final = WriterMemory()
"""The memory of this process."""
