"""Time-to-live of keyed state: when cells expire, what a read sees, who cleans up.

The clock is the micro-batch's own time, so a replay gives the same state. A value expires when
``last access + ttl <= now``; list elements and map entries expire one by one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import attrs

from forebay_state_api.contract.expiry import Expiry

_ENDLESS_US: Final = 1 << 62
"""Longer than from the first to the last `datetime`."""


class UpdateType(enum.Enum):
    """What renews the time of last access."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(enum.Enum):
    """Whether a read may still hand out what has expired."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@attrs.frozen
class CleanupOnRead:
    """An expired cell that is read is removed."""


@attrs.frozen
class CleanupFullSnapshot:
    """Expired cells are left out of a full snapshot.

    That is when the heap backend writes a snapshot in place of deltas, and when the lsm backend
    merges all files of a subtask into one run. What was left out does not come back.
    """


def _positive(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    del instance
    if value <= 0:
        raise ValueError(f"{attribute.name} must be positive, not {value}")


@attrs.frozen
class CleanupIncrementally:
    """Each access of the state checks ``entries`` of its cells, each record too if asked for.

    The checks that a micro-batch has earned are made when its last record has ended, all cells in
    turn, and no cell twice. Lists and maps that lie in one piece count as one cell.
    """

    entries: int = attrs.field(validator=_positive)
    every_record: bool = False


@attrs.frozen
class CleanupInCompaction:
    """Compaction drops what has expired by the job's clock.

    On the heap backend that is when deltas are folded, into one another or into a snapshot; only
    what is folded is looked at.

    ``clock_every=n`` adds the time that the job has run so far every ``n`` entries; ``None`` keeps
    the time at which it was asked for, so that every attempt gives the same bytes.
    """

    clock_every: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )


@attrs.frozen
class CleanupInBackground:
    """The backend's own way, at little cost; leave it out to switch that off.

    The heap backend checks five cells for each record, as `CleanupIncrementally` does, the lsm
    backend drops in compaction. A backend that has no way of its own does nothing.
    """


Cleanup = (
    CleanupOnRead
    | CleanupFullSnapshot
    | CleanupIncrementally
    | CleanupInCompaction
    | CleanupInBackground
)


def _positive_duration(instance: object, attribute: object, value: timedelta) -> None:
    del instance, attribute
    if not isinstance(value, timedelta):
        raise TypeError(f"ttl is a timedelta, such as timedelta(hours=1), not {value!r}")
    if value <= timedelta(0):
        raise ValueError(f"ttl must be positive, not {value}")


def _one_of(
    kind: type[enum.Enum],
) -> Callable[[object, attrs.Attribute[Any], object], None]:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        del instance
        if not isinstance(value, kind):
            raise TypeError(
                f"{attribute.name} is one of {', '.join(map(str, kind))}, not {value!r}"
            )

    return check


def _in_order(cleanup: Iterable[Cleanup]) -> Sequence[Cleanup]:
    given: Any = cleanup
    listed = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(one, Cleanup) for one in listed):
        raise TypeError(f"cleanup takes a list, such as [CleanupOnRead()], not {cleanup!r}")
    return listed


@attrs.frozen
class StateTtlConfig:
    """How long cells of a state live. Not part of a checkpoint: a job may restart with another."""

    ttl: timedelta = attrs.field(validator=_positive_duration)
    update_type: UpdateType = attrs.field(
        default=UpdateType.ON_CREATE_AND_WRITE, validator=_one_of(UpdateType)
    )
    visibility: StateVisibility = attrs.field(
        default=StateVisibility.NEVER_RETURN_EXPIRED, validator=_one_of(StateVisibility)
    )
    cleanup: Sequence[Cleanup] = attrs.field(
        default=(CleanupOnRead(), CleanupInBackground()), converter=_in_order
    )
    """When what has expired is removed. ``(CleanupOnRead(),)`` switches that of the background off,
    ``()`` all of it: what has expired stays stored, though it is not seen."""

    @property
    def ttl_us(self) -> int:
        """The time to live in µs, or a time that is never over."""
        return min(self.ttl // timedelta(microseconds=1), _ENDLESS_US)

    @property
    def expiry(self) -> Expiry:
        """When what is stored is dead."""
        return Expiry(self.ttl_us)

    @property
    def cleans_on_read(self) -> bool:
        """Whether an expired cell that is read is removed."""
        return any(isinstance(one, CleanupOnRead) for one in self.cleanup)
