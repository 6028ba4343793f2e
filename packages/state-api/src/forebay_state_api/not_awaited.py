"""The error for an awaitable that was used as its result."""

from __future__ import annotations

from typing import Final

from forebay_state_api.errors import StateAccessError

NOT_AWAITED: Final = (
    "it was not awaited. Write `await state.async_value()`, or chain with then_apply"
)


def not_awaited_error(kind: str) -> StateAccessError:
    """Return the error for an awaitable of class ``kind`` that was used as its result."""
    return StateAccessError(f"a {kind} was used where its result was meant: {NOT_AWAITED}")
