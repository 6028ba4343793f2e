"""Run the record methods of operators whose records fail alone.

The loops of `record_methods`, with what only such operators need: the journal is empty when a
record begins, the scheduler knows its row, and an error, or a row that does not fit, fails the
record. Most records end at once and return one row, which passes the quick test: they come first.
The rows of a record that was set aside are checked when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.record_methods import (
    Entries,
    RecordFunction,
    give_out,
    give_out_one,
    one_row_in_list,
    run_async_generators,
    run_async_map,
    run_coroutines,
    run_drivers,
    run_generators,
    run_map,
    run_plain,
)
from forebay_engine.execution.scheduler import FRESH

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import RecordHost


def _run_plain(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    scheduler: Any = host.scheduler
    context = host.context
    busy = scheduler.busy
    journal = scheduler.journal
    add_usual = scheduler.checked_rows.add_usual
    rows_out = host.rows_out
    extend = rows_out.extend
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        journal.last = None
        try:
            rows = fn(row, context)
            if (
                rows.__class__ is list
                and not rows_out
                and scheduler.current is None
                and add_usual(rows)
            ):
                continue
            if rows.__class__ is list:
                extend(rows)
            elif rows is not None:
                give_out(host, rows)
            if scheduler.current is None:
                if rows_out:
                    scheduler.emit()
                continue
        except Exception as error:  # noqa: BLE001 - this runs any user code
            scheduler.fail_record(error)
        else:
            scheduler.leave()


def _run_generators(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    scheduler: Any = host.scheduler
    context = host.context
    busy = scheduler.busy
    journal = scheduler.journal
    rows_out = host.rows_out
    extend = rows_out.extend
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        journal.last = None
        try:
            extend(fn(row, context))
            if scheduler.current is None:
                if rows_out:
                    scheduler.emit()
                continue
        except Exception as error:  # noqa: BLE001 - this runs any user code
            scheduler.fail_record(error)
        else:
            scheduler.leave()


def _run_map(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    scheduler: Any = host.scheduler
    context = host.context
    busy = scheduler.busy
    journal = scheduler.journal
    add_usual = scheduler.checked_rows.add_usual
    rows_out = host.rows_out
    append = rows_out.append
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        journal.last = None
        try:
            result = fn(row, context)
            if (
                result.__class__ is tuple
                and not rows_out
                and scheduler.current is None
                and add_usual([result])
            ):
                continue
            if result.__class__ is tuple:
                append(result)
            else:
                give_out_one(host, result)
            if scheduler.current is None:
                if rows_out:
                    scheduler.emit()
                continue
        except Exception as error:  # noqa: BLE001 - this runs any user code
            scheduler.fail_record(error)
        else:
            scheduler.leave()


def _run_coroutines(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    run_drivers(partial(_drive_coroutines, host, fn, entries, side), host)


def _run_async_generators(
    host: RecordHost, fn: RecordFunction, entries: Entries, side: int
) -> None:
    run_drivers(partial(_drive_generators, host, fn, entries, side), host)


def _run_async_map(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    _run_coroutines(host, one_row_in_list(fn), entries, side)


async def _drive_coroutines(
    host: RecordHost, fn: RecordFunction, entries: Entries, side: int
) -> None:
    scheduler: Any = host.scheduler
    context = host.context
    busy = scheduler.busy
    journal = scheduler.journal
    add_usual = scheduler.checked_rows.add_usual
    rows_out = host.rows_out
    extend, give = rows_out.extend, partial(give_out, host)
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        journal.last = None
        try:
            rows = await fn(row, context)
            if (
                rows.__class__ is list
                and not rows_out
                and scheduler.current is None
                and add_usual(rows)
            ):
                continue
            if rows is not None:
                (extend if rows.__class__ is list else give)(rows)
            if scheduler.current is None:
                if rows_out:
                    scheduler.emit()
                continue
        except Exception as error:  # noqa: BLE001 - this runs any user code
            _fail_driven(scheduler, error)
        else:
            if scheduler.current.driver is not None:
                return
            scheduler.leave()


async def _drive_generators(
    host: RecordHost, fn: RecordFunction, entries: Entries, side: int
) -> None:
    scheduler: Any = host.scheduler
    context = host.context
    busy = scheduler.busy
    journal = scheduler.journal
    rows_out = host.rows_out
    append = rows_out.append
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        journal.last = None
        try:
            async for out in fn(row, context):
                append(out)
            if scheduler.current is None:
                if rows_out:
                    scheduler.emit()
                continue
        except Exception as error:  # noqa: BLE001 - this runs any user code
            _fail_driven(scheduler, error)
        else:
            if scheduler.current.driver is not None:
                return
            scheduler.leave()


def _fail_driven(scheduler: Any, error: Exception) -> None:
    """Let a driver's record fail; if it was suspended, the driver is a step of it, and raises."""
    if scheduler.current is not None and scheduler.current.driver is not None:
        raise error
    scheduler.fail_record(error)


LOOPS: Final[Mapping[Callable[..., None], Callable[..., None]]] = {
    run_plain: _run_plain,
    run_generators: _run_generators,
    run_map: _run_map,
    run_coroutines: _run_coroutines,
    run_async_generators: _run_async_generators,
    run_async_map: _run_async_map,
}
"""Loop of `record_methods` → the loop that takes its place."""
