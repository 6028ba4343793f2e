"""The errors of futures that are chained, awaited or completed where that cannot work."""

from __future__ import annotations

from typing import Any

from forebay_state_api.errors import StateAccessError


def not_callable_error(given: object) -> TypeError:
    """Return the error for a callback that cannot be called."""
    return TypeError(f"a future is chained by a function of its result, not by {given!r:.200}")


def unstarted_generator_error(generator: Any) -> TypeError:
    """Return the error for a callback that only makes a generator."""
    return TypeError(
        "then_accept takes a function that returns, not one that yields: nobody would run "
        f"{generator.__qualname__}. Give rows out by ctx.collect(row)"
    )


def engine_completes_error() -> StateAccessError:
    """Return the error for completing a future that an access returned."""
    return StateAccessError(
        "this StateFuture is completed by the engine; complete only what you have made"
    )


def failed_record_error(key: Any) -> StateAccessError:
    """Return the error for a future of a record that has failed alone."""
    return StateAccessError(
        f"it waits for a StateFuture of the record of key {key!r:.200}, which has failed"
    )


def chained_elsewhere_error() -> StateAccessError:
    """Return the error for chaining a record's future outside of the record's code."""
    return StateAccessError(
        "this StateFuture belongs to a record of an operator: chain and await it on the operator's "
        "task thread, within its micro-batch; other threads only complete futures"
    )
