"""Operator state of the ordered wait that carries rows over: the rows that had no answer yet."""

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
"""The idempotency key of each row, and the row: an Arrow stream of one batch of one row."""

PENDING_COLUMNS: Final[MapStateDescriptor[str, list[tuple[str, str]]]] = MapStateDescriptor(
    "pending-columns", str, list[tuple[str, str]]
)
"""Under ``columns`` the names and types of the input that the pending rows are of."""

_COLUMNS: Final = "columns"

Columns = list[tuple[str, str]]
"""Names and Spark types of the input's columns."""


class PendingRows(KeyedProcessFunction[Any, Any, Any], CheckpointedFunction):
    """The state of one subtask; its rows do not come through `process_element`."""

    def __init__(self, columns: Columns, uid: str) -> None:
        """``columns`` are the input's, as the query has them now."""
        self._columns = columns
        self._uid = uid
        self._left: list[tuple[str, bytes]] = []
        self.keys: list[str] = []
        """Idempotency keys of the rows that were carried here, in order."""
        self.rows: list[bytes] = []
        """Those rows, in order."""

    def initialize_state(self, context: InitializationContext) -> None:
        """Take over what is pending; `StateMigrationError` when it is of other columns."""
        store = context.operator_state_store
        self._pending = store.get_list_state(PENDING_ROWS)
        self._stored = store.get_broadcast_state(PENDING_COLUMNS)
        carried = self._pending.get()
        self.keys = [key for key, _ in carried]
        self.rows = [row for _, row in carried]
        if carried:
            self._check_columns(self._stored.get(_COLUMNS) or [])

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        """Rows are called by the wait itself."""
        message = f"operator {self._uid!r}: row {row!r:.200} of {ctx.operator_uid!r} is not keyed"
        raise StateAccessError(message)

    def leave(self, rows: Iterable[tuple[str, Any]]) -> None:
        """The rows to be stored: idempotency key, and Arrow batch of one row."""
        self._left = [(key, packed_row(row)) for key, row in rows]

    def snapshot_state(self, context: SnapshotContext) -> None:
        """Store the rows that were left."""
        del context
        self._pending.update(self._left)
        if self._stored.get(_COLUMNS) != self._columns:
            self._stored.put(_COLUMNS, self._columns)

    def _check_columns(self, stored: Columns) -> None:
        if stored == self._columns:
            return
        message = (
            f"operator {self._uid!r}: {len(self.rows)} rows are pending that were stored with the "
            f"columns {_text(stored)}; the input now has {_text(self._columns)}. Run the query "
            "once more with the stored columns and a carry_after that lets every call end, so that "
            "nothing is pending; or use pending='wait' from the start, which stores no rows; or "
            "give the operator another uid, which loses these rows"
        )
        raise StateMigrationError(message)


def packed_row(row: Any) -> bytes:
    """The bytes of an Arrow batch, its schema included."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, row.schema) as stream:
        stream.write_batch(row)
    return out.getvalue()


def carried_batch(rows: Sequence[bytes], schema: Any) -> Any:
    """One Arrow batch of stored rows; of ``schema``, if that is known, else of their own.

    Their types are the same ones for Spark; Arrow has several for strings and for instants.
    """
    tables = [pa.ipc.open_stream(row).read_all() for row in rows]
    wanted = tables[0].schema if schema is None else schema
    table = pa.concat_tables([one.cast(wanted) for one in tables])
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _text(columns: Columns) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns) or "nothing"
