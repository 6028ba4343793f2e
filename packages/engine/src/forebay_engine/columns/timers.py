"""``ctx.timers`` of a batch function, and the timers of several keys that fire in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from forebay_engine.columns.access import Access
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_engine.columns.groups import Groups
    from forebay_engine.execution.engine_interface import Entries
    from forebay_engine.execution.scheduler import Scheduler
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.job.timers import TimeDomain

INSTANTS: Final = pa.timestamp("us", "UTC")


class BatchTimers:
    """The clocks, and the timers of the keys of a call.

    Each registration is a call of Python, by the code of functions of one row. Times have one for
    each row or for each key, or are one for all keys; null registers and deletes nothing.
    """

    def __init__(self, context: RuntimeContext, call: Callable[[], Any]) -> None:
        """``call`` returns the running `BatchCall`, or ``None`` between calls."""
        self._context: Final = context
        self._call: Final = call
        self._access: Final = Access("ctx.timers", context, call)

    @property
    def processing_time(self) -> datetime:
        """The micro-batch's time, in UTC."""
        return self._context.timers.processing_time

    @property
    def watermark(self) -> datetime | None:
        """The watermark, as `Timers.watermark` has it."""
        return self._context.timers.watermark

    @property
    def domain(self) -> TimeDomain | None:
        """In ``on_timers``, the kind of the timers that fire; ``None`` elsewhere."""
        call = self._call()
        return None if call is None else call.domain

    def register_processing_time_many(self, groups: Groups, at: Any, *, where: Any = None) -> None:
        """Call ``on_timers`` for keys when the micro-batch's time reaches ``at``.

        :param groups: ``ctx.groups``.
        :param at: the times, with a zone.
        :param where: a mask of keys or rows; default: all.
        """
        self._each("register_processing_time", groups, at, where)

    def register_event_time_many(self, groups: Groups, at: Any, *, where: Any = None) -> None:
        """Call ``on_timers`` for keys when the watermark reaches ``at``.

        The parameters are those of `register_processing_time_many`.
        """
        self._each("register_event_time", groups, at, where)

    def delete_processing_time_many(self, groups: Groups, at: Any, *, where: Any = None) -> None:
        """Delete timers, if they exist.

        The parameters are those of `register_processing_time_many`.
        """
        self._each("delete_processing_time", groups, at, where)

    def delete_event_time_many(self, groups: Groups, at: Any, *, where: Any = None) -> None:
        """Delete timers, if they exist.

        The parameters are those of `register_processing_time_many`.
        """
        self._each("delete_event_time", groups, at, where)

    def replace_processing_time_many(self, groups: Groups, at: Any, *, where: Any = None) -> None:
        """Make ``at`` the only processing-time timer of a key and the current namespace.

        The parameters are those of `register_processing_time_many`.
        """
        self._each("replace_processing_time", groups, at, where)

    def replace_event_time_many(self, groups: Groups, at: Any, *, where: Any = None) -> None:
        """Make ``at`` the only event-time timer of a key and the current namespace.

        The parameters are those of `register_processing_time_many`.
        """
        self._each("replace_event_time", groups, at, where)

    def list_processing_time_many(self, groups: Groups) -> pa.Array:
        """Return the times of each key's processing-time timers, in order, as lists.

        :param groups: ``ctx.groups``.
        """
        return self._listed("list_processing_time", groups)

    def list_event_time_many(self, groups: Groups) -> pa.Array:
        """Return the times of each key's event-time timers, in order, as lists.

        :param groups: ``ctx.groups``.
        """
        return self._listed("list_event_time", groups)

    def merge_namespaces_many(
        self, groups: Groups, target: Any, sources: Iterable[Any], *, where: Any = None
    ) -> None:
        """Move timers of namespaces to another one, for each key, which keeps its own.

        :param groups: ``ctx.groups``.
        :param target: the namespace that gets the timers.
        :param sources: the namespaces that lose them.
        :param where: a mask of keys or rows; default: all keys.
        """
        merge, moved = self._method("merge_namespaces"), [*sources]
        self._access.loop(
            groups, "merge_namespaces_many", lambda: merge(target, moved), where=where
        )

    def _each(self, name: str, groups: Groups, at: Any, where: Any) -> None:
        act = self._method(name)
        self._access.loop(
            groups, f"{name}_many", lambda one: None if one is None else act(one), at, where=where
        )

    def _listed(self, name: str, groups: Groups) -> pa.Array:
        found = self._access.loop(groups, f"{name}_many", self._method(name))
        return pa.array(found, pa.list_(INSTANTS))

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a method of the record face's timers; refuse it without ``on_timers``."""
        try:
            method: Callable[..., Any] = getattr(self._context.timers, name)
        except ConfigurationError:
            raise ConfigurationError(
                f"ctx.timers.{name}_many: the function has no on_timers(at, ctx), which runs when "
                "its timers are due"
            ) from None
        return method


class TimerWaves:
    """Collects due timers of distinct keys, as the timers of one call of ``on_timers``.

    A key that has a timer in the wave is held, so its next timer waits until the wave has fired,
    which may delete it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        context: RuntimeContext,
        fire: Callable[[list[tuple[Any, Any, int]], Any, TimeDomain | None], None],
    ) -> None:
        """``fire`` takes the timers (time, key, key group), their namespace and their kind."""
        self._scheduler = scheduler
        self._context = context
        self._fire = fire
        self._wave: list[tuple[Any, Any, int]] = []
        self._place: tuple[Any, TimeDomain | None] = (None, None)

    def run(self, entries: Entries, side: int) -> None:
        """Fire due timers; the loop of their input."""
        del side
        scheduler, context = self._scheduler, self._context
        busy: dict[Any, Any] = scheduler.busy
        for at, key, group in entries:
            place = (context._namespace, context.timers.domain)
            if self._wave and place != self._place:
                self.fire()
            if not self._wave:
                self._place = place
                # What waits for a key that is held runs this.
                scheduler.progress.inbox.put(self.fire)
            self._wave.append((at, key, group))
            busy[key] = _HELD
        self.fire()

    def fire(self) -> None:
        """Fire the timers of the wave, if there are any."""
        wave, self._wave = self._wave, []
        for _, key, _ in wave:
            del self._scheduler.busy[key]
        if wave:
            self._fire(wave, *self._place)


class _Held:
    """Holds a key in place of a record."""

    driver = driven = waiting = None
    open = 0


_HELD: Final = _Held()
