"""Keeps Python's garbage collector from scanning long-lived objects in a worker process.

PySpark calls ``gc.collect()`` after every task. That traverses all modules and the whole state,
131 ms for a million cells whose values are lists, while the driver needs the processor for its own
part of the micro-batch. The objects that are alive when a task begins were traversed after the task
before, so none of them is garbage: they are frozen, and the collector skips them from then on. (A
frozen object is still freed when its last reference goes.) Cycles that become garbage after they
were frozen would stay for ever; so at every 32nd task all objects are thawed, and the collection
after that task finds the cycles.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""New objects before a collection of the youngest generation. With Python's default of 700 the
collector would traverse each row of a batch several times, and find it in use."""

THAW_EVERY: Final = 32
"""Tasks from one thaw to the next."""

_tasks: Final = itertools.count(1)


def begin_task() -> Callable[[], None]:
    """Freeze the objects that are alive, and make collections rarer.

    A collector that is off, or whose threshold is higher, stays as it is. Returns the function that
    freezes the objects of later in the task.
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
    """Freeze nothing: the collection after this task traverses all objects."""


@contextlib.contextmanager
def loading(freeze: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Turn collection off while a state is loaded.

    Yields a function that freezes the loaded objects, which are long-lived, and turns collection on
    again; so does the end of the context, without freezing. ``freeze`` is the function that
    `begin_task` returned.
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
