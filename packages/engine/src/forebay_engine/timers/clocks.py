"""The clocks of every function, and the timers of a function without ``on_timer``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, NoReturn

from forebay_engine.timers.instants import instant, us_of
from forebay_engine.timers.watermark import ALWAYS, EPOCH, TimerClocks
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.timers import TimeDomain

if TYPE_CHECKING:
    from forebay_state_api.metrics.engine import EngineMetrics


class Clocks:
    """The processing time and the watermark, which every function sees."""

    def __init__(
        self, times: TimerClocks, counters: EngineMetrics, *, uid: str, has_event_time: bool
    ) -> None:
        self.times: Final = times
        self._counters: Final = counters
        self._uid: Final = uid
        self._has_event_time: Final = has_event_time
        self._watermark_us = times.watermark_us
        self._domain: TimeDomain | None = None

    @property
    def processing_time(self) -> datetime:
        us = self.times.now_us
        return EPOCH if us == NO_TIME else instant(us)

    @property
    def watermark(self) -> datetime | None:
        if not self._has_event_time:
            self._refuse_event_time("ctx.timers.watermark")
        us = self._watermark_us
        return None if us == ALWAYS else instant(us)

    @property
    def domain(self) -> TimeDomain | None:
        return self._domain

    def is_late(self, at: datetime) -> bool:
        if not self._has_event_time:
            self._refuse_event_time("ctx.timers.is_late")
        return us_of(at) <= self._watermark_us

    def drop_late(self, at: datetime) -> bool:
        if not self._has_event_time:
            self._refuse_event_time("ctx.timers.drop_late")
        late = us_of(at) <= self._watermark_us
        self._counters.late_rows_dropped += late
        return late

    def _refuse_event_time(self, what: str) -> NoReturn:
        raise ConfigurationError(
            f"operator {self._uid!r}: {what} needs event times; name their column with event_time= "
            "in keyed()"
        )


class NoTimers(Clocks):
    """The clocks of a function without ``on_timer``: every use of timers raises an error."""

    def __init__(
        self,
        function: str,
        times: TimerClocks,
        counters: EngineMetrics,
        *,
        uid: str,
        has_event_time: bool,
    ) -> None:
        super().__init__(times, counters, uid=uid, has_event_time=has_event_time)
        self._function = function

    def __getattr__(self, name: str) -> NoReturn:
        raise ConfigurationError(
            f"ctx.timers.{name}: {self._function} has no on_timer method; timers are for a "
            "KeyedProcessFunction, KeyedCoProcessFunction or KeyedBroadcastProcessFunction that "
            "defines one"
        )
