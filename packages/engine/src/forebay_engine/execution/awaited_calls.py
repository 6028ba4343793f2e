"""Checks that ``ctx.call`` gets a function, and that a record has awaited all of its calls."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record

_NOTED: Final = 16
"""The number of a record's calls above which awaited ones are forgotten."""


def check_called(fn: Any, call: str = "ctx.call(") -> None:
    """Raise `TypeError` unless ``fn`` is a function for ``call``, which begins the message."""
    if callable(fn):
        return
    if not inspect.isawaitable(fn):
        raise TypeError(
            f"{call}fn, ...) takes an asynchronous function, not {type(fn).__name__} {fn!r:.200}"
        )
    if inspect.iscoroutine(fn):
        fn.close()
    name = getattr(fn, "__qualname__", "")
    got = f"what {name} returned" if name else f"a {type(fn).__name__}"
    raise TypeError(
        f"{call}fn, ...) takes a function and its arguments, to call it once for each try; it got "
        f"{got}. Write {call}fn, x), not {call}fn(x))"
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


def close_unawaited(record: Record) -> list[str]:
    """Close the calls that a record did not await; return them as text."""
    calls, record.calls = [*filter(_is_new, record.calls or ())], None
    texts = [_text(call) for call in calls]
    for call in calls:
        call.close()
    return texts


def raise_unawaited(record: Record) -> None:
    """Raise `TypeError` if a record ends without having awaited one of its calls."""
    calls = close_unawaited(record)
    if calls:
        method = calls[0].partition("(")[0]
        raise TypeError(
            f"{calls[0]} was not awaited, and so was not made: write `await {method}(...)`, or "
            "give it to asyncio.gather and await that"
        )


def _text(call: Any) -> str:
    """Return a call as the job's author wrote it."""
    written = call.cr_frame.f_locals
    keep = f"{written['keep']!r}, " if "keep" in written else ""
    return f"{call.__qualname__}({keep}{written['fn']!r:.200}, ...)"


def _is_new(call: Any) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED
