"""When Python's garbage collector works in a worker process: seldom, and not on what lives on.

PySpark calls ``gc.collect()`` after every task. That walks through all modules and the whole
state, 131 ms for a million cells whose values are lists, while the driver wants the processor for
its own part of the micro-batch. What is alive when a task begins was walked through after the one
before, so nothing of it is garbage then: it is frozen, and the collector does not look at it any
more. (What is frozen is freed all the same when its last reference goes.) Cycles that become
garbage after they were frozen would stay for ever; so at every 32nd task everything is thawed, and
the collection after it finds them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""So many new objects before the collector looks for garbage among them. With Python's own 700 it
would walk over each row of a batch several times, and find it in use."""

THAW_EVERY: Final = 32
"""Tasks."""

_tasks: Final = itertools.count(1)


def begin_task() -> Callable[[], None]:
    """Spare the collector what it need not see. A collector that is off, or as rare, stays so.

    Returns what spares it more of it later in the task.
    """
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *older)
    if next(_tasks) % THAW_EVERY == 0:
        gc.unfreeze()
        return _thawed
    gc.freeze()
    return gc.freeze


def _thawed() -> None:
    """In this task everything is looked at."""


@contextlib.contextmanager
def loading(freeze: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """No collection while a state is loaded: until what this gives is called, or the context ends.

    The call freezes what was loaded, for it lives on; ``freeze`` is what `begin_task` returned.
    """
    enabled = gc.isenabled()
    gc.disable()

    def collect_again() -> None:
        if enabled:
            gc.enable()

    def loaded() -> None:
        freeze()
        collect_again()

    try:
        yield loaded
    finally:
        collect_again()
