"""What happened to the jobs of one process, and what of it no gateway has been told yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final

from forebay_compaction_ray.events import EVENTS


class Counts:
    """Counts events by name. Used from several threads."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self._all: Final[Counter[str]] = Counter()
        self._untold: Counter[str] = Counter()
        self._lock: Final = threading.Lock()

    def __getitem__(self, event: str) -> int:
        """How often it has happened, for whatever cause."""
        return sum(n for name, n in self.all().items() if name.partition(":")[0] == event)

    def all(self) -> dict[str, int]:
        """How often each has happened; those with a cause as ``event:cause``."""
        with self._lock:
            return dict(self._all)

    def add(self, event: str, cause: str = "") -> None:
        """It has happened once more; raises `KeyError` for what `EVENTS` does not have."""
        name = f"{event}:{cause}" if cause else event
        if name not in EVENTS:
            raise KeyError(name)
        with self._lock:
            self._all[name] += 1
            self._untold[name] += 1

    def take(self) -> dict[str, int]:
        """What no gateway was told, for somebody who tells one now."""
        with self._lock:
            taken, self._untold = self._untold, Counter()
            return dict(taken)

    def give_back(self, taken: Mapping[str, int]) -> None:
        """It was not told after all."""
        with self._lock:
            self._untold.update(taken)
