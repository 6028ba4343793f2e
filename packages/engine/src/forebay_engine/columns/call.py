"""One call of a batch function: its rows, their groups, and what is read for it ahead."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from forebay_engine.columns.groups import Groups, group
from forebay_engine.columns.keys import canonical, check_text, distinct
from forebay_engine.columns.rows import Rows
from forebay_engine.columns.values import kind_of, stored_column
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.contract.columns import EncodedKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_engine.columns.ahead import CellsAhead
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.job.timers import TimeDomain


class BatchCall:
    """The rows of one call of a batch function's method, by key."""

    def __init__(
        self,
        rows: Rows,
        keys: Sequence[pa.Array],
        names: Sequence[str],
        key_groups: Any,
        *,
        method: str = "process_batch",
        namespace: Any = None,
        domain: TimeDomain | None = None,
    ) -> None:
        """``keys`` are the key columns of all rows, ``key_groups`` their key groups in NumPy.

        ``method`` is called, and begins in ``namespace``; ``domain`` is the kind of its timers.
        """
        self.rows: Final = rows
        self.method: Final = method
        self.namespace: Final = namespace
        self.domain: Final = domain
        self.ahead: Final[dict[object, CellsAhead]] = {}
        """State → its cells, if they are read ahead."""
        self._keys = [canonical(key, name) for key, name in zip(keys, names, strict=True)]
        self._names = names
        self._key_groups = key_groups
        self.thread: Final = threading.get_ident()

    @cached_property
    def groups(self) -> Groups:
        """The rows by key."""
        found = distinct(self._keys)
        groups = group(self._keys, self._names, found, self.rows.name_of)
        for column, name in zip(groups.keys.columns, self._names, strict=True):
            check_text(column, name)
        return groups

    @cached_property
    def places(self) -> list[tuple[Any, int]]:
        """The distinct keys as functions of one row have them, with their key groups."""
        numbers = self._key_groups[self.groups.first_row_of_keys].tolist()
        return [*zip(self.groups.python_keys(), numbers, strict=True)]

    def distinct(self) -> tuple[list[pa.Array], Any]:
        """Return the key columns of the distinct keys, and their key groups."""
        first = self.groups.first_row_of_keys
        return list(self.groups.keys.columns), self._key_groups[first]

    def encoded(self, codec: ValueCodec) -> EncodedKeys:
        """Return the distinct keys as they are stored; the same object each time."""
        if self._encoded is None:
            self._encoded = self._encode(codec)
        return self._encoded

    _encoded: EncodedKeys | None = None

    def _encode(self, codec: ValueCodec) -> EncodedKeys:
        groups = self.groups
        numbers = self._key_groups[groups.first_row_of_keys].astype(np.uint16)
        types = ColumnTypes.of(codec)
        if types.kinds == tuple(kind_of(column) for column in groups.keys.columns):
            packed = types.pack([stored_column(column) for column in groups.keys.columns])
            if (encoded := types.split(packed)) is not None:
                return EncodedKeys(encoded, numbers)
        return EncodedKeys.of(codec, groups.python_keys(), numbers)

    def of_keys(self, wanted: Any) -> BatchCall:
        """Return the call with the rows of some keys alone; ``wanted`` is a mask of keys."""
        positions = np.flatnonzero(wanted[self.groups.index_of_rows])
        chosen = pa.array(positions)
        return BatchCall(
            self.rows.take(chosen),
            [column.take(chosen) for column in self._keys],
            self._names,
            self._key_groups[positions],
            method=self.method,
            namespace=self.namespace,
            domain=self.domain,
        )


class SeenKeys:
    """The distinct keys of the slices of a micro-batch, for ``end_batch``."""

    def __init__(self) -> None:
        self._parts: list[tuple[list[pa.Array], Any]] = []

    def add(self, call: BatchCall) -> None:
        """Add the keys of a call."""
        self._parts.append(call.distinct())

    def call(self, names: Sequence[str]) -> BatchCall:
        """Return the call of ``end_batch``, whose rows are the distinct keys.

        ``names`` are those of the key columns, if they are known.
        """
        keys = [pa.array([], pa.int64()) for _ in names or ("",)]
        numbers = np.zeros(0, np.int64)
        if self._parts:
            columns, groups = zip(*self._parts, strict=True)
            keys = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
            numbers = np.concatenate(groups)
        names = names or [f"key{at}" for at in range(len(keys))]
        rows = Rows(dict(zip(names, keys, strict=True)), len(numbers))
        every = BatchCall(rows, keys, names, numbers, method="end_batch")
        keys, numbers = every.distinct()
        rows = Rows(dict(zip(names, keys, strict=True)), len(numbers))
        return BatchCall(rows, keys, names, numbers, method="end_batch")
