"""Operator state of the ordered wait that carries rows over: the rows without an answer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from forebay_state_api.errors import StateAccessError, StateMigrationError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ListStateDescriptor, MapStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.operator_state import (
    CheckpointedFunction,
    InitializationContext,
    SnapshotContext,
)

PENDING_ROWS: Final = ListStateDescriptor("pending-rows", tuple[str, bytes])
"""The idempotency key of each row, and the row as an Arrow stream of one batch of one row."""

PENDING_COLUMNS: Final[MapStateDescriptor[str, list[tuple[str, str]]]] = MapStateDescriptor(
    "pending-columns", str, list[tuple[str, str]]
)
"""Under ``columns``, the names and types of the input columns of the pending rows."""

_COLUMNS: Final = "columns"

Columns = list[tuple[str, str]]
"""Names and Spark types of the input columns."""


class PendingRows(KeyedProcessFunction[Any, Any, Any], CheckpointedFunction):
    """The state of one subtask; `process_element` does not get its rows."""

    def __init__(self, columns: Columns, uid: str) -> None:
        """Take the input's current ``columns``, and the operator's ``uid`` for messages."""
        self._columns = columns
        self._uid = uid
        self._left: list[tuple[str, bytes]] = []
        self.keys: list[str] = []
        """Idempotency keys of the carried rows, in order."""
        self.rows: list[bytes] = []
        """The carried rows, in order."""

    def initialize_state(self, context: InitializationContext) -> None:
        """Restore the pending rows; raises `StateMigrationError` if the columns have changed."""
        store = context.operator_state_store
        self._pending = store.get_list_state(PENDING_ROWS)
        self._stored = store.get_broadcast_state(PENDING_COLUMNS)
        carried = self._pending.get()
        self.keys = [key for key, _ in carried]
        self.rows = [row for _, row in carried]
        if carried:
            self._check_columns(self._stored.get(_COLUMNS) or [])

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        """Raise `StateAccessError`: the wait itself makes the calls for its rows."""
        raise StateAccessError(
            f"operator {self._uid!r}: row {row!r:.200} of {ctx.operator_uid!r} is not keyed"
        )

    def leave(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Set the rows to be stored: pairs of idempotency key and Arrow batch of one row."""
        self._left = [(key, packed_row(row)) for key, row in rows]

    def snapshot_state(self, context: SnapshotContext) -> None:
        """Store the rows that `leave` set."""
        del context
        self._pending.update(self._left)
        if self._stored.get(_COLUMNS) != self._columns:
            self._stored.put(_COLUMNS, self._columns)

    def _check_columns(self, stored: Columns) -> None:
        if stored == self._columns:
            return
        raise StateMigrationError(
            f"operator {self._uid!r}: {len(self.rows)} rows are pending that were stored with the "
            f"columns {_text(stored)}; the input now has {_text(self._columns)}. Run the query "
            "once more with the stored columns and a carry_after that lets every call end, so that "
            "nothing is pending; or use pending='wait' from the start, which stores no rows; or "
            "give the operator another uid, which loses these rows"
        )


def packed_row(row: Any) -> bytes:
    """Return an Arrow batch as bytes, with its schema."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, row.schema) as stream:
        stream.write_batch(row)
    return out.getvalue()


def carried_batch(rows: Sequence[bytes], schema: Any) -> Any:
    """Return stored rows as one Arrow batch with ``schema``, or with their own if it is ``None``.

    To Spark the types of both are the same; Arrow has several types for strings and for instants.
    """
    tables = [pa.ipc.open_stream(row).read_all() for row in rows]
    wanted = tables[0].schema if schema is None else schema
    table = pa.concat_tables([one.cast(wanted) for one in tables])
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _text(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns) or "nothing"
