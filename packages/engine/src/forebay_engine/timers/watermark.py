"""The clocks in a version: the batch's time, the watermark, and the next possible timers.

Each subtask's manifest holds its part, and its name what all subtasks of the next micro-batch need
(`named_clocks`), so that one list shows it. The watermark is
the minimum of the event times that subtasks with rows have seen, each minus the allowed lateness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.format.timer_tables import DOMAINS
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.checksummed import known_fields

if TYPE_CHECKING:
    from forebay_engine.versions.operator import TaskVersion

NEVER: Final = 1 << 62
"""Later than every time, in µs."""
ALWAYS: Final = -NEVER
"""Earlier than every time, in µs."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
"""The earliest time that a ``datetime`` can be."""


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

    def stored(self) -> dict[str, Any]:
        """Return the value as plain data for a manifest."""
        return {
            "now_us": self.now_us,
            "watermark_us": self.watermark_us,
            "seen_us": list(self.seen_us),
            "active": list(self.active),
            "next_us": list(self.next_us),
            "lists": self.lists,
        }

    @classmethod
    def loaded(cls, stored: Mapping[str, Any]) -> Self:
        """Decode the result of `stored`; return the defaults if nothing was stored."""
        return cls(**known_fields(cls, stored))


def times_of(
    making: TaskVersion | None, *, now_us: int, lateness_us: Sequence[int] | None
) -> TimerClocks:
    """Return the clocks with which a micro-batch begins.

    ``lateness_us`` is each input's allowed lateness, ``None`` without event time. A subtask that
    does not know the time (``now_us`` is `NO_TIME`) uses the latest time in the version.
    """
    sides = len(lateness_us or ())
    if making is None or not making.is_restored:
        return TimerClocks(now_us=now_us, seen_us=[ALWAYS] * sides, next_us=(NEVER, NEVER))
    own = [TimerClocks.loaded(manifest.times) for manifest in making.manifests]
    next_us = [min(one.next_us[number] for one in own) for number in range(len(DOMAINS))]
    everyone: list[TimerClocks] = []
    if lateness_us is not None or (now_us == NO_TIME and next_us[1] < NEVER):
        everyone = [TimerClocks.loaded(times) for times in making.every_times()]
    return TimerClocks(
        now_us=now_us if now_us != NO_TIME else _latest([one.now_us] for one in everyone),
        watermark_us=_watermark(everyone, lateness_us or ()),
        seen_us=[_latest(one.seen_us[side : side + 1] for one in own) for side in range(sides)],
        next_us=next_us,
        lists=all(one.lists for one in own),
    )


def _watermark(everyone: Sequence[TimerClocks], lateness_us: Sequence[int]) -> int:
    marks = [
        max(seen_us - lateness_us[side], FIRST_US)
        for one in everyone
        for side, (seen_us, active) in enumerate(zip(one.seen_us, one.active, strict=True))
        if active and side < len(lateness_us)
    ]
    # Older state may contain a watermark before the year 1.
    before = [max(us, FIRST_US) for one in everyone if (us := one.watermark_us) != ALWAYS]
    return max([*before, min(marks, default=ALWAYS)])


def _latest(parts: Iterable[Sequence[int]]) -> int:
    return max((seen_us for part in parts for seen_us in part), default=ALWAYS)
