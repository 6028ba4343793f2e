"""Errors that functions raise to control the retries of their call."""

from __future__ import annotations

from forebay_state_api.calls.policies import Duration, seconds


class RetryLaterError(Exception):
    """Raised by functions: the server asked for a later call."""

    def __init__(self, after: Duration | None = None) -> None:
        """Take the delay that the server asked for.

        ``after`` is in seconds, or a ``timedelta``; without it the delay is the `Retry`'s.
        """
        super().__init__(after)
        self.after_s = None if after is None else seconds(after, "RetryLaterError.after")

    def __str__(self) -> str:
        return "asked to call later" + ("" if self.after_s is None else f", in {self.after_s:g} s")


class ClientBrokenError(Exception):
    """Raised by functions: the client of ``resources`` is no longer usable.

    It is replaced by a new client, and the call is tried again if there is a retry policy, whatever
    its ``on``.
    """
