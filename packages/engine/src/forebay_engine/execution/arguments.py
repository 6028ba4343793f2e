"""Check the arguments of operators and harnesses; errors name the argument and its valid values."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import attrs

from forebay_engine.execution.late_rows import LATE, PROCESS
from forebay_engine.execution.periods import MILLISECOND, period_of
from forebay_engine.execution.record_methods import function_name, takes_context
from forebay_engine.isolation.failed_record import DEFAULT_ERROR_LIMIT
from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.format.layout import escaped
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import Setting

MAX_PARALLELISM: Final = 32_768
COLUMN: Final = "column"
"""``on_error``: a failed row is emitted, with its error in a column."""
FAIL: Final = "fail"
"""``on_error``: a failed row fails the micro-batch."""
ERROR_COLUMN: Final = "error"
"""The default name of the column for errors."""


def checked_flag(given: object, name: str, uid: object) -> bool:
    """Return a boolean argument, which may be written as in settings."""
    flag: bool = Setting(name, bool, None, "").value_of(given, key=f"operator {uid!r}: {name}")
    return flag


def checked_uid(uid: object) -> str:
    """Return the operator's name in its query, checked."""
    if not isinstance(uid, str) or not uid:
        raise ConfigurationError(
            "keyed() needs uid=: a name that the operator's state is found under after a restart, "
            f"not {uid!r}"
        )
    escaped(uid, "the uid")
    return uid


def checked_key_alias(given: object, columns: Sequence[str], uid: str) -> Mapping[str, str]:
    """Return the former names of key columns, by their names."""
    alias = {} if given is None else given
    if not isinstance(alias, Mapping) or not all(isinstance(name, str) for name in alias.values()):
        raise ConfigurationError(
            f"operator {uid!r}: key_alias= maps a key column to its former name, like "
            f"{{'account': 'user'}}, and not {given!r}"
        )
    unknown = [name for name in alias if name not in columns]
    if unknown:
        raise ConfigurationError(
            f"operator {uid!r}: key_alias= names {unknown[0]!r}, which is no key column; the key "
            f"columns are {', '.join(columns) or 'computed by a callable'}"
        )
    return alias


def checked_restore(
    given: object, *, allow_non_restored: object, uid: object
) -> RestoreFrom | None:
    """Return the `RestoreFrom` for ``restore_from=`` and ``allow_non_restored=``."""
    allowed = checked_flag(allow_non_restored, "allow_non_restored", uid)
    if given is None:
        if allowed:
            raise ConfigurationError(
                f"operator {uid!r}: allow_non_restored= only applies together with restore_from="
            )
        return None
    asked = RestoreFrom(given) if isinstance(given, str) else given
    if not isinstance(asked, RestoreFrom):
        raise ConfigurationError(
            f"operator {uid!r}: restore_from= is a query's id or name, or a RestoreFrom, "
            f"not {given!r}"
        )
    return attrs.evolve(asked, allow_non_restored=True) if allowed else asked


def checked_max_parallelism(given: object, uid: str) -> int:
    """Return the number of key groups, checked."""
    if not isinstance(given, int) or not is_count(given) or given > MAX_PARALLELISM:
        raise ConfigurationError(
            f"operator {uid!r}: max_parallelism is 1 … {MAX_PARALLELISM}, not {given!r}"
        )
    return given


def checked_parallelism(given: object, max_parallelism: int, uid: str) -> int:
    """Return the number of subtasks, checked."""
    if not isinstance(given, int) or not is_count(given):
        raise ConfigurationError(
            f"operator {uid!r}: parallelism is a positive number, not {given!r}"
        )
    if given > max_parallelism:
        raise ConfigurationError(
            f"operator {uid!r}: parallelism {given} is above max_parallelism {max_parallelism}; a "
            "subtask owns at least one key group. Lower parallelism (the number of key groups is "
            "fixed for the life of the state)"
        )
    return given


