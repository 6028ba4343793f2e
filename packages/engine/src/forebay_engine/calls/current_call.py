"""`current_call`: the call for which the current code runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

import attrs


@attrs.frozen(kw_only=True)
class Call:
    """One call of the function, as `current_call` returns it."""

    key: str
    """The idempotency key: the same for every try, and when the micro-batch is run again with the
    same rows in the same order. With `Batch` it is the key of the call's first row."""
    keys: tuple[str, ...]
    """The keys of all rows of the call: one, or with `Batch` several."""
    attempt: int
    """1 for the first try, 2 for the first retry, … within this run of the task."""


class CallSource(Protocol):
    """An object that knows the current call."""

    def call(self) -> Call:
        """Return the current call."""


CURRENT: Final[ContextVar[CallSource | Call]] = ContextVar("forebay_current_call")


def current_call() -> Call:
    """Return the call for which this code runs.

    Works in the coroutine, in tasks that it starts, and in plain functions on their threads. Raises
    ``LookupError`` outside of a function that an ordered wait calls.
    """
    found = CURRENT.get(None)
    if found is None:
        raise LookupError("current_call() is for functions that an ordered_wait calls")
    return found if isinstance(found, Call) else found.call()
