"""The lines where suspended code waits, for errors about what takes too long."""

from __future__ import annotations

import gc
import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record

_SHOWN: Final = 3
"""The most coroutines and tasks of a record whose lines an error shows."""


def _generator_awaited(inner: Any) -> Any:
    """Return what an asynchronous generator awaits, or the generator that an iteration awaits."""
    if inspect.isasyncgen(inner):
        return inner.ag_await
    # An iteration shows its generator to the garbage collector only.
    return next(filter(inspect.isasyncgen, gc.get_referents(inner)), None)


def waiting_lines(coroutine: Any) -> list[str]:
    """Return the lines where a suspended coroutine waits, innermost last."""
    lines, inner = [], coroutine
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            lines.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        inner = getattr(inner, "cr_await", None) or _generator_awaited(inner)
    return lines


def awaited_by(record: Record | None) -> str:
    """Describe what a record waits for."""
    steps = [] if record is None else _steps(record)
    return f"{steps[0].awaited!r:.300}" if steps else "its tasks"


def where_it_waits(record: Record | None) -> str:
    """Return the lines where a record's coroutines and the first of its tasks wait."""
    if record is None:
        return ""
    shown = "".join(f", at\n  {steps.stack()}" for steps in islice(_steps(record), _SHOWN))
    tasks = (waiting_lines(task.get_coro()) for task in record.children or ())
    at = [", its task at\n  " + "\n  ".join(lines) for lines in islice(tasks, _SHOWN)]
    return shown + "".join(at)


def _steps(record: Record) -> list[Any]:
    every = (record.driver, *(record.driven or ()))
    return [one for one in every if hasattr(one, "stack") and not one.ended]
