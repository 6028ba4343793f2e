"""Decides whether and when a call is made again, from its error and the server's response."""

from __future__ import annotations

import random
import reprlib
import time
from collections.abc import Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import attrs

from forebay_state_api.calls.errors import ClientBrokenError, RetryLaterError
from forebay_state_api.calls.policies import Retry, Verdict, seconds
from forebay_state_api.errors import ConfigurationError, FunctionError

_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503


@attrs.frozen
class Later:
    """A server's request to call later, after ``after_s`` seconds if it gave a time."""

    after_s: float | None


def later(error: BaseException) -> Later | None:
    """Return an exception's request to call later, or ``None``.

    The exception is a `RetryLaterError`, or one of aiohttp, httpx, requests or urllib with a status
    429, or 503 and the header Retry-After; these are recognised by their attributes.
    """
    if isinstance(error, RetryLaterError):
        return Later(error.after_s)
    response = getattr(error, "response", None)
    status = _first(error, response, names=("status", "status_code", "code"))
    if status not in (_TOO_MANY, _UNAVAILABLE):
        return None
    headers = _first(error, response, names=("headers",))
    text = headers.get("Retry-After") if hasattr(headers, "get") else None
    if text is None and isinstance(headers, Mapping):
        text = next((v for k, v in headers.items() if str(k).lower() == "retry-after"), None)
    after = None if text is None else _retry_after(str(text))
    if status == _UNAVAILABLE and after is None:
        return None
    return Later(after)


def _first(*owners: Any, names: tuple[str, ...]) -> Any:
    found = (getattr(owner, name, None) for owner in owners for name in names)
    return next((value for value in found if value is not None), None)


def _retry_after(text: str) -> float | None:
    """Parse the header Retry-After, a number of seconds or an HTTP date, to seconds."""
    try:
        return max(float(text), 0.0) if text.strip().isdigit() else _until(text)
    except (ValueError, TypeError, OverflowError):  # it is neither
        return None


def _until(date: str) -> float:
    return max(parsedate_to_datetime(date).timestamp() - time.time(), 0.0)


class RecordTries:
    """The failures of one record; no other record shares them."""

    __slots__ = ("failures", "laters")

    def __init__(self) -> None:
        self.failures = 0
        self.laters = 0


def _policy_error(name: str, raised: Exception, about: object) -> FunctionError:
    """Return the error for a failed function of the policy, which is not retried."""
    error = f"{type(raised).__name__}: {raised}"
    return FunctionError(f"Retry.{name} raised {error} for {reprlib.repr(about)}")


class RetryPolicy:
    """A `Retry` with its durations in seconds. It holds no mutable state."""

    def __init__(self, retry: Retry | None) -> None:
        self._retry = retry
        if retry is not None:
            self._delay_s = seconds(retry.delay, "Retry.delay")
            self._jitter_s = seconds(retry.jitter, "Retry.jitter")
            limit = retry.max_delay
            self._limit_s = None if limit is None else seconds(limit, "Retry.max_delay")

    def refusal(self, answer: Any) -> tuple[Exception, Verdict] | None:
        """Return an error and the verdict if ``on_result`` refuses the answer, or else ``None``."""
        if self._retry is None or self._retry.on_result is None:
            return None
        try:
            verdict = self._retry.on_result(answer)
        except Exception as raised:
            raise _policy_error("on_result", raised, answer) from raised
        if verdict is False:
            return None
        return ValueError(f"on_result refused the answer {reprlib.repr(answer)}"), verdict

    def delay_s(
        self, error: BaseException, record: RecordTries, verdict: Verdict | None = None
    ) -> float | None:
        """Return the seconds until the next try of ``record``; ``None`` if it is not tried again.

        ``verdict`` is the result of ``on_result``; if it is ``None``, the policy's ``on`` decides.
        """
        if self._retry is None:
            return None
        asked = later(error)
        if asked is not None:
            record.laters += 1
            return self._backoff(record.laters) if asked.after_s is None else asked.after_s
        if verdict is None:
            verdict = self._verdict(error)
        if verdict is False:
            return None
        record.failures += 1
        if self._retry.retries is not None and record.failures > self._retry.retries:
            return None
        if verdict is True:
            return self._backoff(record.failures)
        return seconds(verdict, "what Retry.on returned")

    def _verdict(self, error: BaseException) -> Verdict:
        assert self._retry is not None
        if isinstance(error, ClientBrokenError):
            return True
        on: Any = self._retry.on
        if isinstance(on, type | tuple):
            return isinstance(error, on)
        try:
            verdict = on(error)
        except Exception as raised:
            raise _policy_error("on", raised, error) from raised
        if not isinstance(verdict, bool | int | float | timedelta):
            raise ConfigurationError(
                f"Retry.on returned {verdict!r}; it returns a bool, or a delay in seconds"
            )
        return verdict

    def _backoff(self, failures: int) -> float:
        """Return the delay after a number of failures, from that number alone.

        No state is shared, so that records do not affect each other.
        """
        assert self._retry is not None
        try:
            delay = self._delay_s * self._retry.multiplier ** (failures - 1)
        except OverflowError:
            delay = float("inf")
        if self._limit_s is not None:
            delay = min(delay, self._limit_s)
        return delay + (random.uniform(0, self._jitter_s) if self._jitter_s else 0.0)
