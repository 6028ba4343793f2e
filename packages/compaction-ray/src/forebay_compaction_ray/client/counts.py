"""Counts events of one process's jobs, and which of them no gateway has received yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final

from forebay_compaction_ray.events import EVENTS


class Counts:
    """Counts events by name. Thread-safe."""

    def __init__(self) -> None:
        """Begin with no events."""
        self._all: Final[Counter[str]] = Counter()
        self._unsent: Counter[str] = Counter()
        self._lock: Final = threading.Lock()

    def __getitem__(self, event: str) -> int:
        """Return how often an event has happened, for any cause."""
        return sum(n for name, n in self.all().items() if name.partition(":")[0] == event)

    def all(self) -> dict[str, int]:
        """Return how often each event has happened."""
        with self._lock:
            return dict(self._all)

    def add(self, event: str) -> None:
        """Count an event once more; raises `KeyError` for one that is not in `EVENTS`."""
        if event not in EVENTS:
            raise KeyError(event)
        with self._lock:
            self._all[event] += 1
            self._unsent[event] += 1

    def take(self) -> dict[str, int]:
        """Remove and return the counts that no gateway has received, to report them now."""
        with self._lock:
            taken, self._unsent = self._unsent, Counter()
            return dict(taken)

    def give_back(self, taken: Mapping[str, int]) -> None:
        """Take back counts that could not be reported."""
        with self._lock:
            self._unsent.update(taken)
