"""The policies of calls: `Retry`, `Rate` and `Batch`. Each is checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias

import attrs

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import LONGEST_S

Duration: TypeAlias = float | timedelta
"""Seconds, or a ``timedelta``."""

Verdict: TypeAlias = bool | float | timedelta
"""Whether to try again. Seconds or a ``timedelta`` mean yes, after that delay."""

Errors: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], Verdict]
)
"""Exception classes, or a function of the exception."""

AsyncFunction: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
OnError: TypeAlias = Callable[[Any, BaseException, int], Any]
"""A function of the row, its last error and the number of its tries; returns the answer."""


def seconds(given: Duration, what: str, *, above_zero: bool = False) -> float:
    """Return a duration in seconds.

    :param given: seconds or a ``timedelta``, from 0 to 36,500 days.
    :param what: the argument's name, for messages.
    :param above_zero: whether to refuse 0. Default: ``False``.

    Raises `ConfigurationError` unless ``given`` is such a duration.
    """
    number: Any = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ConfigurationError(f"{what} is seconds or a timedelta, not {given!r}")
    if number < 0 or (above_zero and number == 0):
        least = "above 0" if above_zero else "0 or more"
        raise ConfigurationError(f"{what} is {least}, not {given!r}")
    if number > LONGEST_S:
        raise ConfigurationError(f"{what} is at most {LONGEST_S // 86_400} days, not {given!r}")
    return float(number)


def whole(given: Any, what: str, *, least: int) -> int:
    """Return ``given`` if it is a whole number from ``least``.

    :param what: the argument's name, for messages.

    Raises `ConfigurationError` otherwise.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigurationError(f"{what} is a whole number from {least}, not {given!r}")
    return given


@attrs.frozen
class Retry:
    """The retry policy of calls: the failures that are retried, how often, and after which delay.

    Retries are counted for each record. Where a server asks for time (status 429, 503 with
    Retry-After, or `RetryLaterError`), the call is repeated after that time, which does not count
    as a retry.

    Raises `ConfigurationError` for fields that cannot work.
    """

    retries: int | None
    """Number of calls after the first one; ``None`` for as many as ``timeout`` leaves time for."""
    delay: Duration = 0.1
    """Delay before the first retry, in seconds or as a ``timedelta``."""
    multiplier: float = 1.0
    """Factor from one delay to the next, 1 or more."""
    max_delay: Duration | None = None
    """Longest delay without the jitter, in seconds or as a ``timedelta``; ``None`` for no limit."""
    jitter: Duration = 0.0
    """Longest random time that is added to each delay, in seconds or as a ``timedelta``."""
    on: Errors = Exception
    """Failures that are tried again: exception classes, or a function of the exception."""
    on_result: Callable[[Any], Verdict] | None = None
    """Function of the answer: whether to try again instead. ``None`` accepts all answers."""

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        if self.retries is not None:
            whole(self.retries, "Retry.retries", least=0)
        delay = seconds(self.delay, "Retry.delay")
        seconds(self.jitter, "Retry.jitter")
        if self.max_delay is not None and seconds(self.max_delay, "Retry.max_delay") < delay:
            raise ConfigurationError("Retry.max_delay is shorter than Retry.delay")
        if not _is_number(self.multiplier) or self.multiplier < 1:
            raise ConfigurationError(
                f"Retry.multiplier is a number from 1, not {self.multiplier!r}"
            )
        if not _are_errors(self.on) and (isinstance(self.on, type) or not callable(self.on)):
            raise ConfigurationError(
                f"Retry.on is exception classes or a function of the exception, not {self.on!r}"
            )
        if self.on_result is not None and not callable(self.on_result):
            raise ConfigurationError(f"Retry.on_result is a function, not {self.on_result!r}")


def _is_number(given: Any) -> bool:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    return number and math.isfinite(given)


def _are_errors(given: Any) -> bool:
    kinds = given if isinstance(given, tuple) else (given,)
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


@attrs.frozen
class Rate:
    """The limit of tries per time, for each partition.

    Raises `ConfigurationError` for fields that cannot work.
    """

    calls: float
    """Number of tries in ``per``, above 0."""
    per: Duration = 1.0
    """The time for ``calls`` tries, in seconds or as a ``timedelta``."""
    burst: int = 1
    """Number of tries that may be made at once after a pause."""
    partitions: int | None = None
    """Number of partitions that ``calls`` is divided among; ``None`` gives ``calls`` to each."""

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        if not _is_number(self.calls) or self.calls <= 0:
            raise ConfigurationError(f"Rate.calls is a number above 0, not {self.calls!r}")
        seconds(self.per, "Rate.per", above_zero=True)
        whole(self.burst, "Rate.burst", least=1)
        if self.partitions is not None:
            whole(self.partitions, "Rate.partitions", least=1)

    @property
    def interval_s(self) -> float:
        """Time from one try to the next in each partition, in seconds."""
        per = seconds(self.per, "Rate.per")
        return per * (self.partitions or 1) / self.calls


@attrs.frozen
class Batch:
    """One call for several rows: ``fn(rows, client)`` returns a list with an outcome for each.

    An outcome is an answer, or an exception (returned, not raised) for a row that failed. Raises
    `ConfigurationError` for fields that cannot work.
    """

    size: int
    """Largest number of rows in a call."""
    within: Duration = 0.0
    """Longest wait for more rows while the input has none, in seconds or as a ``timedelta``."""

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        whole(self.size, "Batch.size", least=1)
        seconds(self.within, "Batch.within")


@attrs.frozen(kw_only=True)
class CallPolicy:
    """How calls are made. All values have been checked; durations are in seconds."""

    capacity: int = 100
    buffer: int = 10_000
    ordered: bool = True
    keyed: bool = False
    try_timeout: float | None = None
    timeout: float | None = None
    retry: Retry | None = None
    rate: Rate | None = None
    hedge: float | None = None
    batch: Batch | None = None
    on_error: OnError | None = None

    @property
    def bare(self) -> bool:
        """Whether a call runs the function alone, without limits, retries or ``on_error``."""
        guards = (self.try_timeout, self.timeout, self.retry, self.rate, self.hedge, self.on_error)
        return all(guard is None for guard in guards)
