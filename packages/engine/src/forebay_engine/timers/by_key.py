"""List the timers of a key: a map state of the engine's own, from the first listing on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.timers.cells import Timer
from forebay_engine.versions.format.namespaces import unpacked_namespace
from forebay_engine.versions.format.timer_tables import BY_KEY
from forebay_state_api.job.descriptors import MapStateDescriptor
from forebay_state_api.job.futures import StateFuture

if TYPE_CHECKING:
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.job.descriptors import StateDescriptor

TimerTime = tuple[int, int]
"""Number of the domain, time in µs."""
_DESCRIPTOR: Final = MapStateDescriptor(BY_KEY, tuple[int, int], bool)


class TimersByKey:
    """The timers of each key and namespace, as a map from `TimerTime` to ``True``.

    Its changes are changes of a state: they are written, handed over and stored in the same way.
    """

    def __init__(self, declare: Callable[[StateDescriptor], Any], context: RuntimeContext) -> None:
        """``declare`` declares the map."""
        self._state: Final = declare(_DESCRIPTOR)
        self._context: Final = context

    def add(self, domain: int, at_us: int) -> None:
        """Add a timer of the current key and namespace."""
        self._state.put((domain, at_us), value=True)

    def discard(self, domain: int, at_us: int) -> None:
        """Remove a timer of the current key and namespace, if it is there."""
        self._state.remove((domain, at_us))

    def times(self) -> list[TimerTime]:
        """Return the timers of the current key and namespace; waits if it must."""
        found: list[TimerTime] = self._state.keys()
        return found

    def async_times(self) -> StateFuture[list[TimerTime]]:
        """`times`, asynchronously; one request, so that its order does not depend on pages."""
        found: StateFuture[list[TimerTime]] = self._state.async_all_keys()
        return found

    def remove(self, domain: int, timer: Timer) -> None:
        """Remove a timer that fires, of any key and namespace."""
        self._of(timer, self.discard, domain)

    def forget(self, domain: int, timer: Timer) -> None:
        """Remove a timer of any key and namespace, even if the current record fails."""
        with self._without_journal():
            self._of(timer, self.discard, domain)

    def add_all(self, domain: int, timers: Iterable[Timer]) -> None:
        """Add timers of any keys and namespaces, even if the current record fails alone."""
        with self._without_journal():
            for timer in timers:
                self._of(timer, self.add, domain)

    @contextlib.contextmanager
    def _without_journal(self) -> Iterator[None]:
        journal = getattr(self._state, "_journal", None)
        last = None if journal is None else journal.last
        try:
            yield
        finally:
            if journal is not None:
                journal.last = last

    def _of(self, timer: Timer, act: Callable[[int, int], None], domain: int) -> None:
        """Call ``act`` for a timer, with its key and namespace as the current ones."""
        at_us, key, group, entry = timer
        context = self._context
        before = context._key, context._group
        context._key, context._group = key, group
        try:
            self._state._within(unpacked_namespace(entry[2]), lambda: act(domain, at_us))
        finally:
            context._key, context._group = before
