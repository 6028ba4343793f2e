"""Settings of an engine as keyword arguments, typed once for all that take them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypedDict


class EngineOverrides(TypedDict, total=False):
    """The settings of `EngineSettings`, which ``keyed`` and ``FunctionHarness`` take by keyword.

    :param in_flight_limit: maximum number of records under way at once.
    :param calls_in_flight: maximum number of calls that ``ctx.call`` makes at once in a subtask.
        While as many records wait for anything but state, no further record begins. Default of the
        setting: ``in_flight_limit`` bounds them.
    :param record_timeout: longest time of a record from its first wait to its end, as a timedelta,
        in seconds, or like ``"30s"``. A record that takes longer is cancelled, with its tasks; it
        fails the micro-batch, or as ``on_error`` says. Default of the setting: no limit.
    :param batch_size: maximum number of state requests that go to the backend at once.
    :param page_size: number of elements in a page of a state iterator.
    :param read_ahead: whether to read declared point states before the first record.
    :param drain_timeout: longest wait for records in flight at the end of a micro-batch, as a
        timedelta, in seconds, or like ``"5min"``.
    :param slice_bytes: bytes of input that a batch function gets at once, such as ``"8m"``.

    ``None``, and one that is left out, means the setting.
    """

    in_flight_limit: int | None
    calls_in_flight: int | None
    record_timeout: timedelta | float | str | None
    batch_size: int | None
    page_size: int | None
    read_ahead: bool | None
    drain_timeout: timedelta | float | str | None
    slice_bytes: int | str | None


def engine_overrides(
    given: Mapping[str, object], function: Callable[..., Any]
) -> dict[str, object]:
    """Return setting → value; raises `TypeError` for what ``function`` does not take."""
    check_keywords(given, EngineOverrides.__annotations__, function)
    return {name.replace("_", "-"): value for name, value in given.items()}


def check_keywords(
    given: Iterable[str], known: Collection[str], function: Callable[..., Any]
) -> None:
    """Raise Python's `TypeError` for an unknown keyword argument, with a similar name."""
    for name in given:
        if name not in known:
            parameters = inspect.signature(function).parameters.values()
            own = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
            similar = difflib.get_close_matches(name, [*known, *own], n=1)
            hint = f". Did you mean {similar[0]!r}?" if similar else ""
            raise TypeError(
                f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}"
            )
