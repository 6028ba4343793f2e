"""Run the records of coroutines and asynchronous generators, which may have to wait.

A driver, a loop that is a coroutine itself, awaits record after record.
"""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.record_steps import RecordSteps, record_cancelled_error
from forebay_engine.execution.returned_rows import give_out
from forebay_engine.execution.scheduler import FRESH
from forebay_state_api.job.futures import check_awaited

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import Entries, RecordFunction, RecordHost

    DriverLoop = Callable[[RecordHost, RecordFunction, Entries, int], Coroutine[Any, None, None]]


def run_drivers(  # noqa: PLR0917 - the first two are bound
    drive: DriverLoop,
    run_others: Callable[..., bool] | None,
    host: RecordHost,
    fn: RecordFunction,
    entries: Entries,
    side: int,
) -> None:
    """Run all records.

    When a record has to wait, its driver is set aside with it, and a new driver continues with the
    next record. Where records await anything, ``run_others`` runs those that follow, if given,
    until one ends without having waited.
    """
    scheduler = host.scheduler
    others = run_others and functools.partial(run_others, host, fn, entries, side)
    if others and scheduler.busy and scheduler.awaits is not None and others():
        return
    while True:
        driver = drive(host, fn, entries, side)
        try:
            awaited = driver.send(None)
        except StopIteration:  # all records have been run
            return
        except asyncio.CancelledError as error:
            scheduler.fail_record(record_cancelled_error(error))
            continue
        try:
            _suspend(host, driver, awaited)
        except Exception as error:  # noqa: BLE001 - it awaited what cannot be awaited
            scheduler.fail_record(error)
        if others and scheduler.awaits is not None and others():
            return


def run_apart(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> bool:
    """Run coroutines without a driver, which costs a record that has to wait more than it saves.

    Stops after a record that did not have to wait; returns whether all records have been run.
    """
    scheduler = host.scheduler
    admission = scheduler.admission
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    extend = rows_out.extend
    awaits = scheduler.awaits
    assert awaits is not None

    def take(rows: Any) -> None:
        if rows.__class__ is list:
            extend(rows)
        else:
            give_out(host, rows)

    for row, key, group in entries:
        if busy and admission.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        coroutine = fn(row, context)
        if coroutine.__class__ is not types.CoroutineType:
            coroutine = _awaiting(coroutine)
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            take(stop.value)
            if busy and scheduler.current is not None:
                scheduler.leave()
            return False
        except asyncio.CancelledError as error:
            raise record_cancelled_error(error) from error
        record = scheduler.current or scheduler.current_record()
        record.driver = steps = RecordSteps(awaits, record, coroutine, take)
        steps.wait_for(awaited)
        scheduler.suspend(steps)
    return True


def _suspend(host: RecordHost, driver: Coroutine[Any, None, None], awaited: object) -> None:
    """Set the current record aside; its driver resumes when ``awaited`` is done."""
    record = host.scheduler.current_record()
    if host.scheduler.awaits is not None:
        record.driver = steps = RecordSteps(host.scheduler.awaits, record, driver)
        steps.wait_for(awaited)
        host.scheduler.suspend(steps)
        return

    def step(_: object) -> None:
        try:
            awaited = driver.send(None)
        except StopIteration:
            record.open -= 1
            return
        check_awaited(awaited, driver)._attach(step)

    record.driver = driver
    check_awaited(awaited, driver)._attach(step)
    host.scheduler.suspend(driver)


async def _awaiting(awaitable: Any) -> Any:
    """Await an awaitable that is not a native coroutine, and return its result."""
    return await awaitable
