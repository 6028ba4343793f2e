"""What the operators are told: retries, rates, batches. Checked where they are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import attrs

from forebay_state_api.errors import ConfigurationError

Duration: TypeAlias = float | timedelta
"""Seconds, or a ``timedelta``."""

Verdict: TypeAlias = bool | float | timedelta
"""Whether to try again; a number or a ``timedelta`` says after which delay."""

Errors: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], Verdict]
)
"""Classes of exceptions, or a function of one."""


def seconds(given: Duration, what: str, *, above_zero: bool = False) -> float:
    """``given`` in seconds; `ConfigurationError` naming ``what`` unless it is a duration."""
    number: Any = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ConfigurationError(f"{what} is seconds or a timedelta, not {given!r}")
    if number < 0 or (above_zero and number == 0):
        least = "above 0" if above_zero else "0 or more"
        raise ConfigurationError(f"{what} is {least}, not {given!r}")
    return float(number)


def whole(given: Any, what: str, *, least: int) -> int:
    """``given`` if it is a whole number from ``least``."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigurationError(f"{what} is a whole number from {least}, not {given!r}")
    return given


@attrs.frozen
class Retry:
    """When a call that failed is made again, each record by its own count.

    A server that says *not now* (status 429, or 503 with Retry-After, or `RetryLaterError`) is
    waited for as long as it asks, and that is not counted as a failure.
    """

    retries: int | None
    """Calls after the first one; ``None`` for as many as `timeout` leaves time for."""
    delay: Duration = 0.1
    """Before the first retry."""
    multiplier: float = 1.0
    """Each further delay is that many times the one before."""
    max_delay: Duration | None = None
    """No delay is longer, jitter aside."""
    jitter: Duration = 0.0
    """Up to so much is added to each delay, at random."""
    on: Errors = Exception
    """What is tried again: classes of exceptions, or a function of the exception."""
    on_result: Callable[[Any], Verdict] | None = None
    """Which answers are no answers, and are tried again."""

    def __attrs_post_init__(self) -> None:
        """Check all of it."""
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
    """At most ``calls`` tries in ``per``, for each partition."""

    calls: float
    per: Duration = 1.0
    burst: int = 1
    """Tries that may be made at once after a pause."""
    partitions: int | None = None
    """Given: ``calls`` is the total, split evenly over so many partitions."""

    def __attrs_post_init__(self) -> None:
        """Check all of it."""
        if not _is_number(self.calls) or self.calls <= 0:
            raise ConfigurationError(f"Rate.calls is a number above 0, not {self.calls!r}")
        seconds(self.per, "Rate.per", above_zero=True)
        whole(self.burst, "Rate.burst", least=1)
        if self.partitions is not None:
            whole(self.partitions, "Rate.partitions", least=1)

    @property
    def interval_s(self) -> float:
        """Seconds from one try to the next, in each partition."""
        per = seconds(self.per, "Rate.per")
        return per * (self.partitions or 1) / self.calls


@attrs.frozen
class Batch:
    """Calls for several rows at once: ``fn(rows, client)`` returns an outcome for each.

    An outcome is an answer, or an exception (returned, not raised) for a row that failed.
    """

    size: int
    """Rows of a call, at most."""
    within: Duration = 0.0
    """How long a call waits for more rows while the input has none."""

    def __attrs_post_init__(self) -> None:
        """Check all of it."""
        whole(self.size, "Batch.size", least=1)
        seconds(self.within, "Batch.within")
