"""The clocks in a version: the batch's time, the watermark, and the next possible timers.

Each subtask's manifest holds its part, and its name what all subtasks of the next micro-batch need
(`named_clocks`), so that one list shows it. The watermark is
the minimum of the event times that subtasks with rows have seen, each minus the allowed lateness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

import attrs

from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.checksummed import known_fields

NEVER: Final = 1 << 62
"""Later than every time, in µs."""
ALWAYS: Final = -NEVER
"""Earlier than every time, in µs."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
"""The earliest time that a ``datetime`` can be."""
LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
"""The latest time that a ``datetime`` can be: the watermark at the end of event time."""


@attrs.frozen(kw_only=True)
class TimerClocks:
    """One subtask's part in one version; all times in µs."""

    now_us: int = NO_TIME
    """The time up to which processing-time timers were due."""
    watermark_us: int = ALWAYS
    """The time up to which event-time timers were due."""
    seen_us: Sequence[int] = ()
    """The latest event time ever seen in each input."""
    active: Sequence[bool] = ()
    """Whether the micro-batch saw event times in each input."""
    next_us: Sequence[int] = (ALWAYS, ALWAYS)
    """A lower bound for each domain's timers; ``NEVER`` without any."""
    lists: bool = False
    """Whether the stored lists of each key's timers are complete."""
    marks_us: Sequence[int] = ()
    """Each input's `InputSilence.mark_us` when the micro-batch began; empty without
    ``idle_after``."""
    silent_us: Sequence[int] = ()
    """Each input's `InputSilence.silent_us` then."""
    before_us: int = NO_TIME
    """The time of the micro-batch before, if it was of the same run; else `NO_TIME`."""
    only_ahead: Sequence[bool] = ()
    """Whether the micro-batch saw only event times in each input that are too far ahead."""

    def stored(self) -> dict[str, Any]:
        """Return the value as plain data for a manifest."""
        return {
            "now_us": self.now_us,
            "watermark_us": self.watermark_us,
            "seen_us": list(self.seen_us),
            "active": list(self.active),
            "next_us": list(self.next_us),
            "lists": self.lists,
            **self._stored_silence(),
        }

    def without_silence(self) -> Self:
        """Return the value without the marks and the silence of inputs."""
        return attrs.evolve(self, marks_us=(), silent_us=(), before_us=NO_TIME)

    def _stored_silence(self) -> dict[str, Any]:
        stored: dict[str, Any] = {}
        if self.silent_us:
            stored["marks_us"] = list(self.marks_us)
            stored["silent_us"] = list(self.silent_us)
            stored["before_us"] = self.before_us
        if any(self.only_ahead):
            stored["only_ahead"] = list(self.only_ahead)
        return stored

    @classmethod
    def loaded(cls, stored: Mapping[str, Any]) -> Self:
        """Decode the result of `stored`; return the defaults if nothing was stored."""
        return cls(**known_fields(cls, stored))
