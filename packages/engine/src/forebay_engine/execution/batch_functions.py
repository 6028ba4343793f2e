"""Checks of batch functions, before anything runs and without a library for columns."""

from __future__ import annotations

from typing import Any, Final

from forebay_engine.execution.record_methods import function_name, timer_method
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import check_defined, is_plain
from forebay_state_api.job.functions import KeyedBatchFunction

BOUNDED: Final = "bounded"
WHOLE: Final = "micro-batch"


def check_batch_function(function: Any) -> None:
    """Refuse what cannot run as a batch function. Raises `ConfigurationError`."""
    name = function_name(function)
    if not isinstance(function, KeyedBatchFunction):
        raise ConfigurationError(
            f"{name} is not a KeyedBatchFunction: give a function of one row to .process"
        )
    check_defined(function)
    asynchronous = [m for m in ("process_batch", "end_batch") if not is_plain(getattr(function, m))]
    if asynchronous:
        raise ConfigurationError(
            f"{name} defines {' and '.join(asynchronous)} as async or a generator; they are plain "
            "methods that return columns"
        )
    if timer_method(function) is not None:
        raise ConfigurationError(
            f"{name} defines on_timer, and a batch function has no timers: run it by .process, or "
            "compare ctx.watermark with a time that the state keeps"
        )
    if function.slices not in (BOUNDED, WHOLE):
        raise ConfigurationError(
            f"{name}: slices is {BOUNDED!r} or {WHOLE!r}, not {function.slices!r}"
        )
