"""Checks of batch functions, before anything runs and without a library for columns."""

from __future__ import annotations

from typing import Any, Final

from forebay_engine.execution.record_methods import function_name, timer_method
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import check_defined, is_plain
from forebay_state_api.job.functions import KeyedBatchFunction

BOUNDED: Final = "bounded"
WHOLE: Final = "micro-batch"
_METHODS: Final = ("process_batch", "on_timers", "end_batch")


def check_batch_function(function: Any) -> None:
    """Refuse what cannot run as a batch function. Raises `ConfigurationError`."""
    name = function_name(function)
    if not isinstance(function, KeyedBatchFunction):
        raise ConfigurationError(
            f"{name} is not a KeyedBatchFunction: give a function of one row to .process"
        )
    check_defined(function)
    asynchronous = [name for name in _METHODS if not is_plain(getattr(function, name))]
    if asynchronous:
        raise ConfigurationError(
            f"{name} defines {' and '.join(asynchronous)} as async or a generator; they are plain "
            "methods that return columns"
        )
    if timer_method(function) is not None and not has_timers(function, by_columns=True):
        raise ConfigurationError(
            f"{name} defines on_timer, which is for .process: define on_timers(at, ctx), too, "
            "which gets the timers of several keys"
        )
    if function.slices not in (BOUNDED, WHOLE):
        raise ConfigurationError(
            f"{name}: slices is {BOUNDED!r} or {WHOLE!r}, not {function.slices!r}"
        )


def has_timers(function: Any, *, by_columns: bool) -> bool:
    """Return whether a function has timers, if it runs as a batch function or as one of rows."""
    if by_columns:
        return type(function).on_timers is not KeyedBatchFunction.on_timers
    return timer_method(function) is not None


def uses_end_of_batch(function: KeyedBatchFunction) -> bool:
    """Return whether a batch function defines ``end_batch``."""
    return type(function).end_batch is not KeyedBatchFunction.end_batch
