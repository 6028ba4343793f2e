"""Ends coroutines that do not end by themselves."""

from __future__ import annotations

import contextlib
from typing import Any, Final

_MOST_WAITS: Final = 5
"""The waits of a closed coroutine's ``finally`` blocks that end at once."""


class ClosedByForceError(BaseException):
    """Ends a coroutine that is dropped: nothing but a bare ``except`` catches it."""


def close_coroutine(coroutine: Any) -> None:
    """End a suspended coroutine now; it may not wait any more.

    Its own `close` leaves an asynchronous generator that it iterates suspended for ever.
    """
    if getattr(coroutine, "cr_await", None) is None:
        coroutine.close()
        return
    with contextlib.suppress(ClosedByForceError, StopIteration):
        for _ in range(_MOST_WAITS):
            coroutine.throw(ClosedByForceError())
        coroutine.close()
