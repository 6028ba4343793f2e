"""The accesses to states and timers: whether they are allowed, and loops over keys or rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from forebay_engine.columns.arrays import as_array
from forebay_state_api.errors import StateAccessError

if TYPE_CHECKING:
    from forebay_engine.columns.call import BatchCall
    from forebay_engine.columns.groups import Groups
    from forebay_state_api.job.context import RuntimeContext


class Access:
    """The accesses of a batch function to one state, or to its timers."""

    def __init__(self, what: str, context: RuntimeContext, call: Callable[[], Any]) -> None:
        """``what`` is named in errors; ``call`` returns the running `BatchCall`, or ``None``."""
        self.what: Final = what
        self._context: Final = context
        self._call: Final = call

    def running(self, groups: Any, method: str) -> BatchCall:
        """Return the running call; refuse other threads, other groups, and times without one."""
        call = self._call()
        if call is None:
            raise StateAccessError(
                f"{method} of {self.what} outside process_batch: states and timers are used while "
                "process_batch, on_timers or end_batch runs, and not after it has returned"
            )
        if threading.get_ident() != call.thread:
            raise StateAccessError(
                f"{method} of {self.what} on thread {threading.current_thread().name!r}: a state "
                "is used on the thread that calls process_batch; let the thread return its result"
            )
        if groups is not call.groups:
            what = f"{type(groups).__name__} {groups!r:.100}"
            raise ValueError(
                f"{method} of {self.what} takes ctx.groups, the distinct keys of this call, not "
                f"{what}; choose among them by where="
            )
        return call  # type: ignore[no-any-return]  # the engine's

    def loop(
        self,
        groups: Groups,
        method: str,
        act: Callable[..., Any],
        *given: Any,
        where: Any = None,
    ) -> list[Any]:
        """Return ``act(…)`` of one item after the other, with its key as the current one.

        Each of ``given`` has a value for each row or for each key, or is one value for all. An item
        is a row if one of them has a value for each row, and a key otherwise. An error of ``act``
        gets a note that names state and item.
        """
        call, what = self.running(groups, method), f"{method} of {self.what}"
        lists = [values_of(one, what) for one in given]
        count = _count({len(one) for one in lists if one is not None}, groups, what)
        of_rows = count != len(groups)  # with as many keys as rows, they are the same
        chosen = (groups.rows_where if of_rows else groups.keys_where)(where, what)
        items = range(count) if chosen is None else np.flatnonzero(chosen).tolist()
        index = groups.index_of_rows.tolist() if of_rows else range(count)
        parts = [
            [one] * count if many is None else many for one, many in zip(given, lists, strict=True)
        ]
        context, places, found = self._context, call.places, []
        for item in items:
            context._key, context._group = places[index[item]]
            try:
                found.append(act(*[part[item] for part in parts]))
            except Exception as error:
                error.add_note(f"in {what}, {'row' if of_rows else 'key'} {item} of the slice")
                raise
        return found


def values_of(given: Any, what: str) -> list[Any] | None:
    """Return the values of an array, a series or a list one by one; ``None`` for one value."""
    if isinstance(given, list):
        return given
    if isinstance(given, np.ndarray) and given.dtype == object:
        return given.tolist()  # type: ignore[no-any-return]  # numpy's
    is_many = hasattr(given, "__len__") and not isinstance(given, (str, bytes, tuple, dict))
    if not is_many and not hasattr(given, "__arrow_c_stream__"):
        return None
    array = as_array(given, what)
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        array = array.cast(pa.timestamp("us", kind.tz))
    found: list[Any] = array.to_pylist()
    return found


def _count(lengths: set[int], groups: Groups, what: str) -> int:
    """Return the number of items for values of these lengths."""
    count = max(lengths, default=len(groups))
    if len(lengths) > 1 or count not in (groups.rows, len(groups)):
        shown = " and ".join(map(str, sorted(lengths)))
        raise ValueError(
            f"{what}: {shown} values were given; there are {groups.rows} rows and {len(groups)} "
            "keys"
        )
    return count
