"""The event times of an operator: the rules that it declares, and the bounds of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from forebay_engine.timers.watermark import NEVER
from forebay_state_api.contract.backend import NO_TIME


@attrs.frozen(kw_only=True)
class EventTimeRules:
    """The declarations of an operator about the event times of its inputs; all in µs."""

    lateness_us: Sequence[int]
    """How far the watermark stays behind the latest event time of each input."""
    idle_after_us: int | None = None
    """The silence after which an input does not hold the watermark; ``None`` if an input without
    event times never holds it, and time does not go on without them."""
    max_ahead_us: int | None = None
    """How far ahead of the micro-batch's time an event time may be; ``None`` without a bound."""

    def bounds(self, *, watermark_us: int, now_us: int) -> EventTimeBounds:
        """Return the bounds of a micro-batch, by the clocks with which it begins."""
        if self.max_ahead_us is None or now_us == NO_TIME:
            return EventTimeBounds(watermark_us)
        return EventTimeBounds(watermark_us, min(now_us + self.max_ahead_us, NEVER))


@attrs.frozen
class EventTimeBounds:
    """The event times between which a row of a micro-batch is neither late nor ahead; in µs."""

    watermark_us: int
    """A row up to it is late."""
    furthest_us: int = NEVER
    """A row beyond it is ahead, and does not move the watermark."""

    @property
    def is_open(self) -> bool:
        """Whether no event time is too far ahead."""
        return self.furthest_us == NEVER

    def excludes(self, at_us: int) -> bool:
        """Return whether a row of this event time is late or too far ahead."""
        return not self.watermark_us < at_us <= self.furthest_us
