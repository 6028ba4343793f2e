"""Idempotency keys: the same for a record in every attempt, and different for two records.

A key is made of what a record is, not of where it runs: its input, key, namespace and content. So
it stays the same where rows of one key come in another order, and where a batch is repeated with
another parallelism. Records that are equal in all of that are distinguished by the order in which
they ask, and nothing outside can see which is which.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay_engine.calls.idempotency import idempotency_key
from forebay_engine.execution.task_thread import wrong_thread_error
from forebay_state_api.codecs.plain import dump_typed
from forebay_state_api.errors import StateAccessError

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record
    from forebay_engine.execution.scheduler import Scheduler

_DIGEST_BYTES: Final = 16


class RecordKeys:
    """Makes the idempotency keys of the records of one subtask that ask for one."""

    def __init__(self, query: str, scheduler: Scheduler, method_of: Callable[[int], str]) -> None:
        """``method_of`` returns the name of an input's record method."""
        self._query = query
        self._scheduler = scheduler
        self._method_of = method_of
        self._equal: Counter[str] = Counter()

    def of_current_record(self) -> str:
        """Return the running record's key; made once for each record."""
        if not self._scheduler.is_task_thread():
            raise wrong_thread_error()
        record = self._scheduler.current_record()
        if record.idempotency_key is None:
            record.idempotency_key = self._made(record)
        return record.idempotency_key

    def _made(self, record: Record) -> str:
        context = self._scheduler.context
        digest = self._digest(record)
        self._equal[digest] += 1
        nth = self._equal[digest]
        more = () if nth == 1 else (nth,)
        return idempotency_key(self._query, context.batch_id, context.operator_uid, digest, *more)

    def _digest(self, record: Record) -> str:
        method = self._method_of(record.side)
        try:
            content = dump_typed((method, record.key, record.namespace, record.row))
        except (TypeError, ValueError, OverflowError) as error:
            raise StateAccessError(
                f"the idempotency key is made of the row's values, and {record.row!r:.200} has "
                f"one that has no stable bytes: {error}. Convert it before the operator"
            ) from error
        return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
