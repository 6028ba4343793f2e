"""The rows that a record method returns, and the coroutines and generators of them."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.generators import yielded
from forebay_state_api.job.futures import StateFuture, drive, pending

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import RecordHost


def give_out(host: RecordHost, rows: Any) -> None:
    """Emit a record method's result: rows, or a coroutine or generator of rows."""
    if rows is None:
        return
    if isinstance(rows, StateFuture):
        rows._attach(functools.partial(give_out, host))
    elif isinstance(rows, types.CoroutineType):
        _drive_to(rows, functools.partial(give_out, host))
    elif isinstance(rows, types.GeneratorType):
        host.rows_out.extend(yielded(rows))
    elif inspect.isasyncgen(rows):
        _drive_to(collected(rows), host.rows_out.extend)
    elif isinstance(rows, (tuple, dict, str, bytes)) or not isinstance(rows, Iterable):
        raise TypeError(
            f"the function returned a bare {type(rows).__name__}, {rows!r:.200}: return a list "
            "of rows ([row]), yield the row, or give it to ctx.collect(row)"
        )
    else:
        host.rows_out.extend(rows)


def give_out_one(host: RecordHost, result: Any) -> None:
    """Emit a map function's result: one row, or a coroutine or generator of it."""
    append = host.rows_out.append
    if isinstance(result, StateFuture):
        result._attach(lambda row: append(one_row(row)))
    elif isinstance(result, types.CoroutineType):
        _drive_to(result, lambda row: append(one_row(row)))
    elif inspect.isasyncgen(result):
        _drive_to(collected(result), lambda rows: append(only_row(rows)))
    else:
        append(one_row(result))


def _drive_to(coroutine: Coroutine[Any, Any, Any], take: Callable[[Any], object]) -> None:
    """Run a coroutine, and pass its result to ``take`` when it is done."""
    result = pending()
    drive(coroutine, result)
    if result._done:
        take(result._value)
    else:
        result._attach(take)


async def collected(rows: Any) -> list[Any]:
    """Return all rows of an asynchronous generator."""
    return [row async for row in rows]


def one_row(result: Any) -> Any:
    """Return the row that a map function returned or yielded; raise `TypeError` for others."""
    if isinstance(result, types.GeneratorType):
        return only_row(list(yielded(result)))
    if result is None:
        raise TypeError(
            "a map function returned None; it returns one row (use flat_map for none or many)"
        )
    if isinstance(result, list):
        raise TypeError(
            "a map function returned a list; it returns one row (use flat_map for none or many)"
        )
    return result


def only_row(rows: list[Any]) -> Any:
    """Return the only one of ``rows``; raise `TypeError` for none or several."""
    if len(rows) != 1:
        raise TypeError(f"a map function yielded {len(rows)} rows; it yields one (use flat_map)")
    return rows[0]
