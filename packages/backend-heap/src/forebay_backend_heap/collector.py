"""Keeps Python's garbage collector from walking through the state again and again.

PySpark calls ``gc.collect()`` after every task, which takes 131 ms with a million cells whose
values are lists, and nothing of a state is ever cyclic garbage. So what lives after a large load
or commit is frozen: the collector does not look at it any more. (What is frozen is freed all the
same when its last reference goes.) Garbage cycles of functions that were frozen with it would stay
for ever; so at every 32nd commit everything is thawed, and the next collection finds them.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final

LARGE: Final = 100_000
"""Cells from which on a state is worth freezing. With fewer, the collection that freezing needs
within the task costs more than what it spares after the task."""

_THAW_EVERY: Final = 32


class Freezer:
    """Freezes and thaws this process's objects; thread-safe."""

    def __init__(self) -> None:
        self._commits = 0
        self._lock = threading.Lock()

    def loaded(self, cells: int) -> None:
        """A state of so many cells was read."""
        if cells >= LARGE:
            gc.freeze()

    def committed(self, cells: int) -> None:
        """A state of so many cells will stay in memory after its commit."""
        if cells < LARGE:
            return
        with self._lock:
            self._commits += 1
            thaw = self._commits % _THAW_EVERY == 0
        if thaw:
            gc.unfreeze()
        else:
            gc.collect()
            gc.freeze()


FREEZER: Final = Freezer()
"""The freezer of this process."""


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection meanwhile: for loops that make very many objects and no garbage cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