def is_count(value: object) -> bool:
    """Return whether this is a whole number, at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def checked_error_column(given: Any, on_error: object, who: str) -> str:
    """Return the name of the column for errors, checked."""
    if not isinstance(given, str) or not given:
        raise ConfigurationError(f"{who}: error_column is a name, not {given!r}")
    if given != ERROR_COLUMN and on_error != COLUMN:
        raise ConfigurationError(f'{who}: error_column= goes with on_error="column"')
    return given


def checked_error_limit(on_error: object, error_limit: object, uid: str) -> int | None:
    """Return the failed records that a subtask accepts; ``None`` for ``on_error="fail"``."""
    if on_error not in (FAIL, COLUMN):
        raise ConfigurationError(
            f'operator {uid!r}: on_error is "fail" or "column", not {on_error!r}'
        )
    if on_error == FAIL:
        if error_limit is not None:
            raise ConfigurationError(f'operator {uid!r}: error_limit= goes with on_error="column"')
        return None
    if error_limit is None:
        return DEFAULT_ERROR_LIMIT
    if not isinstance(error_limit, int) or isinstance(error_limit, bool) or error_limit < 0:
        raise ConfigurationError(
            f"operator {uid!r}: error_limit is a number of records, from 0, not {error_limit!r}"
        )
    return error_limit


def event_time_missing_error(uid: str, argument: str = "allowed_lateness=") -> ConfigurationError:
    """Return the error for an argument that needs event times."""
    return ConfigurationError(f"operator {uid!r}: {argument} goes with event_time=, a column")


def checked_late(late: Any, event_time: object, uid: str) -> str:
    """Return what becomes of late rows: one of `LATE`."""
    if late not in LATE:
        raise ConfigurationError(
            f'operator {uid!r}: late is "process", "drop" or "column", not {late!r}'
        )
    if late != PROCESS and event_time is None:
        raise event_time_missing_error(uid, f'late="{late}"')
    return str(late)


def check_event_time_used(fn: Any, late: str, uid: str, *, emits: bool = False) -> None:
    """Raise `ConfigurationError` for event times that nothing would use.

    ``fn`` may use them, ``late`` may, and a watermark that goes on, with ``emits``.
    """
    if late == PROCESS and not emits and not takes_context(fn):
        raise ConfigurationError(
            f"operator {uid!r}: event_time= is for functions that get ctx, and "
            f"{function_name(fn)} gets rows only; use .process, or let late= decide about rows "
            "before the function"
        )


def checked_lateness(allowed_lateness: Any, uid: str) -> int:
    """Return how late rows may be, in µs."""
    lateness = allowed_lateness if allowed_lateness is not None else timedelta(0)
    if isinstance(lateness, (int, float)) and not isinstance(lateness, bool):
        with contextlib.suppress(OverflowError, ValueError):  # NaN, or too long for a timedelta
            lateness = timedelta(seconds=lateness)
    if not isinstance(lateness, timedelta) or lateness < timedelta(0):
        raise ConfigurationError(
            f"operator {uid!r}: allowed_lateness is a timedelta or a number of seconds, and not "
            f"negative: not {allowed_lateness!r}"
        )
    return lateness // timedelta(microseconds=1)


def checked_idle_after(idle_after: object, event_time: object, uid: str) -> int | None:
    """Return `EventTimeRules.idle_after_us`, checked."""
    if idle_after is None:
        return None
    if event_time is None:
        raise event_time_missing_error(uid, "idle_after=")
    period = period_of(idle_after)
    if period is None or period < MILLISECOND:
        raise ConfigurationError(
            f"operator {uid!r}: idle_after= is the silence after which an input does not hold the "
            "watermark, such as '5 minutes' or timedelta(minutes=5), at least a millisecond, not "
            f"{idle_after!r}"
        )
    return period // timedelta(microseconds=1)


def checked_max_ahead(max_ahead: object, event_time: object, uid: str) -> int | None:
    """Return `EventTimeRules.max_ahead_us`, checked."""
    if max_ahead is None:
        return None
    if event_time is None:
        raise event_time_missing_error(uid, "max_event_time_ahead=")
    period = period_of(max_ahead)
    if period is None or period < timedelta(0):
        raise ConfigurationError(
            f"operator {uid!r}: max_event_time_ahead= is how far an event time may be ahead of its "
            "micro-batch, such as '1 hour' or timedelta(hours=1), and not negative: not "
            f"{max_ahead!r}"
        )
    return period // timedelta(microseconds=1)
