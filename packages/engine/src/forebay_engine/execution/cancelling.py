"""End records early: cancel their coroutines and children, and let their ``finally`` blocks run.

A record that fails alone is cancelled while the others go on (`IsolatingScheduler`); a micro-batch
that has failed cancels all of its records (`cancel_all`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from forebay_engine.execution.awaited_calls import close_unawaited
from forebay_engine.execution.waiting_lines import where_it_waits
from forebay_state_api.job.futures import StateFuture

if TYPE_CHECKING:
    from forebay_engine.execution.awaitables import Awaits
    from forebay_engine.execution.record import Record

_log = logging.getLogger(__name__)

CLOSING_S: Final = 10.0
"""Seconds that cancelled records have for their ``finally`` blocks."""


class CancelledSteps(Protocol):
    """The engine's scheduler, after a failure."""

    busy: dict[Any, Record]

    def run_quietly(self) -> bool:
        """Run what can run of cancelled records; return whether there was anything."""


Wait = Callable[[float], bool]
"""Waits for what a cancelled record awaits; returns false if nothing can arrive."""


def steps_under_way(record: Record) -> list[Any]:
    """Return the steps of a record's unfinished coroutines."""
    steps = (record.driver, *(record.driven or ()))
    return [one for one in steps if one is not None and not one.ended]


def is_under_way(record: Record) -> bool:
    """Return whether coroutines or children of a record have not ended."""
    return bool(record.children) or bool(steps_under_way(record))


def may_be_cancelled(record: Record) -> bool:
    """Return whether other code, such as a time limit, has a record's task and may cancel it."""
    return any(steps.task_is_kept() for steps in steps_under_way(record))


def cancel(record: Record) -> None:
    """Cancel the coroutines of a record, or where all are done its children.

    Their ``finally`` blocks run, and what is chained to an answer that has not come does not.
    Coroutines come first: one that waits for a group of children cancels them itself, and a second
    time would end their ``finally`` blocks.
    """
    for *_, callback, value in record.turns:
        if callback is None and value._callbacks:
            value._callbacks = [one for one in value._callbacks if one[3] is None]
    for steps in steps_under_way(record):
        steps.cancel()
    cancel_children(record)


def cancel_children(record: Record) -> bool:
    """Cancel the children that were not cancelled yet; return false if it is too early."""
    if not all(steps.cancellation_taken for steps in steps_under_way(record)):
        return False
    for child in tuple(record.children or ()):
        if not child.cancelling():
            child.cancel()
    return True


def cancel_state_waits(record: Record) -> None:
    """End the waits for state of a cancelled record in which a step has failed.

    One of them may wait for the result of that step. Waits of ``finally`` blocks continue.
    """
    for steps in steps_under_way(record):
        if isinstance(steps.awaited, StateFuture):
            steps.cancel()
    for child in tuple(record.children or ()):
        wait = child.get_coro().state_wait
        if wait is not None and child._fut_waiter is wait:
            child.cancel()


def cancel_all(scheduler: CancelledSteps, awaits: Awaits, wait: Wait) -> None:
    """Cancel the records of a failed micro-batch, and wait for their ``finally`` blocks.

    Their awaits are answered meanwhile, including reads of storage. No record is started any more.
    """
    records = list(scheduler.busy.values())
    for record in records:
        record.waiting = None
        cancel(record)
    late = not _run_to_the_ends(scheduler, awaits, wait, records)
    for record in records:
        if is_under_way(record):
            close_by_force(record, late=late)
        close_unawaited(record)


def _run_to_the_ends(
    scheduler: CancelledSteps, awaits: Awaits, wait: Wait, records: list[Record]
) -> bool:
    """Run cancelled records until they are done or cannot go on; return false if it is late."""
    deadline = awaits.loop.time() + CLOSING_S
    # The loop's clock may stand still, as a `VirtualClock` does while code spins.
    awaits.must_stop_at = time.monotonic() + CLOSING_S
    parents = [record for record in records if record.children]
    open_records, stuck = records.copy(), False
    while True:
        while open_records and not is_under_way(open_records[-1]):
            open_records.pop()
        left = min(deadline - awaits.loop.time(), awaits.must_stop_at - time.monotonic())
        if left <= 0 or not (open_records or awaits.in_flight):
            return left > 0
        if scheduler.run_quietly():
            parents = [record for record in parents if not cancel_children(record)]
        elif not wait(left):
            if stuck:
                return True
            stuck = True
            for record in open_records:
                cancel_state_waits(record)


def close_by_force(record: Record, *, late: bool = True) -> None:
    """Close the pending calls of a cancelled record, and log where it waits.

    With ``late`` it had `CLOSING_S` to finish; otherwise nothing can end its wait any more.
    """
    why = (
        f"did not end within {CLOSING_S:g} s: its code catches asyncio.CancelledError, or waits "
        "in a finally block"
        if late
        else "awaits what nobody completes"
    )
    _log.warning(
        "a record of key %.200r was cancelled and %s; it is closed%s",
        record.key,
        why,
        where_it_waits(record),
    )
    for child in tuple(record.children or ()):
        child.get_coro().close_by_force()
        child.cancel()


def quietly(run: Callable[..., object], *arguments: Any) -> bool:
    """Run code of a record that is cancelled; return false if it fails, too late to matter."""
    try:
        run(*arguments)
    except Exception:  # noqa: BLE001 - this may run any user code
        _log.debug("a record failed after it was cancelled", exc_info=True)
        return False
    return True


def close_quietly(driver: Any) -> None:
    """Close a suspended coroutine."""
    quietly(driver.close)
