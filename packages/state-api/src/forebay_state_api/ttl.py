"""Time-to-live of keyed state: when cells expire, what a read sees, who cleans up.

The clock is the micro-batch's own time, so a replay gives the same state. A value expires when
``last access + ttl <= now``; list elements and map entries expire one by one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from datetime import timedelta

import attrs


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
    """Expired cells are left out of a full snapshot."""


def _positive(instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    del instance
    if value <= 0:
        message = f"{attribute.name} must be positive, not {value}"
        raise ValueError(message)


@attrs.frozen
class CleanupIncrementally:
    """Each access of the state checks ``entries`` of its cells, each record too if asked for."""

    entries: int = attrs.field(validator=_positive)
    every_record: bool = False


@attrs.frozen
class CleanupInCompaction:
    """Compaction drops what has expired by the job's clock.

    ``clock_every=n`` reads the clock again every ``n`` entries; ``None`` keeps the job's one
    reading, so that every attempt gives the same bytes.
    """

    clock_every: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )


Cleanup = CleanupOnRead | CleanupFullSnapshot | CleanupIncrementally | CleanupInCompaction


def _positive_duration(instance: object, attribute: object, value: timedelta) -> None:
    del instance, attribute
    if value <= timedelta(0):
        message = f"ttl must be positive, not {value}"
        raise ValueError(message)


def _in_order(cleanup: Iterable[Cleanup]) -> Sequence[Cleanup]:
    return tuple(cleanup)


@attrs.frozen
class StateTtlConfig:
    """How long cells of a state live. Not part of a checkpoint: a job may restart with another."""

    ttl: timedelta = attrs.field(
        validator=[attrs.validators.instance_of(timedelta), _positive_duration]
    )
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED
    cleanup: Sequence[Cleanup] = attrs.field(default=(CleanupOnRead(),), converter=_in_order)
    """``()`` switches all clean-up off: what has expired stays stored, though it is not seen."""

    @property
    def ttl_us(self) -> int:
        """The time to live in µs."""
        return self.ttl // timedelta(microseconds=1)

    @property
    def cleans_on_read(self) -> bool:
        """Whether an expired cell that is read is removed."""
        return any(isinstance(one, CleanupOnRead) for one in self.cleanup)
