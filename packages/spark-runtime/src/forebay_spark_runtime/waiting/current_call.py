"""Which call the code runs for: what `current_call` tells a function."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

import attrs


@attrs.frozen(kw_only=True)
class Call:
    """One call of the function, as `current_call` gives it."""

    key: str
    """The idempotency key: the same for every try, and for the row's calls when the micro-batch
    is run again with the same rows in the same order. With `Batch` that of the call's first row."""
    keys: tuple[str, ...]
    """The keys of all rows of the call: one, or with `Batch` several."""
    attempt: int
    """1 for the first try, 2 for the first retry, … within this run of the task."""


class CallSource(Protocol):
    """What knows the call at hand."""

    def call(self) -> Call:
        """The call."""


CURRENT: Final[ContextVar[CallSource | Call]] = ContextVar("forebay_current_call")


def current_call() -> Call:
    """The call that this code runs for; ``LookupError`` outside of a function of an ordered wait.

    Works in the coroutine, in tasks that it starts, and in plain functions on their threads.
    """
    found = CURRENT.get(None)
    if found is None:
        raise LookupError("current_call() is for functions that an ordered_wait calls")
    return found if isinstance(found, Call) else found.call()
