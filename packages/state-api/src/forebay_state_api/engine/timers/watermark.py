"""What versions know of time: the batch's, the watermark, and when the next timers may be due.

Each subtask's manifest holds its part, and the next micro-batch opens all of them: the watermark is
the least of what the subtasks that had rows have seen, each less the allowed lateness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.checksummed import known_fields
from forebay_state_api.job.timers import TimeDomain

if TYPE_CHECKING:
    from forebay_state_api.versions.operator import TaskVersion

NEVER: Final = 1 << 62
"""Later than every time, in µs."""
ALWAYS: Final = -NEVER
"""Earlier than every time, in µs."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
"""The earliest time that a ``datetime`` can be."""
DOMAINS: Final = (TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME)
"""In the order in which they fire; numbers of a domain are positions in it."""


@attrs.frozen(kw_only=True)
class Times:
    """One subtask's part in one version; all times in µs."""

    now_us: int = NO_TIME
    """The time up to which processing-time timers were due."""
    watermark_us: int = ALWAYS
    """The time up to which event-time timers were due."""
    seen_us: Sequence[int] = ()
    """The latest event time ever seen of each input."""
    active: Sequence[bool] = ()
    """Whether the micro-batch saw event times of each input."""
    next_us: Sequence[int] = (ALWAYS, ALWAYS)
    """Of each domain: no timer is earlier; ``NEVER`` without any."""

    def stored(self) -> dict[str, Any]:
        """As plain data of a manifest."""
        return {
            "now_us": self.now_us,
            "watermark_us": self.watermark_us,
            "seen_us": list(self.seen_us),
            "active": list(self.active),
            "next_us": list(self.next_us),
        }

    @classmethod
    def loaded(cls, stored: Mapping[str, Any]) -> Self:
        """Inverse of `stored`; nothing is known where nothing was stored."""
        return cls(**known_fields(cls, stored))


def times_of(
    making: TaskVersion | None, *, now_us: int, lateness_us: Sequence[int] | None
) -> Times:
    """The times that a micro-batch begins with.

    ``lateness_us`` is that of each input, ``None`` without event time. A subtask that got no row
    knows no time (``now_us`` is `NO_TIME`): it goes by the latest one that the version knows.
    """
    sides = len(lateness_us or ())
    if making is None or not making.is_restored:
        return Times(now_us=now_us, seen_us=[ALWAYS] * sides, next_us=(NEVER, NEVER))
    own = [Times.loaded(manifest.times) for manifest in making.manifests]
    next_us = [min(one.next_us[number] for one in own) for number in range(len(DOMAINS))]
    everyone: list[Times] = []
    if lateness_us is not None or (now_us == NO_TIME and next_us[1] < NEVER):
        everyone = [Times.loaded(manifest.times) for manifest in making.every_manifest()]
    return Times(
        now_us=now_us if now_us != NO_TIME else _latest([one.now_us] for one in everyone),
        watermark_us=_watermark(everyone, lateness_us or ()),
        seen_us=[_latest(one.seen_us[side : side + 1] for one in own) for side in range(sides)],
        next_us=next_us,
    )


def _watermark(everyone: Sequence[Times], lateness_us: Sequence[int]) -> int:
    told = [
        max(seen_us - lateness_us[side], _FIRST_US)
        for one in everyone
        for side, (seen_us, active) in enumerate(zip(one.seen_us, one.active, strict=True))
        if active and side < len(lateness_us)
    ]
    # Older state may hold a watermark before the year 1.
    before = [max(us, _FIRST_US) for one in everyone if (us := one.watermark_us) != ALWAYS]
    return max([*before, min(told, default=ALWAYS)])


def _latest(parts: Iterable[Sequence[int]]) -> int:
    return max((seen_us for part in parts for seen_us in part), default=ALWAYS)
