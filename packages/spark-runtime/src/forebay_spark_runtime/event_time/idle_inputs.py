"""Inputs that fall silent on Spark: the checks of ``idle_after=``, and the warning at the start."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from forebay_engine.execution.arguments import checked_idle_after
from forebay_engine.execution.late_rows import DROP
from forebay_spark_runtime.event_time.ticks import periods_before
from forebay_state_api.errors import ConfigurationError

_log = logging.getLogger(__name__)


def checked_idle_us(
    df: Any, idle_after: object, event_time: object, ticks_ms: int | None, uid: str, *, late: str
) -> int | None:
    """Return the ``idle_after=`` of `keyed` in µs; ``None`` without it.

    ``ticks_ms`` is the period of the operator's own ticks, ``late`` the action for late rows. Logs
    what becomes of rows after an outage upstream. Raises `ConfigurationError` if it is no period,
    without event times, without ticks or with ticks of a longer period, on a bounded DataFrame and
    in ``foreachBatch``.
    """
    silence_us = checked_idle_after(idle_after, event_time, uid)
    if silence_us is None:
        return None
    silence = timedelta(microseconds=silence_us)
    if not df.isStreaming:
        raise ConfigurationError(
            f"operator {uid!r}: idle_after= is for streams, whose ticks let time pass while "
            "nothing comes. A bounded DataFrame has none, and a batch in foreachBatch is a "
            "micro-batch already: put keyed(..., idle_after=..., ticks=...) before writeStream"
        )
    _check_ticks(df, silence, ticks_ms, uid)
    _log.warning(
        "operator %r: idle_after= cannot distinguish an outage upstream from a pause: after %s "
        "without event times the watermark goes on, and rows that then come for that time are "
        "late%s. Let it be longer than the outages whose rows have to count",
        uid,
        silence,
        ', and late="drop" drops them' if late == DROP else "",
    )
    return silence_us


def _check_ticks(df: Any, silence: timedelta, ticks_ms: int | None, uid: str) -> None:
    periods = periods_before(df) if ticks_ms is None else {ticks_ms}
    if not periods:
        raise ConfigurationError(
            f"operator {uid!r}: idle_after= needs ticks=, micro-batches in which time passes while "
            'nothing comes: pass ticks="10 seconds", say, or a period that is shorter than '
            "idle_after="
        )
    if timedelta(milliseconds=max(periods)) > silence:
        raise ConfigurationError(
            f"operator {uid!r}: idle_after= is {silence}, and ticks= are {max(periods):,} ms "
            "apart. Each micro-batch adds at most idle_after= to a silence, so time would go on "
            "more slowly than the clock: pass a shorter ticks=, or a longer idle_after="
        )
