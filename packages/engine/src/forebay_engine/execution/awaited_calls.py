"""Checks that ``ctx.call`` gets a function, and that a record has awaited all of its calls."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record

_NOTED: Final = 16
"""The number of a record's calls above which awaited ones are forgotten."""


def check_called(fn: Any) -> None:
    """Raise `TypeError` unless ``fn`` is a function for ``ctx.call``."""
    if callable(fn):
        return
    if not inspect.isawaitable(fn):
        raise TypeError(
            f"ctx.call(fn, ...) takes an asynchronous function, not {type(fn).__name__} {fn!r:.200}"
        )
    if inspect.iscoroutine(fn):
        fn.close()
    name = getattr(fn, "__qualname__", "")
    got = f"what {name} returned" if name else f"a {type(fn).__name__}"
    raise TypeError(
        "ctx.call takes a function and its arguments, to call it once for each try; it got "
        f"{got}. Write ctx.call(fn, x), not ctx.call(fn(x))"
    )


def note_call(record: Record, call: Any) -> None:
    """Note a call that has to be awaited before the record ends."""
    calls = record.calls
    if calls is None:
        record.calls = [call]
        return
    if len(calls) >= _NOTED and not _is_new(calls[-1]):
        calls[:] = filter(_is_new, calls)
    calls.append(call)


def close_unawaited(record: Record) -> list[Any]:
    """Close the calls that a record did not await; return their functions."""
    calls, record.calls = [*filter(_is_new, record.calls or ())], None
    functions = [call.cr_frame.f_locals["fn"] for call in calls]
    for call in calls:
        call.close()
    return functions


def raise_unawaited(record: Record) -> None:
    """Raise `TypeError` if a record ends without having awaited one of its calls."""
    functions = close_unawaited(record)
    if functions:
        raise TypeError(
            f"ctx.call({functions[0]!r:.200}, ...) was not awaited, and so was not made: write "
            "`await ctx.call(...)`, or give it to asyncio.gather and await that"
        )


def _is_new(call: Any) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED
