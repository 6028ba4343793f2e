"""Time to live of keyed state: when cells expire, what reads see, and what removes them.

The clock is the micro-batch's time, so a replay gives the same state. A value expires when
``last access + ttl <= now``; list elements and map entries expire individually.
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
    """The kinds of access that renew the time of last access."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(enum.Enum):
    """Whether a read may still return expired data."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@attrs.frozen
class CleanupOnRead:
    """Reading an expired cell removes it."""


@attrs.frozen
class CleanupFullSnapshot:
    """A full snapshot leaves out expired cells.

    The heap backend does this when it writes a snapshot in place of deltas, the lsm backend when it
    merges all files of a subtask into one run. Removed data do not come back.
    """


def _positive(instance: object, attribute: attrs.Attribute[int], value: object) -> None:
    del instance
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{attribute.name} is a whole number, not {value!r}")
    if value <= 0:
        raise ValueError(f"{attribute.name} must be positive, not {value}")


@attrs.frozen
class CleanupIncrementally:
    """Each access of the state checks ``entries`` of its cells; optionally each record does too.

    The checks of a micro-batch are made after its last record, through all cells in turn,
    no cell twice. Lists and maps that are stored in one piece count as one cell.
    """

    entries: int = attrs.field(validator=_positive)
    every_record: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))


@attrs.frozen
class CleanupInCompaction:
    """Compaction drops data that have expired by the job's clock.

    The heap backend does this when it folds deltas, into one another or into a snapshot, and checks
    only the folded data.

    ``clock_every=n`` adds, every ``n`` entries, the time for which the job has run so far; ``None``
    keeps the time of its submission, so that every attempt writes the same bytes.
    """

    clock_every: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_positive)
    )


@attrs.frozen
class CleanupInBackground:
    """The backend's own clean-up, at little cost; leave it out to switch it off.

    The heap backend checks five cells for each record, as `CleanupIncrementally` does; the lsm
    backend drops data in compaction. A backend without its own clean-up does nothing.
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
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    listed = tuple(given) if is_list else (None,)
    if not all(isinstance(one, Cleanup) for one in listed):
        raise TypeError(f"cleanup takes a list, such as [CleanupOnRead()], not {cleanup!r}")
    return listed


@attrs.frozen
class StateTtlConfig:
    """A state's time to live. A job may restart with a different one.

    :param ttl: the time to live, positive.
    :param update_type: the accesses that renew it; default: creation and writes.
    :param visibility: whether reads may return expired data; default: never.
    :param cleanup: the ways in which expired data are removed, each a ``Cleanup…`` object; default:
        on read and in the background.

    Raises `TypeError` or `ValueError` for invalid arguments.
    """

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
    """When expired data are removed. ``(CleanupOnRead(),)`` switches the background clean-up off,
    ``()`` switches all clean-up off: expired data stay stored, though reads do not see them."""

    @property
    def ttl_us(self) -> int:
        """The time to live in µs, at most a time that never ends."""
        return min(self.ttl // timedelta(microseconds=1), _ENDLESS_US)

    @property
    def expiry(self) -> Expiry:
        """The rule by which stored data expire."""
        return Expiry(self.ttl_us)

    @property
    def cleans_on_read(self) -> bool:
        """Whether reading an expired cell removes it."""
        return any(isinstance(one, CleanupOnRead) for one in self.cleanup)
