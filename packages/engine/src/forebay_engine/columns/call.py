"""One call of a batch function: its rows, their groups, and who may use state meanwhile."""

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

    from forebay_state_api.codecs import ValueCodec


class BatchCall:
    """The rows of one call of ``process_batch``, by key."""

    def __init__(
        self, rows: Rows, keys: Sequence[pa.Array], names: Sequence[str], key_groups: Any
    ) -> None:
        """``keys`` are the key columns of all rows, ``key_groups`` their key groups in NumPy."""
        self.rows: Final = rows
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
        )
